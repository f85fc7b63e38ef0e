"""What a model takes, gives and says about itself, as ONNX Runtime reports it.

It is kept beside the plan: a session that starts from the cache reports the same, symbolic
dimensions included, without opening ONNX Runtime's own session.
"""

import json
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from coexec.cache import Cache, Entry
from coexec.ort import OrtSession

__all__ = ["ModelMetadata", "NodeArg", "Signature"]

_KIND: Final = "signatures"


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model, with the attributes of ``onnxruntime.NodeArg``."""

    name: str
    shape: list[int | str | None]
    """A text names a dimension that the model leaves dynamic."""
    type: str
    """For example "tensor(float)"."""


@dataclass(frozen=True)
class ModelMetadata:
    """What a model says about itself, with the attributes of ``onnxruntime.ModelMetadata``."""

    producer_name: str
    graph_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


@dataclass(frozen=True)
class Signature:
    """All that ONNX Runtime reports of a model."""

    inputs: list[NodeArg]
    outputs: list[NodeArg]
    overridable: list[NodeArg]
    """Weights that a feed may replace."""
    metadata: ModelMetadata

    @classmethod
    def of(cls, session: OrtSession) -> Self:
        """What an open session of ONNX Runtime reports."""
        theirs = OrtSession.get_modelmeta(session)
        names = ModelMetadata.__dataclass_fields__
        return cls(
            _args(OrtSession.get_inputs(session)),
            _args(OrtSession.get_outputs(session)),
            _args(OrtSession.get_overridable_initializers(session)),
            ModelMetadata(**{name: getattr(theirs, name) for name in names}),
        )

    def keep(self, cache: Cache, digest: str) -> None:
        """Store it for the model that ``digest`` tells from all others."""
        cache.add(_KIND, digest, Entry({"signature.json": json.dumps(asdict(self)).encode()}))

    @classmethod
    def find(cls, cache: Cache, digest: str) -> Self | None:
        """What was stored for that model."""
        entry = cache.find(_KIND, digest)
        if entry is None:
            return None
        data = json.loads(entry.files["signature.json"])
        inputs, outputs, overridable = (
            [NodeArg(**arg) for arg in data[name]] for name in ("inputs", "outputs", "overridable")
        )
        return cls(inputs, outputs, overridable, ModelMetadata(**data["metadata"]))


def _args(theirs: Any) -> list[NodeArg]:
    return [NodeArg(arg.name, list(arg.shape), arg.type) for arg in theirs]
