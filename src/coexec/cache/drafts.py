"""Files appear in the cache completely or not at all: they are written elsewhere and renamed.

"Elsewhere" is a folder of the writer's own, ``drafts/<host>-<unique>``, beside a file of that name
and ``.lock``, which the writer keeps locked. The operating system releases the lock when the writer
ends, also if it is killed. The next process that opens the cache removes drafts without an owner.
"""

import fcntl
import itertools
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coexec.cache.new_file import write_new
from coexec.keys import digest

__all__ = ["Drafts"]

_DAY_S = 86400.0
"""After this time, drafts of other hosts and drafts on disks without locks have no owner."""
_LOCK = ".lock"


class Drafts:
    """The draft folder of one writer, made when it is first needed."""

    def __init__(self, root: Path) -> None:
        """``root`` is the cache folder. Drafts are on the same disk, because files are renamed into
        it."""
        self._parent = root / "drafts"
        self._own: Path | None = None
        self._pid = 0
        self._lock = -1
        self._numbers = itertools.count()

    def sweep(self) -> None:
        """Remove drafts whose owner has ended."""
        try:
            names = {item.name for item in os.scandir(self._parent)}
        except OSError:
            return  # there are none
        for name in sorted(names):
            owner = name.removesuffix(_LOCK)
            lock = self._parent / (owner + _LOCK)
            if name != lock.name and (owner + _LOCK in names or lock.exists()):
                continue  # it is handled together with its lock
            with suppress(OSError):
                _remove_if_abandoned(self._parent / owner, lock)

    def write(self, target: Path, parts: Iterable[bytes | memoryview]) -> None:
        """Replace ``target`` by a file with these contents, in one step.

        Raises:
            OSError: it cannot be written. Nothing has changed then.
        """
        parts = list(parts)
        try:
            self._write(target, parts)
        except FileNotFoundError:  # the folder of drafts, or the cache, was deleted
            self.close()
            self._write(target, parts)

    def _write(self, target: Path, parts: Iterable[bytes | memoryview]) -> None:
        draft = self._folder() / str(next(self._numbers))
        try:
            write_new(draft, parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)  # not written by coexec; a file cannot replace a folder
            os.replace(draft, target)
        except BaseException:
            with suppress(OSError):
                draft.unlink()
            raise

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty folder for temporary files.

        Raises:
            OSError: none can be made.
        """
        folder = Path(tempfile.mkdtemp(dir=self._folder()))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def prepare(self) -> Path:
        """The draft folder, made if there is none.

        Raises:
            OSError: it cannot be made.
        """
        return self._folder()

    def _folder(self) -> Path:
        if self._own is None or self._pid != os.getpid():
            self._parent.mkdir(parents=True, exist_ok=True)
            self._own, self._lock = _claim(self._parent)
            self._pid = os.getpid()
            self._end = weakref.finalize(self, _give_back, self._own, self._lock, self._pid)
        with suppress(OSError):
            os.utime(self._lock)  # without locks, a recent time shows that it is in use
        return self._own

    def close(self) -> None:
        """Remove the draft folder. The next write makes another."""
        if self._own is not None:
            self._end()
            self._own = None


def _host() -> str:
    """A digest that distinguishes this machine, or container, from others that share the folder."""
    return digest(os.uname().nodename, digits=8)


def _claim(parent: Path) -> tuple[Path, int]:
    """A new folder, and the handle of its lock.

    Raises:
        OSError: it cannot be made.
    """
    while True:
        own = parent / f"{_host()}-{os.urandom(16).hex()}"
        lock = own.with_name(own.name + _LOCK)
        handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with suppress(OSError):  # on a disk without locks, its age protects it
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another process may have removed it as abandoned before it was locked.
            if lock.exists():
                own.mkdir()
                return own, handle
        except BaseException:
            _give_back(own, handle, os.getpid())
            raise
        os.close(handle)


def _give_back(own: Path, handle: int, pid: int) -> None:
    """Remove a draft folder; a forked child leaves that to its parent."""
    if pid == os.getpid():
        shutil.rmtree(own, ignore_errors=True)
        with suppress(OSError):
            own.with_name(own.name + _LOCK).unlink()
        with suppress(OSError):
            os.close(handle)


def _remove_if_abandoned(folder: Path, lock: Path) -> None:
    """Remove a draft folder and its lock if the owner has ended.

    Raises:
        OSError: they cannot be removed.
    """
    try:
        handle = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        shutil.rmtree(folder, ignore_errors=True)
        return
    try:
        old = time.time() - os.fstat(handle).st_mtime > _DAY_S
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        except OSError:  # this disk has no locks
            mine = False
        else:
            mine = folder.name.startswith(_host())
        if mine or old:
            shutil.rmtree(folder, ignore_errors=True)
            lock.unlink()
    finally:
        os.close(handle)
