"""Rows for unlike machines, so that they finish together."""

from collections.abc import Callable, Sequence

from coexec.solvers.stages.bodies import StageBody
from coexec.solvers.stages.rows import Range

__all__ = ["balanced", "in_proportion"]

_CLOSE = 1e-3
"""Bisection ends when the latest end is known this closely, as a share of itself."""
Seconds = Callable[[int, Range], float]
"""From the number of a machine and its rows, when it has ended."""


def balanced(body: StageBody, weights: Sequence[float], seconds: Seconds) -> tuple[Range, ...]:
    """Rows by machine, from the top; the latest end is as early as any cut in this order can make
    it.

    For a given end each machine takes as many rows as it can compute until then; the end is
    bisected. A machine for which a single row is too much gets none. The paper divides and
    conquers; both find the rows at which all finish together.

    Args:
        weights: machines' capacities; the first guess is in proportion to them.
        seconds: growing with the rows.
    """
    best = in_proportion(body.height, weights)
    high = max(seconds(k, share) for k, share in enumerate(best))
    low = 0.0
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        found = _until(body.height, len(weights), middle, seconds)
        if found is None:
            low = middle
        else:
            best, high = found, max(seconds(k, share) for k, share in enumerate(found))
    return best


def in_proportion(height: int, weights: Sequence[float]) -> tuple[Range, ...]:
    """Rows by machine, in proportion to weights."""
    total, reached, edges = sum(weights), 0.0, [0]
    for weight in weights:
        reached += weight
        edges.append(round(height * reached / total))
    return tuple((edges[k], edges[k + 1]) for k in range(len(weights)))


def _until(height: int, count: int, end_s: float, seconds: Seconds) -> tuple[Range, ...] | None:
    """The rows that machines compute until ``end_s``, or None if some are left."""
    found, start = list[Range](), 0
    for k in range(count):
        stop, above = start, height + 1  # stop fits, above does not
        while above - stop > 1:
            middle = (stop + above) // 2
            if seconds(k, (start, middle)) <= end_s:
                stop = middle
            else:
                above = middle
        if stop == start and seconds(k, (start, start)) > end_s:
            return None  # the tail alone takes the leader longer
        found.append((start, stop))
        start = stop
    return tuple(found) if start == height else None
