"""Files appear completely or not at all: they are written as drafts and renamed.

A draft has the name ``coexec-<host>-<process>-<random>``. `sweep` removes those of processes that
have ended, and those of other hosts after a week.
"""

import atexit
import errno
import os
import shutil
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePath
from typing import TypeVar

from coexec.errors import CacheWarning
from coexec.keys import digest

_T = TypeVar("_T")

DRAFTS = "drafts-2"
"""The folder of a cache for drafts. Older versions remove what they do not know from ``drafts``."""
MEMORY = Path("/dev/shm")
"""A folder whose files are in memory."""
_MODE = 0o666
"""Mode before the umask, as for every file that a program makes."""
_WEEK_S = 7 * 86400.0
_lock = threading.Lock()
_substitutes: dict[Path, Path | None] = {}
"""Replacement by cache folder; None: no disk of this machine can be written."""
_warned: set[str] = set()


def write_new(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    """Make a file with these contents.

    Raises:
        OSError: the file exists, or cannot be written; a part of it may be left.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _MODE)
    try:
        for part in parts:
            data = memoryview(part).cast("B")
            while data:
                data = data[os.write(handle, data) :]
    finally:
        os.close(handle)


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
    draft = (drafts or path.parent) / (_prefix() + os.urandom(8).hex())
    try:
        write_new(draft, parts)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise


def _prefix(pid: int | None = None) -> str:
    """The begin of the names of the drafts of this process, or of another one of this host."""
    space = ""
    with suppress(OSError):  # containers that share a folder count their processes separately
        space = os.readlink("/proc/self/ns/pid")
    return f"coexec-{digest(os.uname().nodename, space, digits=8)}-{pid or os.getpid()}-"


def sweep(folder: Path) -> None:
    """Remove the drafts in ``folder`` whose process has ended; nothing if it cannot be read."""
    with suppress(OSError):
        for item in list(os.scandir(folder)):
            with suppress(OSError, ValueError):
                if item.stat(follow_symlinks=False).st_uid == os.getuid() and _is_left(item):
                    _remove(item.path)


def _is_left(item: "os.DirEntry[str]") -> bool:
    """Whether a draft has no owner any more.

    Raises:
        OSError, ValueError: it is no draft, or its owner is alive.
    """
    kind, _, pid, _ = item.name.split("-")
    if not item.name.startswith(_prefix(int(pid))):
        return kind == "coexec" and time.time() - item.stat().st_mtime > _WEEK_S
    with suppress(ProcessLookupError):
        os.kill(int(pid), 0)
        return False
    return True


def _remove(path: str | Path, pid: int | None = None) -> None:
    """Remove a file or folder; in the process ``pid`` only: a forked child leaves it alone."""
    if pid is None or pid == os.getpid():
        with suppress(OSError):
            os.unlink(path)
        shutil.rmtree(path, ignore_errors=True)


def process_folder(*places: Path) -> Path:
    """A private folder, in the first of the places that can be written; removed when this process
    ends.

    Raises:
        OSError: none of them can be written.
    """
    for place in places:
        sweep(place)
    folder = _new_folder(places)
    atexit.register(_remove, folder, os.getpid())
    return folder


@contextmanager
def private_folder(*places: Path) -> Iterator[Path]:
    """An empty folder in the first of the places that can be written, by default outside of any
    cache; removed at the end.

    Raises:
        OSError: none of them can be written.
    """
    folder = _new_folder(places or _temporary())
    try:
        yield folder
    finally:
        _remove(folder)


def _new_folder(places: Sequence[Path]) -> Path:
    for place in places[:-1]:
        with suppress(OSError):
            return Path(tempfile.mkdtemp(prefix=_prefix(), dir=place))
    return Path(tempfile.mkdtemp(prefix=_prefix(), dir=places[-1]))


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
        """Bytes that were written into the cache folder since somebody set this to 0."""
        sweep(self.drafts)

    @property
    def roots(self) -> list[Path]:
        """Both folders, in the order in which they are read."""
        other = has_substitute(self.root)
        return [self.root] if other is None else [self.root, other]

    def write(
        self, place: PurePath, content: bytes | memoryview, *, quiet: bool = False
    ) -> Path | None:
        """Write the file ``place`` of the cache; return its path, or None if neither folder can be
        written.

        Args:
            quiet: do not warn if the disk refuses.
        """
        try:
            path = _write(self.root, place, content)
        except OSError as error:
            if not quiet:
                self.refused(error)
            with suppress(OSError):
                other = substitute(self.root)
                return None if other is None else _write(other, place, content)
            return None
        self.added_bytes += len(content)
        return path

    @property
    def written_root(self) -> Path:
        """The folder that this process writes."""
        try:
            self.drafts.mkdir(parents=True, exist_ok=True)
            with private_folder(self.drafts):
                return self.root
        except OSError as error:
            self.refused(error)
            substitute(self.root)
        return self.roots[-1]

    def refused(self, error: OSError) -> None:
        """Warn once that the folder cannot be written."""
        warn_once(self.root, f"it cannot be written: {error.strerror or error}")


def _write(root: Path, place: PurePath, content: bytes | memoryview) -> Path:
    path = root / place
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)  # not written by coexec; a file cannot replace a folder
    write_whole(path, [content], root / DRAFTS)
    return path


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
