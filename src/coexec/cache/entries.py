"""The form of a cache entry: one file with a checksum over all of its content.

It is one file rather than a folder: it is written and replaced in one step, and read with one call.
The entry is parsed from the same bytes that were compared with the checksum.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import xxhash

_MAGIC = b"coexec entry 1 "
_HEAD_BYTES = len(_MAGIC) + 32 + 1 + 8 + 1
"""Magic, checksum, a blank, the length of the index in hexadecimal digits, a line's end."""


@dataclass(frozen=True)
class Entry:
    """Named small files, and the names of the weights that they refer to."""

    files: Mapping[str, bytes]
    weights: tuple[str, ...] = ()


def encode(entry: Entry, name: str) -> bytes:
    """The content of the file of ``entry``. ``name`` distinguishes it from all other entries."""
    files = [[file, len(content)] for file, content in entry.files.items()]
    index = json.dumps({"name": name, "files": files, "weights": list(entry.weights)}).encode()
    body = b"".join((b"%08x\n" % len(index), index, *entry.files.values()))
    return b"%s%s %s" % (_MAGIC, xxhash.xxh3_128_hexdigest(body).encode(), body)


def decode(content: bytes, name: str) -> Entry:
    """Inverse of `encode`.

    Raises:
        ValueError: ``content`` is not what was written under ``name``.
    """
    view = memoryview(content)
    checksum = bytes(view[len(_MAGIC) : len(_MAGIC) + 33])
    body = view[len(_MAGIC) + 33 :]
    if bytes(view[: len(_MAGIC)]) != _MAGIC:
        raise ValueError("it does not begin as an entry does")
    if checksum != xxhash.xxh3_128_hexdigest(body).encode() + b" ":
        raise ValueError("its checksum differs")
    end = 9 + int(bytes(body[:8]), 16)
    index = json.loads(bytes(body[9:end]))
    if index["name"] != name:
        raise ValueError(f"it is the entry {index['name']!r}")
    files: dict[str, bytes] = {}
    for file, length in index["files"]:
        files[file] = bytes(body[end : end + length])
        end += length
    return Entry(files, tuple(index["weights"]))


def weights_of(path: Path) -> list[str]:
    """The weights that the entry in ``path`` refers to, from its first bytes; no checksum is
    compared.

    Raises:
        ValueError: it is no entry.
        OSError: it cannot be read.
    """
    with open(path, "rb") as file:
        head = file.read(_HEAD_BYTES)
        if len(head) < _HEAD_BYTES or not head.startswith(_MAGIC):
            raise ValueError("it does not begin as an entry does")
        index = json.loads(file.read(int(head[-9:-1], 16)))
    weights = index.get("weights") if isinstance(index, dict) else None
    if not isinstance(weights, list):
        raise ValueError("it lists no weights")
    return [str(name) for name in weights]
