"""A model as a program gives it: for ONNX Runtime, for another process, and what its file says."""

import os
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from onnxruntime.capi.onnxruntime_pybind11_state import NoSuchFile

from coexec.errors import ModelError
from coexec.frontend.digest import serialized, unreadable
from coexec.ort import both
from coexec.workbench.given import ZOO

__all__ = ["for_ort_constructor", "open_inputs", "portable"]


def for_ort_constructor(source: Any) -> str | bytes:
    """The model as ONNX Runtime's constructor takes it.

    Raises:
        ModelError: the file does not exist. It is also of ONNX Runtime's own class.
    """
    if isinstance(source, str) and source.startswith(ZOO):
        from coexec.zoo import build

        source = build(source.removeprefix(ZOO))
    if isinstance(source, bytes):
        return source
    if not isinstance(source, str | os.PathLike):
        return serialized(source)
    path = os.fspath(source)
    if not os.path.exists(path):
        missing = unreadable(Path(os.path.abspath(path)), FileNotFoundError())
        raise both(ModelError, NoSuchFile)(str(missing))
    return path


def portable(source: Any) -> str | bytes:
    """The model as another process can be told of it."""
    if isinstance(source, bytes | str):
        return source
    return os.fspath(source) if isinstance(source, os.PathLike) else serialized(source)


def open_inputs(source: str | bytes) -> set[str]:
    """Names of the inputs of which the model itself leaves a dimension open.

    Read from the protobuf's structure, field by field: that imports no ONNX, and skips weights.
    """
    if isinstance(source, bytes):
        return _open_inputs(memoryview(source))
    if source.startswith(ZOO):
        return set()
    try:
        with open(source, "rb") as file:
            return _open_inputs(memoryview(mmap(file.fileno(), 0, access=ACCESS_READ)))
    except (OSError, ValueError):  # empty, or on a disk that cannot be mapped
        return set()


def _open_inputs(model: memoryview) -> set[str]:
    """Numbers of fields as in onnx.proto: ModelProto.graph, GraphProto.input, and so on."""
    found: set[str] = set()
    try:
        for graph in _inside(model, 7):
            for value in _inside(graph, 11):
                dims = [d for t in _inside(value, 2) for tensor in _inside(t, 1)
                        for shape in _inside(tensor, 2) for d in _inside(shape, 1)]  # fmt: skip
                if any(all(number != 1 for number, _ in _fields(dim)) for dim in dims):
                    found |= {bytes(name).decode() for name in _inside(value, 1)}
    except (IndexError, ValueError):  # no model: whoever reads it reports it
        return set()
    return found


def _inside(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """The messages or texts in the field ``wanted``."""
    for number, value in _fields(message):
        if number == wanted and isinstance(value, memoryview):
            yield value


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """Number and content of each field of a protobuf message; numbers of fixed width are 0."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        value: memoryview | int = 0
        if kind == 0:
            value, at = _varint(message, at)
        elif kind == 2:
            length, at = _varint(message, at)
            value = message[at : at + length]
            at += length
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        yield key >> 3, value


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
