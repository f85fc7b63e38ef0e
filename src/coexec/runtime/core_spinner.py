"""Keep cores awake while a run is under way.

A core without work halts. Waking it takes 3 to 50 us. On a virtual machine whose host is busy it
may take milliseconds, because the host uses a halted processor for other work. In a plan for
several devices this happens at each hand-over from one device to another. So each core gets a
*keeper*, a process that spins from the begin of a run to its end: the core does not halt.

A keeper has the lowest priority (Linux: SCHED_IDLE, see sched(7)). Any other thread that becomes
ready on its core displaces it at once. A fair scheduler runs even a thread of that priority now and
then, above all after it has slept, and checks again at the next tick, up to 10 ms later. So a
keeper yields its core all the time.

A thread of this process cannot be a keeper: it would be displaced while it holds Python's
interpreter lock, and all other threads would wait for the lock. So keepers are processes.
"""

import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary, finalize

from coexec import processes

__all__ = ["Awake"]

_MOST_CORES = 16
"""Most cores that are kept awake: each keeper is a process. With more cores, there is no keeper."""
_SLOTS = 4096
"""Most executors of a process that may keep cores awake. Each has a byte: 1 while it runs."""
_END_S = 0.1
"""Seconds to wait for the end of a killed keeper. If it takes longer, it is polled again later."""
_KEEPER = """
import mmap, os, sys
core, board, bell = map(int, sys.argv[1:])
os.sched_setaffinity(0, {core})
os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
running, parent = mmap.mmap(board, 0, prot=mmap.PROT_READ), os.getppid()
while os.read(bell, 4096):
    while running.find(b"\\1") >= 0 and os.getppid() == parent:
        os.sched_yield()
        for _ in range(100):
            pass
"""
"""The program of a keeper. Its arguments are a core, the file with the bytes of the executors, and
a pipe. The pipe gets a byte when a run begins; the keeper ends when the pipe is closed."""


class Awake:
    """Keeps some cores awake between `begin` and `end`."""

    ration_files: Sequence[str] = (
        "/sys/fs/cgroup/cpu.max",
        "/sys/fs/cgroup/cpu/cpu.cfs_quota_us",
    )
    """Files with the limit of a container's CPU time, in both versions of control groups; see
    cgroups(7)."""

    def __init__(self, cores: Collection[int]) -> None:
        """
        Args:
            cores: the cores to keep awake. None is kept awake if there are fewer than two or more
                than `_MOST_CORES`, if the system has no idle priority or cannot start processes, or
                if the container's CPU time is limited.
        """
        self._board: _Board | None = None
        self._slot = 0
        self._keepers: list[_Keeper] = []
        if 1 < len(cores) <= _MOST_CORES and _possible(self.ration_files):
            try:
                self._board = board = _board()
                self._slot = board.slot(self)
                self._keepers = [board.keeper(core) for core in sorted(cores)]
            except OSError:
                self.close()

    def begin(self) -> None:
        """Keep the cores awake from now on."""
        if self._board is not None:
            self._board.running[self._slot] = 1
            for keeper in self._keepers:
                keeper.ring()

    def end(self) -> None:
        """Let the cores halt again when they have no work. May be called again."""
        if self._board is not None:
            self._board.running[self._slot] = 0

    def close(self) -> None:
        """Let the cores halt again, and release the keepers. May be called again."""
        self.end()
        self._keepers, self._board = [], None


def _possible(ration_files: Sequence[str]) -> bool:
    """Whether keepers may be used: not if the container's CPU time is limited, because keepers
    would use it up."""
    if not (hasattr(os, "SCHED_IDLE") and processes.can_start()):
        return False
    for path in ration_files:
        with suppress(OSError):
            return Path(path).read_text().split()[0] in ("max", "-1")
    return True


class _Keeper:
    """The keeper of one core. The process ends with this object, and with this process."""

    def __init__(self, core: int, board: int) -> None:
        """
        Raises:
            OSError: it could not be started.
        """
        read_end, self._rings = os.pipe()
        try:
            words = [str(number) for number in (core, board, read_end)]
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _KEEPER, *words],
                pass_fds=(board, read_end),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            os.close(self._rings)
            raise
        finally:
            os.close(read_end)
        os.set_blocking(self._rings, False)
        finalize(self, _end, self._rings, process)

    def ring(self) -> None:
        """Wake the keeper, because a run has begun."""
        # It has ended, or the pipe is full because it has not read for long: its core may halt.
        with suppress(OSError):
            os.write(self._rings, b"\1")


_ending: "list[subprocess.Popen[bytes]]" = []
"""Keepers that were killed and have not ended yet."""


def _end(rings: int, process: "subprocess.Popen[bytes]") -> None:
    os.close(rings)
    process.kill()
    _ending.append(process)
    with suppress(subprocess.TimeoutExpired):  # its core may be too busy for it to end soon
        process.wait(_END_S)
    _ending[:] = [process for process in _ending if process.poll() is None]


class _Board:
    """The keepers of this process, and the shared file with a byte for each of its executors."""

    def __init__(self) -> None:
        """
        Raises:
            OSError: no memory or no file descriptor is left.
        """
        self.process = os.getpid()
        self._file = os.memfd_create("coexec")
        finalize(self, os.close, self._file)
        os.ftruncate(self._file, _SLOTS)
        self.running = mmap.mmap(self._file, _SLOTS)
        self._keepers: WeakValueDictionary[int, _Keeper] = WeakValueDictionary()
        self._slots = list(range(_SLOTS))
        self._lock = threading.Lock()

    def slot(self, user: object) -> int:
        """Index of a byte for ``user``. It is free again when ``user`` is collected.

        Raises:
            OSError: no byte is left.
        """
        with self._lock:
            if not self._slots:
                raise OSError(f"more than {_SLOTS} executors keep cores awake")
            slot = self._slots.pop()
        finalize(user, self._returned, slot)
        return slot

    def _returned(self, slot: int) -> None:
        self.running[slot] = 0
        self._slots.append(slot)

    def keeper(self, core: int) -> _Keeper:
        """The keeper of a core. All users of the core share it.

        Raises:
            OSError: its process could not be started.
        """
        with self._lock:
            keeper = self._keepers.get(core)
            if keeper is None:
                self._keepers[core] = keeper = _Keeper(core, self._file)
            return keeper


_boards: list[_Board] = []
_lock = threading.Lock()


def _board() -> _Board:
    """The board of this process. A board from before a fork belongs to the parent process."""
    with _lock:
        if not _boards or _boards[0].process != os.getpid():
            _boards[:] = [_Board()]
        return _boards[0]
