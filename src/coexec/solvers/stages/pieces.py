"""A graph as a chain of pieces with little redundancy: PICO's Algorithm 1, exact.

A chain of pieces is a chain of *fronts*: sets of tasks with all that they depend on, from none to
all. A piece is what one front has and the front before it has not. Data goes from a piece to the
next one only, so what reads from a front is in the next front: that holds for an arc from front to
front by itself, and the best chain is a shortest path. The paper goes backwards with ending
pieces; the chains are the same.

Of all chains the largest redundancy of a piece is least (Eq. 13). The paper leaves open which of
these is taken: here the one with the least sum, and then with the most pieces.

Paper: Yang et al., "PICO: Pipeline Inference Framework for Versatile CNNs on Diverse Mobile
Devices", Algorithm 1.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf

from coexec.solvers.stages.rows import bits_of, turned

__all__ = ["DIAMETER", "Dag", "TooWide", "best_chain", "chain_of_pieces", "least_chain"]

DIAMETER = 5
"""The longest path inside of a piece, in edges, as in the paper. A piece that must be longer, for
what it has to hold for the chain's sake, may be as long as that."""
Cost = Callable[[int], float]
"""The redundancy of a piece, given as bits."""
Arcs = Mapping[int, Mapping[int, float]]
"""By front, the fronts that may follow and the costs of the pieces between."""


class TooWide(Exception):
    """The graph has more arcs between fronts than are to be tried."""


@dataclass(frozen=True)
class Dag:
    """Tasks by number, in topological order; sets of them are bits."""

    before: tuple[int, ...]
    """By task, those it reads from."""

    @property
    def all(self) -> int:
        return (1 << len(self.before)) - 1

    @cached_property
    def following(self) -> tuple[int, ...]:
        """By task, those that read from it."""
        return turned(self.before)

    @cached_property
    def below(self) -> tuple[int, ...]:
        """By task, itself and all that it depends on."""
        found: list[int] = []
        for task, bits in enumerate(self.before):
            closure = 1 << task
            for maker in bits_of(bits):
                closure |= found[maker]
            found.append(closure)
        return tuple(found)

    def closed(self, front: int, tasks: int) -> int:
        """``front`` with some tasks more and all that they depend on."""
        for task in bits_of(tasks & ~front):
            front |= self.below[task]
        return front

    def least_next(self, front: int) -> int:
        """What every front behind this one holds: its readers, and all that these depend on."""
        readers = 0
        for task in bits_of(front):
            readers |= self.following[task]
        return self.closed(front, readers)

    def ready(self, front: int) -> int:
        """The tasks behind a front of which all that they read from is in it."""
        candidates = self._sources
        for task in bits_of(front):
            candidates |= self.following[task]
        outside = candidates & ~front
        return sum(1 << task for task in bits_of(outside) if not self.before[task] & ~front)

    @cached_property
    def _sources(self) -> int:
        return sum(1 << task for task, bits in enumerate(self.before) if not bits)

    def depths(self, piece: int) -> dict[int, int]:
        """By task of a piece, the longest path inside of the piece that ends there, in edges."""
        found: dict[int, int] = {}
        for task in bits_of(piece):
            inner = self.before[task] & piece
            found[task] = 1 + max(found[p] for p in bits_of(inner)) if inner else 0
        return found


def chain_of_pieces(
    dag: Dag, cost: Cost, diameter: int = DIAMETER, max_arcs: float = inf, most: float = inf
) -> list[int]:
    """The best chain, its pieces as bits; empty if ``most`` lets none through.

    O(w d (n d / w)^w) for n tasks of width w and a diameter d.

    Args:
        most: what costs more is neither used nor extended. A chain that is found is the best of
            all if no piece gets cheaper by growing at its end.

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


def least_chain(dag: Dag, cost: Cost, diameter: int, max_arcs: float, known: float) -> list[int]:
    """`chain_of_pieces`, with limits of cost that rise from 0 to that of a chain that is known:
    where little redundancy is enough, few pieces have to be tried.

    Raises:
        TooWide: there are more than ``max_arcs`` arcs below a limit.
    """
    for most in (0.0, known / 64, known / 8, known):
        found = chain_of_pieces(dag, cost, diameter, max_arcs, most)
        if found:
            return found
    # The known chain had a piece that is longer than it had to be.
    return chain_of_pieces(dag, cost, diameter, max_arcs)


def best_chain(arcs: Arcs, end: int) -> list[int]:
    """The pieces of the best path from the empty front to ``end``; none if there is no path.

    First the least largest cost; then, among arcs that are not above it, the least sum of costs
    and the most pieces. Both are sums or maxima along the path, so each is exact.
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
    found: list[int] = []
    while end in came:
        found.append(end & ~came[end])
        end = came[end]
    return found[::-1]


def _arcs_from(
    dag: Dag, front: int, cost: Cost, diameter: int, most: float, max_arcs: float
) -> dict[int, float]:
    """All fronts that may follow one, with pieces no longer than ``diameter``, and their costs."""
    least = dag.least_next(front)
    depth = dag.depths(least & ~front)
    limit = max(diameter, *depth.values(), 0) if depth else diameter
    found: dict[int, float] = {}
    seen, stack = {least}, [(least, depth, dag.ready(least))]
    while stack:
        reached, depth, ready = stack.pop()
        if reached != front:
            price = cost(reached & ~front)
            if price > most:
                continue
            found[reached] = price
            if len(found) > max_arcs:
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
    return found
