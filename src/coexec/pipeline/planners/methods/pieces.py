"""A graph as a chain of pieces with little redundancy: PICO's Algorithm 1, exact, and a beam search
for graphs that are too wide for it. Also a graph as a chain of blocks.

A *front* is a set of tasks that contains all predecessors of its tasks. A chain of pieces is a
chain of growing fronts, from no task to all tasks; a piece is the difference of two fronts that
follow each other. Data goes from a piece to the next piece only, so all readers of a front are in
the next front. This is a condition on single arcs from front to front, so the best chain is a
shortest path. The paper goes backwards with ending pieces; the chains are the same.

The best chain has the least possible maximum of the pieces' redundancies (Eq. 13). The paper leaves
open which of several such chains is taken. Here it is the one with the least sum of redundancies,
then the one with the most pieces.

Paper: Yang et al., "PICO: Pipeline Inference Framework for Versatile CNNs on Diverse Mobile
Devices", Algorithm 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf

from coexec.pipeline.planners.methods.rows import RowGraph, bits_of, turned

DIAMETER = 5
"""The longest path inside a piece, in edges, as in the paper. A piece may be longer only if the
tasks that it has to contain form a longer path."""
_KEPT = 3
"""Number of fronts of each size that the beam search continues."""
Cost = Callable[[int], float]
"""The redundancy of a piece, given as bits."""
Arcs = Mapping[int, Mapping[int, float]]
"""By front, the fronts that may follow it, each with the cost of the piece between the two."""


class TooWide(Exception):
    """The graph has more arcs between fronts than the limit."""


@dataclass(frozen=True)
class Dag:
    """A graph of tasks, numbered in topological order; sets of tasks are bits."""

    before: tuple[int, ...]
    """The predecessors of each task."""

    @property
    def all(self) -> int:
        return (1 << len(self.before)) - 1

    @cached_property
    def following(self) -> tuple[int, ...]:
        """The successors of each task."""
        return turned(self.before)

    @cached_property
    def below(self) -> tuple[int, ...]:
        """Each task together with all its direct and indirect predecessors."""
        closures: list[int] = []
        for task, bits in enumerate(self.before):
            closure = 1 << task
            for maker in bits_of(bits):
                closure |= closures[maker]
            closures.append(closure)
        return tuple(closures)

    def closed(self, front: int, tasks: int) -> int:
        """``front`` together with ``tasks`` and all their direct and indirect predecessors."""
        for task in bits_of(tasks & ~front):
            front |= self.below[task]
        return front

    def least_next(self, front: int) -> int:
        """The smallest possible next front: this front, the readers of its tasks, and all
        predecessors of these readers."""
        readers = 0
        for task in bits_of(front):
            readers |= self.following[task]
        return self.closed(front, readers)

    def ready(self, front: int) -> int:
        """The tasks outside a front whose predecessors are all in the front."""
        candidates = self._sources
        for task in bits_of(front):
            candidates |= self.following[task]
        outside = candidates & ~front
        return sum(1 << task for task in bits_of(outside) if not self.before[task] & ~front)

    @cached_property
    def _sources(self) -> int:
        return sum(1 << task for task, bits in enumerate(self.before) if not bits)

    def depths(self, piece: int) -> dict[int, int]:
        """For each task of a piece, the number of edges of the longest path inside the piece that
        ends at the task."""
        depths: dict[int, int] = {}
        for task in bits_of(piece):
            inner = self.before[task] & piece
            depths[task] = 1 + max(depths[p] for p in bits_of(inner)) if inner else 0
        return depths


def chain_of_pieces(
    dag: Dag, cost: Cost, diameter: int = DIAMETER, max_arcs: float = inf, most: float = inf
) -> list[int]:
    """The best chain, its pieces as bits; empty if no chain keeps to the cost limit ``most``.

    O(w d (n d / w)^w) for n tasks of width w and a diameter d.

    Args:
        most: a piece of a higher cost is neither used nor extended. So the result is the best of
            all chains if a piece never becomes cheaper when tasks are added at its end.

    Raises:
        TooWide: there are more than ``max_arcs`` arcs.
    """
    arcs: dict[int, dict[int, float]] = {}
    count, stack = 0, [0]
    while stack:
        front = stack.pop()
        if front in arcs or front == dag.all:
            continue
        arcs[front] = _arcs_from(dag, front, cost, diameter, most, max_arcs - count)
        count += len(arcs[front])
        stack += arcs[front]
    return best_chain(arcs, dag.all)


def least_chain(
    dag: Dag, cost: Cost, diameter: int, max_arcs: float, cost_limit: float
) -> list[int]:
    """`chain_of_pieces` with limits of cost that rise from 0 to ``cost_limit``. If a chain with
    little redundancy exists, few pieces have to be tried.

    Args:
        cost_limit: the largest cost of a piece in a chain that is known already.

    Raises:
        TooWide: there are more than ``max_arcs`` arcs below a limit.
    """
    for most in (0.0, cost_limit / 64, cost_limit / 8, cost_limit):
        chain = chain_of_pieces(dag, cost, diameter, max_arcs, most)
        if chain:
            return chain
    # No chain was found, so the known chain has a piece that is longer than `diameter` allows.
    return chain_of_pieces(dag, cost, diameter, max_arcs)


def best_chain(arcs: Arcs, end: int) -> list[int]:
    """The pieces of the best path from the empty front to ``end``; empty if there is no path.

    The best path has the least maximum cost of a piece. Among the paths whose arcs do not exceed
    it, the best path has the least sum of costs, then the most pieces. All these values are sums or
    maxima along the path, so shortest-path search is exact for them.
    """
    fronts = sorted(arcs, key=int.bit_count)
    worst: dict[int, float] = {0: 0.0}
    for front in fronts:
        if front in worst:
            for after, cost in arcs[front].items():
                reached = max(worst[front], cost)
                if reached < worst.get(after, inf):
                    worst[after] = reached
    limit = worst.get(end, -1.0)
    best: dict[int, tuple[float, int]] = {0: (0.0, 0)}
    came: dict[int, int] = {}
    for front in fronts:
        if front in best:
            total, pieces = best[front]
            for after, cost in arcs[front].items():
                if cost <= limit:
                    value = (total + cost, pieces - 1)
                    if after not in best or value < best[after]:
                        best[after], came[after] = value, front
    pieces_back: list[int] = []
    while end in came:
        pieces_back.append(end & ~came[end])
        end = came[end]
    return pieces_back[::-1]


def _arcs_from(
    dag: Dag, front: int, cost: Cost, diameter: int, most: float, max_arcs: float
) -> dict[int, float]:
    """All fronts that may follow ``front`` with a piece no longer than ``diameter``, and the costs
    of these pieces."""
    least = dag.least_next(front)
    depth = dag.depths(least & ~front)
    limit = max(diameter, *depth.values(), 0) if depth else diameter
    cost_of: dict[int, float] = {}
    seen, stack = {least}, [(least, depth, dag.ready(least))]
    while stack:
        reached, depth, ready = stack.pop()
        if reached != front:
            price = cost(reached & ~front)
            if price > most:
                continue
            cost_of[reached] = price
            if len(cost_of) > max_arcs:
                raise TooWide
        for task in bits_of(ready):
            after = reached | 1 << task
            if after in seen:
                continue
            inner = dag.before[task] & ~front
            long = 1 + max(depth[p] for p in bits_of(inner)) if inner else 0
            if long <= limit:
                seen.add(after)
                freed = (f for f in bits_of(dag.following[task]) if not dag.before[f] & ~after)
                more = ready & ~(1 << task) | sum(1 << f for f in freed)
                stack.append((after, {**depth, task: long}, more))
    return cost_of


def wide_chain(dag: Dag, cost: Cost, diameter: int = DIAMETER) -> list[int]:
    """A good chain, its pieces as bits, by a beam search for graphs with too many fronts.

    From a front, the search tries the smallest next front, and the smallest next fronts that
    contain one more task at most a few steps away. Of all fronts with the same number of tasks,
    only the best few are continued: those with the least maximum redundancy so far, then the least
    sum. The time grows only with tasks times width. Finally, pieces are divided in two where that
    costs nothing.

    The costs of O(_KEPT * n * w * d) pieces are computed.
    """
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


def chain_of_blocks(rows: RowGraph) -> list[int]:
    """A graph as a chain of blocks, as bits of tasks: it is cut wherever a single tensor crosses
    the cut. A graph without such a place is one block. This is the granularity of AOFL and
    DeepSlicing.

    Inputs and outputs of the model that cross a cut do not count, because they prevent no cut.
    """
    blocks: list[int] = []
    done = start = 0
    for task in range(len(rows.macs)):
        done |= 1 << task
        results = [t for t in rows.handed_on(done) if rows.maker[t] >= 0 and t not in rows.outputs]
        if len(results) <= 1:
            blocks.append(done & ~start)
            start = done
    if done != start:
        blocks.append(done & ~start)
    return blocks
