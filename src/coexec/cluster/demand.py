"""How many frames a second come, and whether more would come if they were answered sooner."""

import time
from collections import deque
from typing import NamedTuple

from coexec.cluster.door import Door
from coexec.cluster.planning import Planned

__all__ = ["Demand", "DemandWatch"]

_FEW = 8
"""Frames that are enough to tell at which rate they come."""
_WINDOW_S = 60.0
"""Frames that are further apart are no reason to change anything."""
_LOADED = 0.6
"""Share of the time in which there is no credit left, or in which the plan lets frames in, from
which on it matters how many a second are answered, not how soon one is."""


class Demand(NamedTuple):
    """Frames of late."""

    rate_per_s: float
    full: float
    """Share of the time in which no credit was left."""

    def is_high(self, planned: Planned) -> bool:
        """Whether a plan's period matters, rather than its latency."""
        return self.full > _LOADED or self.rate_per_s * planned.period_s > _LOADED


class DemandWatch:
    """Looks at a door now and then."""

    def __init__(self, door: Door, least_s: float) -> None:
        """``least_s``: the shortest time that a rate is told from."""
        self._door, self._least_s = door, least_s
        self._seen: deque[tuple[float, int, bool]] = deque()
        """Moments, how many frames had been let in, and whether the door was full."""

    def look(self) -> None:
        """Note how it is now. What is older than is needed to tell is forgotten."""
        now, admitted = time.monotonic(), self._door.admitted
        self._seen.append((now, admitted, self._door.full))
        while len(self._seen) > 1:
            begin, before, _ = self._seen[1]
            enough = admitted - before >= _FEW and now - begin >= self._least_s
            if not enough and now - begin <= _WINDOW_S:
                break
            self._seen.popleft()

    def clear(self) -> None:
        """Forget all, as frames had to wait for another reason."""
        self._seen.clear()

    def demand(self) -> Demand | None:
        """None if too few frames came to tell."""
        if not self._seen:
            return None
        (begin, before, _), (end, admitted, _) = self._seen[0], self._seen[-1]
        if admitted - before < _FEW or end - begin < self._least_s:
            return None
        full = sum(full for _, _, full in self._seen) / len(self._seen)
        return Demand((admitted - before) / (end - begin), full)
