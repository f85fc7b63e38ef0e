"""The cache folder: entries by kind and key, the weights that they share, and their limit."""

import os
import shutil
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import Literal, TypeVar, get_args

import platformdirs

from coexec.__about__ import __version__
from coexec.cache.entries import Entry, decode, encode
from coexec.cache.files import Disk, has_substitute, in_scratch, warn_once
from coexec.cache.limit import size_of, trim
from coexec.cache.weights import Weights, file_of
from coexec.keys import digest

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
        self.limit_bytes = limit_bytes
        self._disk = Disk(self.root)
        self._used: set[Path] = set()
        self._total_bytes: int | None = None
        self.weights = Weights(self._disk)
        _open.add(self)

    def find(self, kind: Kind, key: str) -> Entry | None:
        """The entry under ``key``; None if it is missing or damaged."""
        for root in self._disk.roots:
            entry = self._find(root, kind, key)
            if entry is not None:
                return entry
        return None

    def _find(self, root: Path, kind: Kind, key: str) -> Entry | None:
        place, name = place_of(kind, key)
        path = root / place
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

    def has(self, kind: Kind, key: str) -> bool:
        """Whether an entry is stored under ``key``. Only `find` checks that it is complete."""
        place, _ = place_of(kind, key)
        return any((root / place).is_file() for root in self._disk.roots)

    def add(self, kind: Kind, key: str, entry: Entry, quiet: bool = False) -> bool:
        """Store ``entry`` under ``key``, in place of an older one. Returns whether that was
        possible.

        If the disk refuses it or its weights, the entry is kept until this process ends.

        Args:
            quiet: do not warn if the disk refuses.
        """
        place, name = place_of(kind, key)
        other = has_substitute(self.root)
        has_all = other is None or all(file_of(self.root, w).is_file() for w in entry.weights)
        root = self._disk.write({place: encode(entry, name)}, kept=not has_all, quiet=quiet)
        if root is None:
            return False
        self._note(root / place)
        self._keep_limit()
        return True

    def drop(self, kind: Kind, key: str) -> None:
        """Remove the entry under ``key``, for example because it is of no use."""
        place, _ = place_of(kind, key)
        for path in (root / place for root in self._disk.roots):
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
            with suppress(OSError):  # then it is another place
                self._disk.drafts.mkdir(parents=True, exist_ok=True)
            return in_scratch(self._disk.drafts, size_bytes, work)
        except OSError as error:
            self._disk.refused(error)
            raise

    def _note(self, path: Path) -> None:
        self._used.add(path)
        for notes in _notes:
            notes.add(path)

    def _keep_limit(self) -> None:
        """Remove old entries when the limit is reached.

        Sizes are read from the disk once in a process, and when the limit is reached.
        """
        if self._total_bytes is None:
            self._total_bytes = size_of(self.root, KINDS)
        else:
            self._total_bytes += self._disk.added_bytes
        self._disk.added_bytes = 0
        if self._total_bytes > self.limit_bytes:
            used: set[Path] = set()
            weights: set[str] = set()
            for other in _open:
                if other.root == self.root:
                    used |= other._used
                    weights |= other.weights.used
            self._total_bytes = trim(self.root, KINDS, self.limit_bytes, used, weights)


def place_of(kind: Kind, key: str) -> tuple[PurePath, str]:
    """File and full name of an entry. Other versions of coexec use other files."""
    name = f"{_MAKER} {kind} {key}"
    return PurePath(kind, digest(name)), name
