"""Pieces to stages on equal machines: PICO's Algorithm 2, made exact.

The printed algorithm memoises without the latency limit and subtracts it in place, so that what it
finds depends on the order of its calls. Here candidate periods are bisected. For each, a dynamic
program over (pieces done, machines used) finds the stages, none of which takes longer, with the
least use of the medium that all share and the least latency: all pairs of which none is worse in
both. Of the chains with the least period the one with the least latency is returned.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coexec.solvers.stages.network import StageKey, StageTime

__all__ = ["least_period"]

_Times = Mapping[StageKey, StageTime]


class _StageWay(NamedTuple):
    """A way to some pieces with some machines."""

    shared_s: float
    latency_s: float
    stages: "tuple[_StageWay, StageKey] | None"


def least_period(
    times: _Times, pieces: int, machines: int, latency_limit_s: float = math.inf
) -> list[StageKey] | None:
    """Stages of the least period, or None if none keep the latency limit.

    O(L^2 D^2 log(L^2 D)) for L pieces and D machines where nothing is shared.
    """
    bounds = sorted({time.period_s for time in times.values()})
    by_end = _by_end(times, pieces)

    def reached(bound_s: float) -> float:
        """The period with stages that take no longer than ``bound_s``."""
        ways = _ways(by_end, pieces, machines, bound_s, latency_limit_s)
        return max(bound_s, min((way.shared_s for way in ways), default=math.inf))

    low = bisect_left(bounds, True, key=lambda bound_s: reached(bound_s) <= bound_s)
    tried = [bounds[i] for i in (low - 1, low) if 0 <= i < len(bounds)]
    period_s = min(reached(bound_s) for bound_s in tried)
    if period_s == math.inf:
        return None
    ways = _ways(by_end, pieces, machines, period_s, latency_limit_s)
    best = min((w for w in ways if w.shared_s <= period_s), key=lambda way: way.latency_s)
    found: list[StageKey] = []
    while best.stages is not None:
        best, stage = best.stages
        found.append(stage)
    return found[::-1]


_ByEnd = Sequence[Sequence[tuple[float, StageKey, StageTime]]]


def _by_end(times: _Times, pieces: int) -> _ByEnd:
    """By last piece, all stages by rising period."""
    found: list[list[tuple[float, StageKey, StageTime]]] = [[] for _ in range(pieces)]
    for key, time in times.items():
        found[key[1]].append((time.period_s, key, time))
    for rows in found:
        rows.sort()
    return found


def _ways(
    by_end: _ByEnd, pieces: int, machines: int, bound_s: float, limit_s: float
) -> Sequence[_StageWay]:
    """All ways to the end, none of which is worse than another in both respects."""
    ways: list[list[list[_StageWay]]] = [
        [[] for _ in range(machines + 1)] for _ in range(pieces + 1)
    ]
    ways[0][0] = [_StageWay(0.0, 0.0, None)]
    for last in range(pieces):
        for period_s, stage, time in by_end[last]:
            if period_s > bound_s:
                break
            first, _, count = stage
            for used in range(machines + 1 - count):
                for way in ways[first][used]:
                    latency_s = way.latency_s + time.latency_s
                    if latency_s <= limit_s:
                        _add(
                            ways[last + 1][used + count],
                            way.shared_s + time.shared_s, latency_s, way, stage,
                        )  # fmt: skip
    found: list[_StageWay] = []
    for end in ways[pieces]:
        for way in end:
            if way.stages is not None or not pieces:
                _add(found, way.shared_s, way.latency_s, *(way.stages or (way, None)))
    return found


def _add(
    ways: list[_StageWay],
    shared_s: float,
    latency_s: float,
    before: _StageWay,
    stage: StageKey | None,
) -> None:
    if any(w.shared_s <= shared_s and w.latency_s <= latency_s for w in ways):
        return
    ways[:] = [w for w in ways if w.shared_s < shared_s or w.latency_s < latency_s]
    ways.append(_StageWay(shared_s, latency_s, None if stage is None else (before, stage)))
