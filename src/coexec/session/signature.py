"""Inputs, outputs and metadata of a model, as ONNX Runtime reports them.

They are stored beside the plan. So a session that starts from the cache has the same report,
including symbolic dimensions, without opening ONNX Runtime's own session.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from coexec.cache import Cache, Entry
from coexec.codec import decode, encode
from coexec.ort import OrtSession

_KIND: Final = "signatures"


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model, with the attributes of ``onnxruntime.NodeArg``."""

    name: str
    shape: list[int | str | None]
    """Sizes; the name of a dimension, or None, if the model leaves it dynamic."""
    type: str
    """For example "tensor(float)"."""


@dataclass(frozen=True)
class ModelMetadata:
    """Metadata of a model, with the attributes of ``onnxruntime.ModelMetadata``."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


@dataclass(frozen=True)
class Signature:
    """ONNX Runtime's report about a model."""

    inputs: list[NodeArg]
    outputs: list[NodeArg]
    overridable: list[NodeArg]
    """Weights that a feed may replace."""
    metadata: ModelMetadata

    @classmethod
    def of(cls, session: OrtSession) -> Self:
        """The report of a session of ONNX Runtime's own class."""
        metadata = session.get_modelmeta()
        names = ModelMetadata.__dataclass_fields__
        return cls(
            _args(session.get_inputs()),
            _args(session.get_outputs()),
            _args(session.get_overridable_initializers()),
            ModelMetadata(**{name: getattr(metadata, name) for name in names}),
        )

    def keep(self, cache: Cache, digest: str) -> None:
        """Store the report in the cache, for the model with this digest."""
        cache.add(_KIND, digest, Entry({"signature.json": json.dumps(encode(self)).encode()}))

    @classmethod
    def find(cls, cache: Cache, digest: str) -> Self | None:
        """The stored report for the model with this digest; None if there is none."""
        entry = cache.find(_KIND, digest)
        return None if entry is None else decode(cls, json.loads(entry.files["signature.json"]))


def _args(ort_args: Any) -> list[NodeArg]:
    return [NodeArg(arg.name, list(arg.shape), arg.type) for arg in ort_args]


def is_dynamic(arg: NodeArg, shapes: Mapping[str, Any]) -> bool:
    """Whether an input has dimensions that neither the model nor ``shapes`` fixes."""
    return arg.name not in shapes and any(
        not isinstance(d, int) and d not in shapes for d in arg.shape
    )


def fixed(arg: Any, shapes: Mapping[str, Any]) -> Any:
    """An input as ONNX Runtime describes it, with the sizes that ``shapes`` fix.

    Args:
        shapes: all sizes of an input by the input's name, or one size by the name of a dimension.
    """
    sizes_of_input = shapes.get(arg.name)
    if isinstance(sizes_of_input, Sequence):
        return NodeArg(arg.name, list(sizes_of_input), arg.type)
    sizes = [shapes.get(d, d) if isinstance(d, str) else d for d in arg.shape]
    return arg if sizes == arg.shape else NodeArg(arg.name, sizes, arg.type)
