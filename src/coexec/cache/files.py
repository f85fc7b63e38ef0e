"""Files appear completely or not at all: they are written as drafts and renamed.

A draft has the name ``coexec-<kernel>-<random>`` and is locked for as long as a process has it
open; a folder has a locked file of its name and ``.lock`` beside it. The kernel releases a lock
when the process, and the children that it has forked, have ended or closed it. `sweep` removes the
drafts that nobody has locked. Some network disks keep locks within each machine, and some have
none: drafts of other machines, and those that cannot be locked, are removed after a week.
"""

import atexit
import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePath
from typing import TypeVar

from coexec.errors import CacheWarning
from coexec.keys import digest

_T = TypeVar("_T")

DRAFTS = "drafts"
"""The folder of a cache for drafts."""
MEMORY = Path("/dev/shm")
"""A folder whose files are in memory."""
_MODE = 0o666
"""Mode before the umask, as for every file that a program makes."""
_WEEK_S = 7 * 86400.0
_LOCK = ".lock"
_DRAFT = re.compile(rf"({DRAFTS}/|.*/coexec-)[0-9a-f]{{8}}-[0-9a-f]{{32}}({_LOCK})?")
"""Folder and name of a draft; those of earlier versions have no "coexec-"."""
_SUBSTITUTE_BYTES = 2 << 30
"""Limit of the folder that replaces a cache that cannot be written; it may lie in memory."""
_lock = threading.Lock()
_substitutes: dict[Path, Path | None] = {}
"""Replacement by cache folder; None: no disk of this machine can be written."""
_warned: set[str] = set()


def write_whole(
    path: Path, parts: Iterable[bytes | memoryview], drafts: Path | None = None
) -> None:
    """Replace ``path`` by a file with these contents, in one step.

    Args:
        drafts: the folder for the draft, on the same disk; made if there is none. Without it, the
            draft is beside ``path``.

    Raises:
        OSError: it cannot be written. Nothing has changed then.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if drafts is not None:
        drafts.mkdir(exist_ok=True)
    with _draft(drafts or path.parent) as (draft, handle):
        _write_parts(handle, parts)
        os.close(os.dup(handle))  # network disks report at a close that they are full
        os.replace(draft, path)


def _write_parts(handle: int, parts: Iterable[bytes | memoryview]) -> None:
    for part in parts:
        data = memoryview(part).cast("B")
        while data:
            data = data[os.write(handle, data) :]


@contextmanager
def _draft(place: Path) -> Iterator[tuple[Path, int]]:
    """A new file and its handle; removed at the end, unless it was renamed."""
    draft, handle = _claimed(place)
    try:
        yield draft, handle
    finally:
        _remove(draft)
        os.close(handle)


def _claimed(place: Path, is_folder: bool = False) -> tuple[Path, int]:
    """A new file in ``place``, and the handle that keeps it locked.

    Args:
        is_folder: the file is the lock of a new folder.

    Raises:
        OSError: they cannot be made, or the folder cannot be locked.
    """
    draft = place / (_prefix() + os.urandom(16).hex() + _LOCK * is_folder)
    handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
        except OSError:
            if is_folder:  # it may be in use for longer than a week
                raise
        is_there = os.fstat(handle).st_nlink > 0
        if is_folder and is_there:
            draft.with_suffix("").mkdir(0o700)
    except BaseException:
        _remove(draft)
        os.close(handle)
        raise
    if is_there:
        return draft, handle
    os.close(handle)  # another process has removed it before it was locked
    return _claimed(place, is_folder)


@cache
def _prefix() -> str:
    """The begin of the names of the drafts of this kernel, which knows all locks on them."""
    kernel = os.uname().nodename
    with suppress(OSError):
        kernel = Path("/proc/sys/kernel/random/boot_id").read_text()
    return f"coexec-{digest(kernel, digits=8)}-"


def sweep(folder: Path) -> None:
    """Remove the drafts in ``folder`` that no process uses; nothing if it cannot be read."""
    with suppress(OSError):
        for item in list(os.scandir(folder)):
            if _DRAFT.fullmatch(f"{folder.name}/{item.name}"):
                _remove_unused(folder / item.name)


def _remove_unused(draft: Path) -> None:
    """Remove a draft of this user, unless a process has locked it."""
    with suppress(OSError):
        status = draft.lstat()
        old = time.time() - status.st_mtime > _WEEK_S
        own = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
        if not own or not (old or draft.name.startswith(_prefix())):
            return
        handle = os.open(draft, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            if _is_free(handle, unknown=old):
                _remove(draft)
        finally:
            os.close(handle)


def _is_free(handle: int, unknown: bool) -> bool:
    """Whether no other process has locked a file; ``unknown`` on a disk without locks."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return unknown
    return True


def _remove(draft: Path) -> None:
    """Remove a draft, and the folder whose lock it is. If the folder cannot be removed, its lock
    stays for the next sweep."""
    folder = draft.with_suffix("")
    with suppress(OSError):
        if draft.suffix == _LOCK and folder.is_dir():
            shutil.rmtree(folder)
        draft.unlink()


def process_folder(*places: Path) -> Path:
    """A private folder, in the first of the places that can be written; removed when this process
    and the children that it has forked have ended.

    Raises:
        OSError: none of them can be written.
    """
    for place in places:
        sweep(place)
    lock, handle = _new_folder(places)
    atexit.register(_leave, lock, handle)
    return lock.with_suffix("")


def _leave(lock: Path, handle: int) -> None:
    """Remove a folder, unless a parent or child of this process still uses it."""
    os.close(handle)
    _remove_unused(lock)


@contextmanager
def private_folder(*places: Path) -> Iterator[Path]:
    """An empty folder in the first of the places that can be written, by default outside of any
    cache; removed at the end.

    Raises:
        OSError: none of them can be written.
    """
    lock, handle = _new_folder(places or _temporary())
    try:
        yield lock.with_suffix("")
    finally:
        _remove(lock)
        os.close(handle)


def _new_folder(places: Sequence[Path]) -> tuple[Path, int]:
    """The lock of a new folder, in the first of the places that can be written, and its handle."""
    for place in places[:-1]:
        with suppress(OSError):
            return _claimed(place, is_folder=True)
    return _claimed(places[-1], is_folder=True)


def _temporary() -> list[Path]:
    with suppress(OSError):
        return [Path(tempfile.gettempdir()), MEMORY]
    return [MEMORY]


def in_scratch(drafts: Path, size_bytes: int, work: Callable[[Path], _T]) -> _T:
    """The result of ``work`` for a private folder, in the first location that has room for it:
    ``drafts``, the system's folder for temporary files, or memory.

    Args:
        size_bytes: most bytes that ``work`` writes.

    Raises:
        OSError: none of the locations can be written.
    """
    refused: OSError = OSError(errno.ENOSPC, "no space left on device")
    for place in (drafts, *_temporary()):
        try:
            with private_folder(place) as folder:
                if shutil.disk_usage(folder).free < size_bytes:
                    continue
                try:
                    return work(folder)
                except Exception as error:
                    # Engines report a full disk with errors of their own, or not at all: they leave
                    # files that end too early. The free space decides.
                    full = shutil.disk_usage(folder).free < size_bytes // 4
                    if isinstance(error, OSError) or not full:
                        raise
        except OSError as error:
            refused = error
    raise refused


class Disk:
    """A cache folder, and the folder that replaces it where the disk refuses a write."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.drafts = root / DRAFTS
        self.added_bytes = 0
        """Bytes that were written into the cache folder since this was set to 0."""
        sweep(self.drafts)

    @property
    def roots(self) -> list[Path]:
        """Both folders, in the order in which they are read."""
        other = has_substitute(self.root)
        return [self.root] if other is None else [self.root, other]

    def write(
        self,
        files: Mapping[PurePath, bytes | memoryview],
        *,
        kept: bool = False,
        quiet: bool = False,
    ) -> Path | None:
        """Write files of the cache, all of them into one folder; return it, or None if neither
        folder can be written.

        Args:
            files: their contents, by their place in the folder.
            kept: into the substitute.
            quiet: do not warn if the disk refuses.
        """
        if not kept:
            try:
                self.added_bytes += _write(self.root, files)
                return self.root
            except OSError as error:
                if not quiet:
                    self.refused(error)
        other = substitute(self.root)
        with suppress(OSError):
            if other is not None and _has_room(other, files):
                _write(other, files)
                return other
        return None

    def refused(self, error: OSError) -> None:
        """Warn once that the folder cannot be written."""
        warn_once(self.root, f"it cannot be written: {error.strerror or error}")


def _write(root: Path, files: Mapping[PurePath, bytes | memoryview]) -> int:
    """Write all of the files, and return their bytes.

    Raises:
        OSError: the disk refuses; none of them is left then.
    """
    written: list[Path] = []
    try:
        for place, content in files.items():
            path = root / place
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)  # not written by coexec; a file cannot replace a folder
            write_whole(path, [content], root / DRAFTS)
            written.append(path)
    except OSError:
        for path in written:
            with suppress(OSError):
                path.unlink()
        raise
    return sum(map(len, files.values()))


def _has_room(folder: Path, files: Mapping[PurePath, bytes | memoryview]) -> bool:
    """Whether a substitute with these files stays below its limit."""
    size_bytes = sum(map(len, files.values()))
    for parent, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # helpers may rename it meanwhile
                size_bytes += os.lstat(os.path.join(parent, name)).st_size
    return size_bytes <= _SUBSTITUTE_BYTES


def has_substitute(root: Path) -> Path | None:
    """The folder that replaces ``root``, if an entry had to be kept there."""
    return _substitutes.get(root)


def substitute(root: Path) -> Path | None:
    """The folder that replaces a cache that cannot be written, for as long as this process lasts,
    made if there is none; None if none can be made.

    Kernels, measurements and lowered models are used several times in a process, by its threads and
    by child processes.
    """
    with _lock:
        if root not in _substitutes:
            _substitutes[root] = None
            with suppress(OSError):
                _substitutes[root] = process_folder(*_temporary())
        return _substitutes[root]


def never_warn(root: Path) -> None:
    """Do not warn about a cache in a temporary folder: its user can do nothing about it."""
    _warned.add(str(root))


def warn_once(root: Path, problem: str) -> None:
    """Warn about a problem of the cache in ``root``, unless this process has warned about it
    before."""
    if str(root) in _warned:
        return
    _warned.add(str(root))
    warnings.warn(
        f"the cache folder {str(root)!r}: {problem}; coexec carries on, and what it "
        f"cannot keep there is made again in the next process. Delete the folder, make room or "
        f"make it writable, or choose another with --cache DIR (InferenceSession: cache=DIR)",
        CacheWarning,
        stacklevel=3,
    )
