"""Keeps the cache below its limit: the entries that were unused for the longest time go first."""

import os
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from coexec.cache.entries import weights_of
from coexec.cache.weights import file_of

_ENTRY = re.compile(r"[0-9a-f]{32}")
_WEIGHT = re.compile(r"[0-9a-f]{32}-[0-9a-f]+")
ROOM = 0.9
"""Share of the limit that remains used; otherwise each added entry would remove another."""
_NEW_S = 600.0
"""A process stores or finds weights before it adds the entry that refers to them: weights without
an entry stay for this long."""


@dataclass(frozen=True, slots=True)
class CacheFile:
    """A file of the cache, and the time of its last use or write (seconds since 1970)."""

    path: Path
    size_bytes: int
    used_s: float


def files(folder: Path, name: re.Pattern[str]) -> Iterator[CacheFile]:
    """The files in ``folder`` whose names match ``name``; others are left alone."""
    try:
        items = list(os.scandir(folder))
    except OSError:
        return
    for item in items:
        with suppress(OSError):
            if name.fullmatch(item.name) and item.is_file(follow_symlinks=False):
                stat = item.stat()
                yield CacheFile(Path(item.path), stat.st_size, stat.st_mtime)


def is_part(place: str) -> bool:
    """Whether a path in a cache folder, with "/", belongs to an entry or a weight."""
    kind, *names = place.split("/")
    if kind == "weights":
        return len(names) == 2 and names[0] == names[1][:2] and bool(_WEIGHT.fullmatch(names[1]))
    return kind.isalpha() and len(names) == 1 and bool(_ENTRY.fullmatch(names[0]))


def entries(root: Path, kinds: tuple[str, ...]) -> list[CacheFile]:
    return [file for kind in kinds for file in files(root / kind, _ENTRY)]


def weights(root: Path) -> list[CacheFile]:
    folders = (root / "weights").glob("[0-9a-f][0-9a-f]")
    return [file for folder in folders for file in files(folder, _WEIGHT)]


def size_of(root: Path, kinds: tuple[str, ...]) -> int:
    """Bytes in all entries of these kinds and in all weights."""
    return sum(file.size_bytes for file in (*entries(root, kinds), *weights(root)))


def trim(
    root: Path,
    kinds: tuple[str, ...],
    limit_bytes: int,
    used: set[Path],
    kept: set[str],
    room: float = ROOM,
    unwanted: Collection[Path] = (),
) -> int:
    """Remove entries, and weights that no entry refers to, until all fits; return the bytes left.

    Other processes may use the cache meanwhile; they make missing entries again. Weights that no
    entry has referred to yet stay for some minutes.

    Args:
        limit_bytes: entries and their weights stay, unless all together take more than the share
            ``room`` of this.
        used: entries that stay.
        kept: names of weights that stay.
        unwanted: entries that go in any case.
    """
    stored = weights(root)
    sizes = {file.path.name: file.size_bytes for file in stored}
    new_s = time.time() - _NEW_S
    oldest_first = sorted(entries(root, kinds), key=lambda file: file.used_s)
    refers: dict[Path, list[str]] = {}
    for entry in oldest_first:
        try:
            refers[entry.path] = weights_of(entry.path)
        except (OSError, ValueError):
            refers[entry.path] = []
    count = Counter(name for names in refers.values() for name in set(names))
    count.update(kept)
    total = sum(sizes.values()) + sum(entry.size_bytes for entry in oldest_first)
    old = [file.path.name for file in stored if file.used_s < new_s]
    total -= _remove_weights(root, sizes, [name for name in old if not count[name]])
    for entry in oldest_first:
        if total <= limit_bytes * room and entry.path not in unwanted:
            continue
        if entry.path in used or not _removed(entry.path):
            continue
        total -= entry.size_bytes
        count.subtract(set(refers[entry.path]))
        unused = [name for name in refers[entry.path] if name in sizes and not count[name]]
        total -= _remove_weights(root, sizes, unused)
    return total


def _remove_weights(root: Path, sizes: dict[str, int], names: list[str]) -> int:
    """Remove weights; return the bytes that became free."""
    return sum(sizes.pop(name) for name in set(names) if _removed(file_of(root, name)))


def _removed(path: Path) -> bool:
    """Remove a file; return whether it is gone."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True
