"""Keeps the cache below its limit: what was not used for the longest time goes first."""

import os
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coexec.cache.entries import weights_of
from coexec.cache.weights import file_of

__all__ = ["size_of", "trim"]

_ENTRY = re.compile(r"[0-9a-f]{32}")
_WEIGHT = re.compile(r"[0-9a-f]{32}-[0-9a-f]+")
_ROOM = 0.9
"""Share of the limit that is left: else each entry that is added would remove another."""


@dataclass(frozen=True, slots=True)
class _File:
    path: Path
    size_bytes: int
    used_s: float


def _files(folder: Path, name: re.Pattern[str]) -> Iterator[_File]:
    """The files below ``folder`` that are ours; whatever else lies there is left alone."""
    try:
        found = list(os.scandir(folder))
    except OSError:
        return
    for item in found:
        with suppress(OSError):
            if name.fullmatch(item.name) and item.is_file(follow_symlinks=False):
                stat = item.stat()
                yield _File(Path(item.path), stat.st_size, stat.st_mtime)


def _entries(root: Path, kinds: tuple[str, ...]) -> list[_File]:
    return [file for kind in kinds for file in _files(root / kind, _ENTRY)]


def _weights(root: Path) -> list[_File]:
    folders = (root / "weights" / f"{number:02x}" for number in range(256))
    return [file for folder in folders for file in _files(folder, _WEIGHT)]


def size_of(root: Path, kinds: tuple[str, ...]) -> int:
    """Bytes in all entries of these kinds and in all weights."""
    return sum(file.size_bytes for file in (*_entries(root, kinds), *_weights(root)))


def trim(
    root: Path, kinds: tuple[str, ...], limit_bytes: int, used: set[Path], weights: set[str]
) -> int:
    """Remove entries, and weights that no entry refers to, until all fits; return what is left.

    Other processes may use the cache meanwhile: what they miss, they make again.

    Args:
        used: entries that stay.
        weights: names of weights that stay.
    """
    sizes = {file.path.name: file.size_bytes for file in _weights(root)}
    entries = sorted(_entries(root, kinds), key=lambda file: file.used_s)
    refers: dict[Path, list[str]] = {}
    for entry in entries:
        try:
            refers[entry.path] = weights_of(entry.path)
        except (OSError, ValueError):
            refers[entry.path] = []
    count = Counter(name for names in refers.values() for name in set(names))
    count.update(weights)
    total = sum(sizes.values()) + sum(entry.size_bytes for entry in entries)
    total -= _remove_weights(root, sizes, [name for name in sizes if not count[name]])
    for entry in entries:
        if total <= limit_bytes * _ROOM:
            break
        if entry.path in used:
            continue
        with suppress(OSError):
            entry.path.unlink()
        total -= entry.size_bytes
        count.subtract(set(refers[entry.path]))
        unused = [name for name in refers[entry.path] if name in sizes and not count[name]]
        total -= _remove_weights(root, sizes, unused)
    return total


def _remove_weights(root: Path, sizes: dict[str, int], names: list[str]) -> int:
    """Bytes that came free."""
    freed = 0
    for name in names:
        with suppress(OSError):
            file_of(root, name).unlink()
        freed += sizes.pop(name, 0)
    return freed
