"""Distribution of rows over unlike machines, so that they finish together."""

from collections.abc import Callable, Sequence

from coexec.pipeline.planners.methods.bodies import StageBody
from coexec.pipeline.planners.methods.rows import Range

_CLOSE = 1e-3
"""Bisection stops at this relative error of the latest end."""
Seconds = Callable[[int, Range], float]
"""Function from the number of a machine and its rows to the time at which it ends."""


def balanced(body: StageBody, weights: Sequence[float], seconds: Seconds) -> tuple[Range, ...]:
    """The rows of each machine, from the top, with the earliest possible latest end for machines in
    this order.

    The latest end is found by bisection: for a candidate, each machine takes as many rows as it can
    compute until then. A machine for which a single row is too much gets none. The paper uses
    divide and conquer; both methods find the rows with which all machines finish together.

    Args:
        weights: the machines' capacities; the first guess is in proportion to them.
        seconds: a function that grows with the rows.
    """
    best = in_proportion(body.height, weights)
    high = max(seconds(k, share) for k, share in enumerate(best))
    low = 0.0
    while high - low > _CLOSE * high:
        middle = (low + high) / 2
        shares = _until(body.height, len(weights), middle, seconds)
        if shares is None:
            low = middle
        else:
            best, high = shares, max(seconds(k, share) for k, share in enumerate(shares))
    return best


def in_proportion(height: int, weights: Sequence[float]) -> tuple[Range, ...]:
    """The rows of each machine, in proportion to ``weights``."""
    total, reached, edges = sum(weights), 0.0, [0]
    for weight in weights:
        reached += weight
        edges.append(round(height * reached / total))
    return tuple((edges[k], edges[k + 1]) for k in range(len(weights)))


def _until(height: int, count: int, end_s: float, seconds: Seconds) -> tuple[Range, ...] | None:
    """The rows that each machine computes until ``end_s``; None if rows are left."""
    shares, start = list[Range](), 0
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
        shares.append((start, stop))
        start = stop
    return tuple(shares) if start == height else None
