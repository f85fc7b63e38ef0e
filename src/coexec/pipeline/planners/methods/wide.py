"""Algorithm 1 for graphs with too many fronts to try all: a beam search.

From a front, the search tries the smallest next front, and the smallest next fronts that contain
one more task at most a few steps away. Of all fronts with the same number of tasks, only the best
few are continued: those with the least maximum redundancy so far, then the least sum. The time
grows only with tasks times width. Finally, pieces are divided in two where that costs nothing.
"""

from collections.abc import Sequence

from coexec.pipeline.planners.methods.pieces import DIAMETER, Cost, Dag, best_chain
from coexec.pipeline.planners.methods.rows import bits_of

__all__ = ["wide_chain"]

_KEPT = 3
"""Number of fronts of each size that the search continues."""


def wide_chain(dag: Dag, cost: Cost, diameter: int = DIAMETER) -> list[int]:
    """A good chain, its pieces as bits. The costs of O(_KEPT * n * w * d) pieces are computed."""
    arcs: dict[int, dict[int, float]] = {}
    value: dict[int, tuple[float, float]] = {0: (0.0, 0.0)}
    by_size: list[dict[int, None]] = [{} for _ in range(len(dag.before) + 1)]
    by_size[0][0] = None
    for fronts in by_size[:-1]:
        for front in sorted(fronts, key=lambda f: (value[f], f))[:_KEPT]:
            worst, total = value[front]
            arcs[front] = {}
            for after in _candidates(dag, front, diameter):
                price = arcs[front][after] = cost(after & ~front)
                reached = (max(worst, price), total + price)
                if after not in value or reached < value[after]:
                    value[after] = reached
                by_size[after.bit_count()][after] = None
    return _finer(dag, cost, best_chain(arcs, dag.all))


def _candidates(dag: Dag, front: int, diameter: int) -> Sequence[int]:
    """The smallest next front, and the smallest next fronts that contain one more nearby task."""
    least = dag.least_next(front)
    fronts = {least: None} if least != front else {}
    near = edge = dag.ready(least)
    for _ in range(diameter):
        readers = 0
        for task in bits_of(edge):
            readers |= dag.following[task]
        edge = readers & ~near
        near |= edge
    depths = dag.depths(least & ~front)
    limit = max(diameter, *depths.values(), 0) if depths else diameter
    for task in bits_of(near):
        after = dag.closed(least, 1 << task)
        if max(dag.depths(after & ~front).values()) <= limit:
            fronts[after] = None
    return list(fronts)


def _finer(dag: Dag, cost: Cost, pieces: Sequence[int]) -> list[int]:
    """The pieces, divided where a front lies in between and neither part has a higher cost."""
    finer: list[int] = []
    front = 0
    for piece in pieces:
        end = front | piece
        while True:
            inner = dag.least_next(front)
            parts = inner & ~front, end & ~inner
            fits = all(parts) and not dag.least_next(inner) & ~end
            whole = cost(end & ~front)
            if not fits or max(map(cost, parts)) > whole:
                break
            finer.append(parts[0])
            front = inner
        finer.append(end & ~front)
        front = end
    return finer
