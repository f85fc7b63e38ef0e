"""A team with its threads, whose networks a run loop computes."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from coexec.engines.tiles import TiledLaunch
from coexec.errors import UnfinishedError
from coexec.runtime.device_threads import DeviceThreads
from coexec.runtime.loops import loop_classes, team_classes
from coexec.runtime.steps import ComputeTiles, TileSpan
from tests.helpers.patience import ENOUGH_S

SPIN_S = 20e-6


class LoopTeam:
    """A team, and a loop of one step for each of its networks."""

    def __init__(self, kind: str, cores: Sequence[int]) -> None:
        self._kind = kind
        self.team = team_classes()[kind](len(cores), SPIN_S)
        others = {i: ("team", (core,)) for i, core in enumerate(cores) if i}
        self._threads = DeviceThreads(self.team, others, None)
        self._loops: list[Any] = []
        self._pointers: list[Any] = []

    def add(self, launches: Sequence[TiledLaunch], slots: int) -> int:
        number = self.team.add(launches, slots)
        self._pointers.append(np.zeros(slots, np.int64))
        step = ComputeTiles(self.team, number, self._pointers[-1])
        self._loops.append(loop_classes()[self._kind]([[step]], 0, 0, 0, SPIN_S))
        return number

    def run(
        self,
        number: int,
        slots: Sequence[int],
        look: Callable[[], object] | None = None,
        timed: bool = False,
    ) -> None:
        """Compute a network. After a run that has not ended, all threads rest.

        Raises:
            UnfinishedError: it was stopped.
        """
        self._pointers[number][:] = slots
        ended = False
        try:
            ended = self._loops[number].run([], look, timed) is None
        finally:
            if not ended:
                self._loops[number].stop()
                assert self._threads.restless(time.monotonic() + ENOUGH_S) is None
        if not ended:
            raise UnfinishedError("stopped")

    def stop(self) -> None:
        for loop in self._loops:
            loop.stop()

    def spans(self, number: int) -> Sequence[TileSpan]:
        return self.team.spans(number)

    def close(self) -> None:
        self._threads.end()
