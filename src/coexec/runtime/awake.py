"""Keep cores awake while a run is under way.

A core without work halts. Waking it takes 3 to 50 us, and on a virtual machine whose host is busy
it may take milliseconds, as the host gives a halted processor to somebody else. In a plan for
several devices that happens at each hand-over. So each core gets a *keeper*, which is busy with
nothing from the begin of a run to its end: the core does not halt. A keeper has the lowest priority
(Linux: SCHED_IDLE, see sched(7)), so whatever else becomes ready on its core takes its place at
once. A fair scheduler gives even that priority a turn now and then, above all after it has slept,
and looks again at the next tick, up to 10 ms later: so a keeper offers its turn to others all the
time.

A thread of this process cannot do that: it would be displaced while it holds Python's interpreter
lock, and all other threads would wait for it. Keepers are processes.
"""

import mmap
import os
import subprocess
import sys
import threading
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary, finalize

from coexec import processes

__all__ = ["Awake"]

_MOST_CORES = 16
"""A keeper is a process: more cores are left to themselves."""
_RATIONS = ("/sys/fs/cgroup/cpu.max", "/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
"""CPU time of a container, of both versions of control groups; see cgroups(7)."""
_SLOTS = 4096
"""Executors of a process that may keep cores awake. Each has a byte that says whether it runs."""
_END_S = 0.1
"""To wait for a keeper that was told to end. One that takes longer is asked again later."""
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
"""The program of a keeper: a core, the file with the bytes of the executors, and a pipe that gets a
byte when a run begins, and whose end is also the keeper's."""


class Awake:
    """Keeps some cores awake between `begin` and `end`."""

    def __init__(self, cores: Collection[int]) -> None:
        """``cores``: fewer than two or very many are left to themselves, as are all where the
        system has no idle priority or starts no processes, and where CPU time is rationed."""
        self._board: _Board | None = None
        self._slot = 0
        self._keepers: list[_Keeper] = []
        if 1 < len(cores) <= _MOST_CORES and _possible():
            try:
                self._board = board = _board()
                self._slot = board.slot(self)
                self._keepers = [board.keeper(core) for core in sorted(cores)]
            except OSError:
                self.close()

    def begin(self) -> None:
        """From now on the cores stay awake."""
        if self._board is not None:
            self._board.running[self._slot] = 1
            for keeper in self._keepers:
                keeper.ring()

    def end(self) -> None:
        """From now on they halt when they have nothing to do. May be called again."""
        if self._board is not None:
            self._board.running[self._slot] = 0

    def close(self) -> None:
        """Let the cores alone from now on. May be called again."""
        self.end()
        self._keepers, self._board = [], None


def _possible() -> bool:
    """Not where a container has less CPU time than cores: keepers would use it up."""
    if not (hasattr(os, "SCHED_IDLE") and processes.can_start()):
        return False
    for path in _RATIONS:
        with suppress(OSError):
            return Path(path).read_text().split()[0] in ("max", "-1")
    return True


class _Keeper:
    """The process of one core. It ends with this object, and with this process."""

    def __init__(self, core: int, board: int) -> None:
        """
        Raises:
            OSError: it could not be started.
        """
        listens, self._rings = os.pipe()
        try:
            words = [str(number) for number in (core, board, listens)]
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _KEEPER, *words],
                pass_fds=(board, listens), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except OSError:
            os.close(self._rings)
            raise
        finally:
            os.close(listens)
        os.set_blocking(self._rings, False)
        finalize(self, _end, self._rings, process)

    def ring(self) -> None:
        """Tell it that a run has begun."""
        with suppress(OSError):  # it has ended, or has not listened for long: its core may halt
            os.write(self._rings, b"\1")


_ending: "list[subprocess.Popen[bytes]]" = []
"""Keepers that were told to end and have not yet."""


def _end(rings: int, process: "subprocess.Popen[bytes]") -> None:
    os.close(rings)
    process.kill()
    _ending.append(process)
    with suppress(subprocess.TimeoutExpired):  # others keep its core too busy for it to end
        process.wait(_END_S)
    _ending[:] = [process for process in _ending if process.poll() is None]


class _Board:
    """The bytes of this process's executors, and its keepers."""

    def __init__(self) -> None:
        """
        Raises:
            OSError: there is no memory or no file left.
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
        """A byte for ``user``, as long as that lives.

        Raises:
            OSError: there is none left.
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
        """That of a core: one for all users.

        Raises:
            OSError: it could not be started.
        """
        with self._lock:
            keeper = self._keepers.get(core)
            if keeper is None:
                self._keepers[core] = keeper = _Keeper(core, self._file)
            return keeper


_boards: list[_Board] = []
_lock = threading.Lock()


def _board() -> _Board:
    """That of this process; one that it has from before a fork belongs to its parent."""
    with _lock:
        if not _boards or _boards[0].process != os.getpid():
            _boards[:] = [_Board()]
        return _boards[0]
