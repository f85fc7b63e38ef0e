"""How long planners take, so that none is started that does not end in time.

A planner cannot be interrupted, and its time grows with the number of devices.
"""

import math
import time
from collections.abc import Callable
from typing import TypeVar

__all__ = ["PlannerTimes"]

_T = TypeVar("_T")

_POWER = 2.0
"""Seconds grow with this power of the number of devices, until two numbers have been timed:
searches climb where there are many devices (`planners.methods.splitting.climb`)."""


class PlannerTimes:
    """Times of planners for one model, by number of devices."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s = now_s
        self._taken_s: dict[str, dict[int, float]] = {}

    def timed(self, planner: str, devices: int, plan: Callable[[], _T]) -> _T:
        """The result of ``plan``, whose time is remembered."""
        start_s = self._now_s()
        result = plan()
        self._taken_s.setdefault(planner, {})[devices] = self._now_s() - start_s
        return result

    def expected_s(self, planner: str, devices: int) -> float:
        """Expected seconds for a number of devices; infinite if this planner was never timed."""
        taken = sorted(self._taken_s.get(planner, {}).items())
        if not taken:
            return math.inf
        (count, seconds), power = taken[-1], _POWER
        if len(taken) > 1 and min(s for _, s in taken[-2:]) > 0.0:
            fewer, fewer_s = taken[-2]
            power = max(1.0, math.log(seconds / fewer_s) / math.log(count / fewer))
        return seconds * math.pow(max(1.0, devices / count), power)
