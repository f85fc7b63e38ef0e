"""The team in Python, for machines without the C++ loop, and as the reference of native/team.hpp.

The caller's thread computes all tiles in their order, so no tile has to wait.
"""

import threading
import time
from collections.abc import Callable, Sequence
from time import perf_counter

from coexec.arrays import Array
from coexec.engines.tiles import TiledLaunch, calls_of, check_launches, thread_memory
from coexec.runtime.steps import TileSpan

_LOOK_S = 0.01
"""Longest time between two looks of the caller's thread."""
_PAUSE_S = 0.0002


class TwinTeam:
    """A `TileTeam` of one thread. Its other threads only wait for the end."""

    def __init__(self, threads: int, spin_s: float) -> None:
        if not threads:
            raise ValueError("a team has no thread")
        self._threads = threads
        self._added: list[tuple[Sequence[TiledLaunch], int, Array]] = []
        self._spans: list[list[TileSpan]] = []
        self._end = threading.Event()
        self._stopped = self._paused = False
        self._inside = 0
        """The thread that is inside of a tile; 0: none."""

    def add(self, launches: Sequence[TiledLaunch], slots: int) -> int:
        check_launches(launches, slots)
        self._added.append((tuple(launches), slots, thread_memory(launches)))
        self._spans.append([(0.0, 0.0, 0)] * sum(len(launch.tiles) for launch in launches))
        return len(self._added) - 1

    def run(
        self,
        number: int,
        slots: Sequence[int],
        look: Callable[[], object] | None = None,
        timed: bool = False,
    ) -> bool:
        launches, slot_count, memory = self._added[number]
        if len(slots) != slot_count:
            raise ValueError("a run sets another number of slots than its launches have")
        if self._end.is_set():
            return False
        self._stopped = False
        spans: list[TileSpan] = []
        look_s = time.monotonic() + _LOOK_S
        for launch in launches:
            for call in calls_of(launch, slots, memory):
                if look is not None and time.monotonic() > look_s:
                    look()
                    look_s = time.monotonic() + _LOOK_S
                if not self._enter():
                    return False
                begin_s = perf_counter()
                try:
                    call()
                finally:
                    self._inside = 0
                spans.append((begin_s, perf_counter(), 0))
        if timed:
            self._spans[number] = spans
        return not self._stopped

    def _enter(self) -> bool:
        """Note that the caller's thread is inside of a tile. False if the run was stopped."""
        self._inside = threading.get_ident()
        while self._paused and not self._stopped:
            self._inside = 0
            time.sleep(_PAUSE_S)
            self._inside = threading.get_ident()
        if self._stopped:
            self._inside = 0
        return not self._stopped

    def spans(self, number: int) -> Sequence[TileSpan]:
        return self._spans[number]

    def serve(self, device: int) -> None:
        self._check(device)
        self._end.wait()

    def rests(self, device: int) -> bool:
        self._check(device)
        return True

    def stop(self) -> None:
        self._stopped = True

    def end(self) -> None:
        self._end.set()
        self.stop()

    def pause(self) -> None:
        self._paused = True

    def pauses(self) -> bool:
        return self._inside in (0, threading.get_ident())

    def go_on(self) -> None:
        self._paused = False

    def _check(self, device: int) -> None:
        if device >= self._threads:
            raise IndexError("no thread has this number")
