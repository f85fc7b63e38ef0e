"""Estimate the rate at which frames arrive, and whether a lack of credits limits it."""

import time
from collections import deque
from typing import NamedTuple

from coexec.pipeline.cluster.admission import Door
from coexec.pipeline.cluster.planning import Planned

__all__ = ["Demand", "DemandWatch"]

_FEW = 8
"""Number of frames that is enough to estimate their rate."""
_WINDOW_S = 60.0
"""Longest time between samples: frames that are further apart change no plan."""
_LOADED = 0.6
"""Load from which on throughput matters, not latency. The load is the share of the time in which no
credit is left, or the frame rate times the plan's period."""


class Demand(NamedTuple):
    """Recent demand."""

    rate_per_s: float
    full: float
    """Share of the samples in which the door was full."""

    def is_high(self, planned: Planned) -> bool:
        """Whether the plan's period matters more than its latency."""
        return self.full > _LOADED or self.rate_per_s * planned.period_s > _LOADED


class DemandWatch:
    """Estimates the demand from samples of a door's state."""

    def __init__(self, door: Door, least_s: float) -> None:
        """``least_s``: the shortest time from which a rate is estimated."""
        self._door, self._least_s = door, least_s
        self._seen: deque[tuple[float, int, bool]] = deque()
        """Samples: time, number of frames admitted so far, and whether the door was full."""

    def look(self) -> None:
        """Take a sample, and remove samples that are older than an estimate needs."""
        now, admitted = time.monotonic(), self._door.admitted
        self._seen.append((now, admitted, self._door.full))
        while len(self._seen) > 1:
            begin, before, _ = self._seen[1]
            enough = admitted - before >= _FEW and now - begin >= self._least_s
            if not enough and now - begin <= _WINDOW_S:
                break
            self._seen.popleft()

    def clear(self) -> None:
        """Remove all samples: during a change of plan, frames wait for another reason."""
        self._seen.clear()

    def demand(self) -> Demand | None:
        """Demand of the samples; None if too few frames came for an estimate."""
        if not self._seen:
            return None
        (begin, before, _), (end, admitted, _) = self._seen[0], self._seen[-1]
        if admitted - before < _FEW or end - begin < self._least_s:
            return None
        full = sum(full for _, _, full in self._seen) / len(self._seen)
        return Demand((admitted - before) / (end - begin), full)
