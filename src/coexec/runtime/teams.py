"""A team with its threads: the cores of a device compute launches together, in tiles.

`native/team.hpp` describes how threads find their tiles.
"""

import os
import time
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Protocol

from coexec.engines.tiles import TiledLaunch
from coexec.errors import ClosedError, UnfinishedError
from coexec.runtime import process_fork
from coexec.runtime.device_threads import DeviceThreads, bind_thread
from coexec.runtime.loops import loop_reason
from coexec.runtime.steps import ServedThreads
from coexec.runtime.twin_team import TileSpan, TwinTeam

_REST_S = 10.0
"""Seconds to wait for threads that compute for a run that was interrupted."""
_PAUSE_S = 0.0005


class TileTeam(ServedThreads, Protocol):
    """Computes launches. Thread 0 calls `run`, each other one `serve`."""

    def add(self, launches: Sequence[TiledLaunch], slots: int) -> int:
        """Prepare launches, between two runs. Returns their number for `run`.

        Raises:
            IndexError: a tile waits for no earlier one, or a slot does not exist.
        """
        ...

    def run(
        self,
        number: int,
        slots: Sequence[int],
        look: Callable[[], object] | None = None,
        timed: bool = False,
    ) -> bool:
        """Compute launches once. Returns whether all have ended: False after `stop` or `end`.

        ``slots``, ``look`` and ``timed``: as of `RunLoop.run`.
        """
        ...

    def spans(self, number: int) -> Sequence[TileSpan]:
        """When each tile was computed in the latest timed run, in the order of launches."""
        ...


@cache
def team_classes() -> dict[str, Callable[[int, float], TileTeam]]:
    """The teams by name, the fastest one first."""
    try:
        return {"native": import_module("coexec.runtime._loop").NativeTeam, "twin": TwinTeam}
    except ImportError:
        return {"twin": TwinTeam}


class CoreTeam:
    """A team whose threads are bound to cores, one to each. One thread at a time may use it.

    In a forked child, the threads are made anew. The launches use the same memory there.
    """

    def __init__(
        self, cores: Sequence[int], spin_s: float, name: str = "", kind: str | None = None
    ) -> None:
        """
        Args:
            cores: of which the caller's thread is bound to the first one during a run.
            spin_s: how long a thread that waits keeps its core busy before it sleeps.
            name: of the device, for the names of threads.
            kind: of `team_classes`; None: as the run loops of this process.
        """
        self._cores, self._name = tuple(cores), name
        self._make = team_classes()[kind or loop_reason()[0]]
        self._spin_s = spin_s
        self._added: list[tuple[Sequence[TiledLaunch], int]] = []
        self._closed = self._running = self._abandoned = False
        self._start()
        process_fork.watch(self)

    def _start(self) -> None:
        self._team = self._make(len(self._cores), self._spin_s)
        for launches, slots in self._added:
            self._team.add(launches, slots)
        others = {i: (f"{self._name}:{core}", (core,)) for i, core in enumerate(self._cores) if i}
        self._threads: DeviceThreads | None = DeviceThreads(self._team, others, None)

    def add(self, launches: Sequence[TiledLaunch], slots: int) -> int:
        """As `TileTeam.add`."""
        number = self._team.add(launches, slots)
        self._added.append((launches, slots))
        return number

    def run(
        self,
        number: int,
        slots: Sequence[int] = (),
        look: Callable[[], object] | None = None,
        timed: bool = False,
    ) -> None:
        """Compute launches once; as `TileTeam.run`.

        Raises:
            UnfinishedError: the run was stopped, or the process was forked inside of it.
            ClosedError: the team is closed, or a thread has not ended what it began for an earlier
                run.
            Exception: of ``look`` or of a signal handler.
        """
        if self._closed:
            raise ClosedError("the team is closed; make a new one")
        if self._threads is None:
            self._start()
        assert self._threads is not None
        if self._abandoned:
            self._come_to_rest(self._threads)
        self._threads.complete()
        team, ended = self._team, False
        before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else ()
        try:
            self._running = True
            bind_thread(self._cores[:1] if before else ())
            ended = team.run(number, slots, look, timed)
        finally:
            self._running = False
            if not ended:
                team.stop()
                self._abandoned = True
            bind_thread(before)
        if not ended:
            raise UnfinishedError("the run was stopped; run again")

    def _come_to_rest(self, threads: DeviceThreads) -> None:
        restless = threads.restless(time.monotonic() + _REST_S)
        if restless is not None:
            process_fork.keep_for_ever(self)
            raise ClosedError(f"{restless} has not ended what it began for an earlier run")
        self._abandoned = False

    def spans(self, number: int) -> Sequence[TileSpan]:
        """As `TileTeam.spans`."""
        return self._team.spans(number)

    def stop(self) -> None:
        """Stop the run under way, from any thread."""
        self._team.stop()

    def close(self) -> None:
        """End the threads. Called inside of a run by a signal handler, it stops that run."""
        self._closed = True
        if self._running:
            self._team.end()
        elif self._threads is not None:
            self._threads.end()

    def before_fork(self, end_s: float) -> None:
        """Let all threads end their current tile, at most until ``end_s`` of `time.monotonic`."""
        self._team.pause()
        while not self._team.pauses() and time.monotonic() < end_s:
            time.sleep(_PAUSE_S)

    def after_fork_in_parent(self) -> None:
        self._team.go_on()

    def after_fork(self) -> None:
        """Stop the run under way, and drop the threads, which a forked child has not."""
        self._team.end()
        self._team.go_on()
        process_fork.keep_for_ever((self._team, self._threads))
        self._threads, self._abandoned = None, False
