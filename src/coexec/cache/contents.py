"""Lists the contents of a cache folder by kind, and removes them at the user's request.

The limit of `Cache` holds for entries and weights. Beside them the folder contains the profiles,
verdicts on engines, and folders of the engines; none of these grows much. Files that
coexec did not write are counted and left alone, as ``--cache`` may name any folder.
"""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from coexec.cache.files import DRAFTS
from coexec.cache.folder import KINDS, Cache
from coexec.cache.limit import CacheFile, entries, files, size_of, trim, weights
from coexec.cache.parts import EXPORTS
from coexec.errors import UsageError

_PROFILES = re.compile(r"profiles[-0-9]*\.sqlite(-journal)?")
_TRIAL = re.compile(r"[0-9a-f]+\.json")
_ENGINE = re.compile(r"[a-z]+-[0-9a-f]{16}")
_ANY = re.compile(r".+", re.DOTALL)
CLEARABLE = (*KINDS, "profiles", "trials", "engines", EXPORTS)
"""Kinds that may be cleared alone; weights go with the last entry that refers to them."""


@dataclass(frozen=True, slots=True)
class Content:
    """All of one kind: "models", "weights", ... or "other" for files that coexec did not write."""

    kind: str
    count: int
    size_bytes: int
    used_s: float | None
    """Time of the last use or write of one of them, in seconds since 1970; None: there is none."""


def contents(root: Path) -> list[Content]:
    """The contents of the cache folder ``root`` by kind, empty kinds included.

    Raises:
        UsageError: it is not a folder, or cannot be read.
    """
    try:
        if root.exists():
            os.scandir(root).close()
    except OSError as error:
        raise UsageError(
            f"the cache {str(root)!r} cannot be read: {error.strerror or error}; "
            f"name its folder with --cache DIR"
        ) from None
    by_kind = {kind: _of_kind(root, kind) for kind in (*KINDS, "weights", *CLEARABLE, DRAFTS)}
    own_paths = {file.path for kind_files in by_kind.values() for file in kind_files}
    by_kind["other"] = [file for file in _below(root) if file.path not in own_paths]
    return [_content(kind, kind_files) for kind, kind_files in by_kind.items()]


def trimmed(cache: Cache, limit_bytes: int) -> int:
    """Remove entries, the longest unused first, until entries and weights take at most
    ``limit_bytes``. Returns the bytes that they take then: more if files could not be removed.

    Weights that a remaining entry refers to stay.
    """
    trim(cache.root, KINDS, limit_bytes, set(), set(), room=1.0)
    return size_of(cache.root, KINDS)


def clear(cache: Cache, kind: str | None = None) -> list[Path]:
    """Remove all of one kind, or of all kinds of `CLEARABLE`, and the weights that no entry refers
    to any more. Returns the files that could not be removed.

    Raises:
        UsageError: there is no such kind.
    """
    if kind is not None and kind not in CLEARABLE:
        why = (
            "weights go with the entries that need them"
            if kind == "weights"
            else (f"there is no kind {kind!r}")
        )
        raise UsageError(f"{why}; clear one of {', '.join(CLEARABLE)}, or name none for all")
    kinds = CLEARABLE if kind is None else (kind,)
    paths = [file.path for each in kinds for file in _of_kind(cache.root, each)]
    trim(cache.root, KINDS, sys.maxsize, set(), set(), unwanted=set(paths))
    left: list[Path] = []
    for path in paths:
        try:
            path.unlink(missing_ok=True)
        except OSError:
            left.append(path)
    for folder in (folder for each in kinds for folder in _folders(cache.root, each)):
        shutil.rmtree(folder, ignore_errors=True)
    return left


def _of_kind(root: Path, kind: str) -> list[CacheFile]:
    if kind in KINDS:
        return entries(root, (kind,))
    if kind == "weights":
        return weights(root)
    if kind == "profiles":
        return list(files(root, _PROFILES))
    if kind == "trials":
        return list(files(root / "trials", _TRIAL))
    if kind in ("engines", EXPORTS):
        return [file for folder in _folders(root, kind) for file in _below(folder)]
    return list(_below(root / kind))


def _folders(root: Path, kind: str) -> list[Path]:
    """The folders of engines, or the one folder of all exports; other kinds have only files."""
    if kind != "engines":
        return [root / EXPORTS] if kind == EXPORTS else []
    try:
        return [
            Path(item.path)
            for item in os.scandir(root)
            if _ENGINE.fullmatch(item.name) and item.is_dir(follow_symlinks=False)
        ]
    except OSError:
        return []


def _below(folder: Path) -> Iterator[CacheFile]:
    for parent, _, _ in os.walk(folder):
        yield from files(Path(parent), _ANY)


def _content(kind: str, own: list[CacheFile]) -> Content:
    return Content(
        kind,
        len(own),
        sum(file.size_bytes for file in own),
        max((file.used_s for file in own), default=None),
    )
