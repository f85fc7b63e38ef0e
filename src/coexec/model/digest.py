"""Digests that distinguish models. Imports no ONNX, because a start from the cache needs only this
module.

The digest of a file covers its content and the content of the files with weights that it names.
Reading half a gigabyte at each start would take too long, so the cache stores the digest of a file
with its size, its times and its inode. As in git, a stored digest is not trusted if the file
changed just before it was read: it may have changed again within the resolution of its times.
"""

import json
import math
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from coexec.cache import Cache, Entry
from coexec.codec import decode, encode
from coexec.errors import ModelError
from coexec.keys import digest
from coexec.model.folders import is_below, opened, unreadable
from coexec.model.weightless import require_encodable

_RACY_NS = 2_000_000_000
"""The times of some file systems count in steps of two seconds."""
_CHUNK_BYTES = 1 << 24

Shapes = Mapping[str, Sequence[int] | int]
"""Shape by input, or size by name of a symbolic dimension."""

_Stat = tuple[int, int, int, int, int]
"""Size, time of modification and of change in ns, inode and device of a file."""


class _Known(NamedTuple):
    """A file at the time when it was read. None: it was missing."""

    path: str
    stat: _Stat | None
    digest: str | None


@dataclass(frozen=True, slots=True)
class _KnownFiles:
    """A model's file, and those that it names."""

    files: list[_Known]
    written_ns: int
    """Time at which they were read."""


def digest_of(
    source: Any, shapes: Shapes, values: Mapping[str, Any], cache: Cache | None = None
) -> str:
    """A digest of the model's content, weights in other files included, and of the fixed shapes and
    values.

    Args:
        shapes, values: as `coexec.arguments` returns them.
        cache: holds digests of files that have not changed; without it all are read.

    Raises:
        ModelError: the file does not exist or cannot be read.
    """
    content: object
    if isinstance(source, str | os.PathLike):
        content = [file.digest for file in _files(Path(os.path.abspath(source)), cache)]
    else:
        content = source if isinstance(source, bytes) else serialized(source)
    return digest(sorted(shapes.items()), sorted(values.items()), content)


def is_remembered(source: str | os.PathLike[str], cache: Cache) -> bool:
    """Whether the cache holds the digests of the model's files, and these are unchanged."""
    return _unchanged_files(_remembered(cache, Path(os.path.abspath(source)))) != []


def _unchanged_files(record: _KnownFiles) -> list[_Known]:
    """The files if all are unchanged, else []."""
    same = all(_unchanged(file, _stat(file.path), record.written_ns) for file in record.files)
    return record.files if same else []


def _files(path: Path, cache: Cache | None) -> list[_Known]:
    """The model's file and those that it names, with their digests.

    Raises:
        ModelError: the model's file cannot be read.
    """
    record = _KnownFiles([], 0) if cache is None else _remembered(cache, path)
    if unchanged := _unchanged_files(record):
        return unchanged
    now_ns = time.time_ns()
    model = _read(path)
    if record.files and record.files[0].digest == model.digest:
        named: Iterable[str] = [file.path for file in record.files[1:]]
    else:
        named = _named_by(path)
    files = [model, *map(_read_if_there, named)]
    if cache is not None:
        content = json.dumps(encode(_KnownFiles(files, now_ns))).encode()
        cache.add("sources", str(path), Entry({"files.json": content}), quiet=True)
    return files


def _unchanged(file: _Known, stat: _Stat | None, written_ns: int) -> bool:
    if stat is None or file.stat is None:
        return stat == file.stat
    return stat == file.stat and max(stat[1], stat[2]) < written_ns - _RACY_NS


def _remembered(cache: Cache, path: Path) -> _KnownFiles:
    """A model's files as the cache holds them."""
    entry = cache.find("sources", str(path))
    if entry is None:
        return _KnownFiles([], 0)
    return decode(_KnownFiles, json.loads(entry.files["files.json"]))


def _stat(path: str) -> _Stat | None:
    """Status of the file that ``path`` leads to; None if there is none."""
    try:
        return _numbers(os.stat(path))
    except OSError:
        return None


def _numbers(stat: os.stat_result) -> _Stat:
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, stat.st_dev


def _read(path: Path) -> _Known:
    """
    Raises:
        ModelError: the file is missing, or cannot be read.
    """
    digest = xxhash.xxh3_128()
    with open(opened(path), "rb", buffering=0) as file:
        stat = _numbers(os.fstat(file.fileno()))
        buffer = memoryview(bytearray(min(_CHUNK_BYTES, stat[0] + 1)))
        try:
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
        except OSError as error:
            raise unreadable(path, error) from None
    return _Known(str(path), stat, digest.hexdigest())


def _read_if_there(path: str) -> _Known:
    try:
        return _read(Path(path))
    except ModelError:  # the reader reports it
        return _Known(path, _stat(path), None)


def _named_by(path: Path) -> list[str]:
    """The files that a model names, beside it and beside the file that it is a link to. The reader
    refuses a name that leads elsewhere, for example to a file without an end."""
    folders = dict.fromkeys((path.parent, path.resolve().parent))
    names = [name for name in named_files(path) if is_below(name)]
    return [os.path.join(folder, name) for name in names for folder in folders]


def named_files(path: Path) -> list[str]:
    """The locations of weights in other files that a model names, as it names them."""
    if not _mentions(path, b"location"):  # the key of such names; finding it is quick
        return []
    import onnx

    try:
        proto = onnx.load(str(path), load_external_data=False)
    except Exception:  # no model: the reader reports it
        return []
    return list(dict.fromkeys(_locations(proto)))


def _mentions(path: Path, word: bytes) -> bool:
    try:
        with open(path, "rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
            return content.find(word) >= 0
    except (OSError, ValueError):  # empty, or on a disk that cannot be mapped
        return True


def _locations(message: Any) -> Iterable[str]:
    """Locations of the external tensors in a protobuf message, at any depth."""
    for field, value in message.ListFields():
        if field.name == "external_data":
            yield from (item.value for item in value if item.key == "location")
        elif field.message_type is not None:
            inner = [value] if hasattr(value, "ListFields") else value
            for item in inner:
                yield from _locations(item)


def serialized(source: Any) -> bytes:
    """A model of onnx or onnx_ir as the content of a file.

    Raises:
        ModelError: it is too large for that.
    """
    if hasattr(source, "SerializeToString"):
        require_encodable(_weight_bytes(source), "the ModelProto")
    else:
        weights = (value.const_value for value in source.graph.initializers.values())
        require_encodable(sum(t.nbytes for t in weights if _is_embedded(t)), "the model")
    if not hasattr(source, "SerializeToString"):
        import onnx_ir as ir

        source = ir.to_proto(source)
    content: bytes = source.SerializeToString(deterministic=True)
    return content


def _is_embedded(tensor: Any) -> bool:
    """Whether a weight of onnx_ir becomes a part of the serialized model. Texts are small."""
    return tensor is not None and not hasattr(tensor, "location") and tensor.dtype.name != "STRING"


def _weight_bytes(proto: Any) -> int:
    """Bytes of the weights in a ModelProto, by their shapes: reading them would copy them."""
    from onnx.helper import tensor_dtype_to_np_dtype

    return sum(
        math.prod(weight.dims) * tensor_dtype_to_np_dtype(weight.data_type).itemsize
        for weight in proto.graph.initializer
        if weight.data_type and not weight.external_data and min(weight.dims, default=0) >= 0
    )
