"""The cache folder: entries by kind and key, the weights that they share, and their limit."""

import os
import shutil
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import numpy.typing as npt
import platformdirs

from coexec.__about__ import __version__
from coexec.cache.drafts import Drafts
from coexec.cache.entries import Entry, decode, encode
from coexec.cache.limit import size_of, trim
from coexec.cache.scratch import in_scratch
from coexec.cache.substitute import has_substitute, substitute
from coexec.cache.warning import warn_once
from coexec.cache.weights import Weights
from coexec.keys import digest

__all__ = ["KINDS", "LIMIT_BYTES", "Cache", "Kind", "default_cache_folder", "used_entries"]

_T = TypeVar("_T")

Kind = Literal[
    "models",
    "lowered",
    "plans",
    "choices",
    "comparisons",
    "sources",
    "signatures",
    "declared",
    "assumed",
    "kernels",
    "tuning",
]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""The folders of entries."""

LIMIT_BYTES = 8 << 30
"""Ten networks of the size of nasnet_large, which takes 0.7 GB, beside some small ones."""

_SUBSTITUTE_BYTES = 2 << 30
"""Limit of the folder that replaces a cache that cannot be written; it may lie in memory."""

_FORM = "5"
"""Raised when entries get other files, or files of another form."""

_MAKER = f"coexec {__version__} form {_FORM}"
"""The coexec that makes the entries: no other version reads them."""

_notes: list[set[Path]] = []

_open: "weakref.WeakSet[Cache]" = weakref.WeakSet()


def default_cache_folder() -> Path:
    """The user's cache folder for coexec, by the rules of the operating system."""
    return Path(platformdirs.user_cache_dir("coexec"))


@contextmanager
def used_entries() -> Iterator[set[Path]]:
    """The files of the entries that this process finds or adds in the ``with`` block, in any
    cache."""
    files: set[Path] = set()
    _notes.append(files)
    try:
        yield files
    finally:
        _notes.remove(files)


class Cache:
    """Entries by kind and key. No method raises an error because of the disk or of a wrong
    entry."""

    def __init__(self, root: Path | str | None = None, limit_bytes: int = LIMIT_BYTES) -> None:
        """Use ``root``, by default the user's cache folder; it is made when something is added.

        Args:
            limit_bytes: of all entries and weights together. Above it, the entries that were not
                used for the longest time are removed, except those that this process uses.
        """
        self.root = Path(os.path.abspath(default_cache_folder() if root is None else root))
        self._limit_bytes = limit_bytes
        self._drafts = Drafts(self.root)
        self._drafts.sweep()
        self._used: set[Path] = set()
        self._total_bytes: int | None = None
        self.weights = Weights(self.root, self._drafts, partial(warn_once, self.root))
        self._stand_in: Cache | None = None
        self._is_substitute = False
        _open.add(self)

    def find(self, kind: Kind, key: str) -> Entry | None:
        """The entry under ``key``; None if it is missing or damaged."""
        entry = self._find(kind, key)
        stand_in = self._substitute(has_substitute) if entry is None else None
        return entry if stand_in is None else stand_in.find(kind, key)

    def _find(self, kind: Kind, key: str) -> Entry | None:
        path, name = self._place(kind, key)
        try:
            content = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            warn_once(self.root, f"{kind}/{path.name} cannot be read: {error.strerror or error}")
            return None
        try:
            entry = decode(content, name)
        except (ValueError, KeyError, TypeError) as error:
            self.drop(kind, key)
            warn_once(self.root, f"{kind}/{path.name} was damaged: {error}")
            return None
        self._note(path)
        with suppress(OSError):
            os.utime(path)  # records the last use
        return entry

    @property
    def limit_bytes(self) -> int:
        """Limit of all entries and weights together."""
        return self._limit_bytes

    def has(self, kind: Kind, key: str) -> bool:
        """Whether an entry is stored under ``key``. Only `find` checks that it is complete."""
        stand_in = self._substitute(has_substitute)
        here = self._place(kind, key)[0].is_file()
        return here or (stand_in is not None and stand_in.has(kind, key))

    def add(self, kind: Kind, key: str, entry: Entry, quiet: bool = False) -> bool:
        """Store ``entry`` under ``key``, in place of an older one. Returns whether that was
        possible.

        If the disk refuses it, the entry is kept until this process ends.

        Args:
            quiet: do not warn if the disk refuses.
        """
        path, name = self._place(kind, key)
        content = encode(entry, name)
        try:
            self._drafts.write(path, [content])
        except OSError as error:
            if not quiet:
                self._refused(error)
            stand_in = self._substitute(substitute)
            return stand_in is not None and stand_in.add(kind, key, entry, quiet=True)
        self._note(path)
        self._keep_limit(len(content))
        return True

    def add_weights(self, arrays: Iterable[npt.NDArray[Any]]) -> list[str] | None:
        """Store the bytes of arrays and return their names; None if not all can be stored."""
        arrays = list(arrays)
        try:
            return self.weights.add(arrays)
        except OSError as error:
            if not self._is_substitute:
                self._refused(error)
            stand_in = self._substitute(substitute)
            return None if stand_in is None else stand_in.add_weights(arrays)

    def drop(self, kind: Kind, key: str) -> None:
        """Remove the entry under ``key``, for example because it is of no use."""
        stand_in = self._substitute(has_substitute)
        if stand_in is not None:
            stand_in.drop(kind, key)
        path, _ = self._place(kind, key)
        self._used.discard(path)
        with suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)

    def with_scratch(self, size_bytes: int, work: Callable[[Path], _T]) -> _T:
        """The result of ``work`` for a private folder with room for ``size_bytes``.

        Raises:
            OSError: no disk of this machine can be written.
        """
        try:
            return in_scratch(self._drafts, size_bytes, work)
        except OSError as error:
            self._refused(error)
            raise

    @property
    def written_root(self) -> Path:
        """The folder in which other processes store entries for this one: the cache's own folder,
        or the folder with which this process replaces it because it cannot be written."""
        try:
            if self._substitute(has_substitute) is None:
                self._drafts.prepare()
        except OSError as error:
            self._refused(error)
            self._substitute(substitute)
        return self.root if self._stand_in is None else self._stand_in.root

    def _substitute(self, folder_of: Callable[[Path], Path | None]) -> "Cache | None":
        """The cache that replaces this one, if there is one; ``folder_of`` returns its folder."""
        if self._stand_in is None and not self._is_substitute:
            folder = folder_of(self.root)
            if folder is not None:
                self._stand_in = Cache(folder, _SUBSTITUTE_BYTES)
                self._stand_in._is_substitute = True
                self.weights.stand_in = self._stand_in.weights
        return self._stand_in

    def _place(self, kind: Kind, key: str) -> tuple[Path, str]:
        """File and full name of an entry. Other versions of coexec use other files."""
        name = f"{_MAKER} {kind} {key}"
        return self.root / kind / digest(name), name

    def _note(self, path: Path) -> None:
        self._used.add(path)
        for notes in _notes:
            notes.add(path)

    def _refused(self, error: OSError) -> None:
        warn_once(self.root, f"it cannot be written: {error.strerror or error}")

    def _keep_limit(self, added_bytes: int) -> None:
        """Remove old entries when the limit is reached.

        Sizes are read from the disk once in a process, and when the limit is reached.
        """
        if self._total_bytes is None:
            self._total_bytes = size_of(self.root, KINDS)
        else:
            self._total_bytes += added_bytes + self.weights.written_bytes
        self.weights.written_bytes = 0
        if self._total_bytes > self._limit_bytes:
            used: set[Path] = set()
            weights: set[str] = set()
            for other in _open:
                if other.root == self.root:
                    used |= other._used
                    weights |= other.weights.used
            self._total_bytes = trim(self.root, KINDS, self._limit_bytes, used, weights)
