"""Inputs, outputs and metadata of a model, as ONNX Runtime reports them.

They are stored beside the plan. So a session that starts from the cache has the same report,
including symbolic dimensions, without opening ONNX Runtime's own session.
"""

import json
from dataclasses import dataclass
from typing import Any, Final, Self

from coexec.cache import Cache, Entry
from coexec.codec import decode, encode
from coexec.ort import OrtSession

__all__ = ["ModelMetadata", "NodeArg", "Signature"]

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
        """The report of an open session of ONNX Runtime."""
        metadata = OrtSession.get_modelmeta(session)
        names = ModelMetadata.__dataclass_fields__
        return cls(
            _args(OrtSession.get_inputs(session)),
            _args(OrtSession.get_outputs(session)),
            _args(OrtSession.get_overridable_initializers(session)),
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


def _args(theirs: Any) -> list[NodeArg]:
    return [NodeArg(arg.name, list(arg.shape), arg.type) for arg in theirs]
