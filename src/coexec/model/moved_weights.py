"""Weights that a written model keeps in one new file beside it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from coexec.model.folders import ModelFolders
from coexec.model.messages import TensorProto

if TYPE_CHECKING:
    import onnx

__all__ = [
    "WeightPart",
    "content_of",
    "external_tensors",
    "move_external",
    "move_large",
    "named_file",
]

_ALIGNMENT_BYTES = 64
_CHUNK_BYTES = 1 << 24
_LARGE_BYTES = 1024
"""Smaller weights stay in the model."""


class WeightPart(NamedTuple):
    """The bytes of one weight, and their position in the new file."""

    source: Path | bytes
    offset: int
    """Position in ``source``."""
    length: int
    position: int

    def chunks(self) -> Iterator[bytes]:
        """The bytes in chunks.

        Raises:
            OSError: ``source`` cannot be read, or has become shorter.
        """
        if isinstance(self.source, bytes):
            yield self.source
            return
        with open(self.source, "rb") as file:
            file.seek(self.offset)
            left = self.length
            while left:
                chunk = file.read(min(left, _CHUNK_BYTES))
                if not chunk:
                    raise OSError(0, f"{str(self.source)!r} has become shorter", self.source)
                left -= len(chunk)
                yield chunk


def content_of(parts: list[WeightPart]) -> Iterator[bytes]:
    """The content of the new file, in chunks."""
    end = 0
    for part in parts:
        yield bytes(part.position - end)
        yield from part.chunks()
        end = part.position + part.length


def external_tensors(message: Any) -> "Iterator[onnx.TensorProto]":
    """The tensors in a message whose values lie in files, at any depth."""
    if isinstance(message, TensorProto):
        if message.data_location == TensorProto.EXTERNAL:
            yield message
        return
    for field, value in message.ListFields():
        if field.message_type is not None:
            for item in [value] if hasattr(value, "ListFields") else value:
                yield from external_tensors(item)


def named_file(tensor: "onnx.TensorProto", folders: ModelFolders) -> Path:
    """The file with the values of an external tensor."""
    return folders.file(tensor.name, _entries(tensor).get("location", ""))


def move_external(
    model: "onnx.ModelProto", folders: ModelFolders, location: str
) -> list[WeightPart]:
    """Point all external tensors of ``model`` into a new file beside it; return its content.

    Args:
        folders: of the file that ``model`` was read from.
        location: name of the new file.
    """
    parts: list[WeightPart] = []
    for tensor in external_tensors(model):
        file, entries = named_file(tensor, folders), _entries(tensor)
        offset = int(entries.get("offset", 0))
        length = int(entries.get("length", os.path.getsize(file) - offset))
        _append(parts, tensor, file, offset, length, location)
    return parts


def move_large(model: "onnx.ModelProto", parts: list[WeightPart], location: str) -> None:
    """Move the large initializers out of ``model``, behind ``parts`` in the same new file."""
    for tensor in model.graph.initializer:
        if tensor.HasField("raw_data") and len(tensor.raw_data) >= _LARGE_BYTES:
            values = tensor.raw_data
            tensor.ClearField("raw_data")
            _append(parts, tensor, values, 0, len(values), location)


def _append(
    parts: list[WeightPart],
    tensor: "onnx.TensorProto",
    source: Path | bytes,
    offset: int,
    length: int,
    location: str,
) -> None:
    end = parts[-1].position + parts[-1].length if parts else 0
    position = -(-end // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    parts.append(WeightPart(source, offset, length, position))
    tensor.data_location = TensorProto.EXTERNAL
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", position), ("length", length)):
        tensor.external_data.add(key=key, value=str(value))


def _entries(tensor: "onnx.TensorProto") -> dict[str, str]:
    return {entry.key: entry.value for entry in tensor.external_data}
