"""Copies entries with their weights from one cache into another.

The copies need no other check: a cache compares each entry and weight with its checksum when it is
read.
"""

import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath

from coexec.cache.entries import weights_of
from coexec.cache.files import write_whole
from coexec.cache.limit import is_part
from coexec.cache.weights import file_of

EXPORTS = "exports"
"""The folder for the caches of exports, in the user's cache. Each export has a cache of its own:
entries of another origin must not serve other models."""
_NOT_FOR_OTHERS = frozenset({"sources"})
"""Kinds of entries that describe files of this machine."""
_CHUNK_BYTES = 1 << 24


def part_files(entries: Iterable[Path]) -> dict[str, Path]:
    """The files of entries and of the weights that they refer to, by their place in a cache."""
    files: dict[str, Path] = {}
    for path in sorted(entries):
        kind, root = path.parent.name, path.parents[1]
        if kind in _NOT_FOR_OTHERS:
            continue
        files[f"{kind}/{path.name}"] = path
        for name in weights_of(path):
            weight = file_of(root, name)
            files[weight.relative_to(root).as_posix()] = weight
    return files


def place_parts(root: Path, parts: Iterable[tuple[str, Path]]) -> None:
    """Copy the missing files into the cache folder ``root``.

    Args:
        parts: files with their place in a cache.

    Raises:
        OSError: they cannot be read or written.
    """
    for place, source in parts:
        target = root / PurePosixPath(place)
        if is_part(place) and not target.exists():
            write_whole(target, chunks(source))


def chunks(path: Path) -> Iterator[bytes]:
    """The content of a file in chunks, so that it is never all in memory."""
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk


def keep_newest(folder: Path, limit_bytes: int, own: Path) -> None:
    """Remove the entries of ``folder`` that were used longest ago until the others take at most
    ``limit_bytes``. The entry ``own`` stays."""
    with suppress(OSError):
        paths = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        sizes = {path: _size_of(path) for path in paths}
        for path in paths:
            if sum(sizes.values()) <= limit_bytes:
                return
            if path != own:
                shutil.rmtree(path, ignore_errors=True)
                del sizes[path]


def _size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
