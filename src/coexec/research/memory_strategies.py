"""The strategies of the papers for the memory of intermediate tensors, to compare them.

    from coexec.plan.memory import records_of
    from coexec.research.memory_strategies import assign_all

    totals = {name: a.total_bytes for name, a in assign_all([*records_of(graph).values()]).items()}

A run uses the strategies of `coexec.plan.memory`, one for each family. To add one: a function and
one row in `STRATEGIES`.
"""

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence
from heapq import heappop, heappush
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from coexec.plan.memory import (
    Assignment,
    Family,
    Record,
    Strategy,
    alive_at,
    by_size_improved,
    in_order,
    offsets_by_size,
    verify,
)

Floats = npt.NDArray[np.float64]
"""Bytes. Sums of sizes are exact up to 2**53 B."""


def naive(records: Sequence[Record]) -> Assignment:
    """One object for each tensor: the reference for the other strategies.

    Promises the sum of all sizes. O(n).
    """
    return Assignment.shared(range(len(records)), [r.size_bytes for r in records])


def greedy_in_order(records: Sequence[Record]) -> Assignment:
    """Shared objects: each tensor gets the free object of the closest size, which grows if needed.

    Source: Lee et al., "On-Device Neural Net Inference with Mobile GPUs" (arXiv:1907.01989),
    greedy memory management; TensorFlow Lite's GPU delegate. If a larger and a smaller object
    differ alike, the larger one is taken. A new object is made only when none is free.

    Promises as few objects as possible, and at most naive's total. At or near the bound on chains
    of layers; up to 1.6 times the bound on networks of many branches (NASNet-A), because it does
    not look ahead. O(n log n).
    """
    object_of = [-1] * len(records)
    sizes: list[int] = []
    free: list[tuple[int, int]] = []  # (size, object), sorted
    busy: list[tuple[int, int]] = []  # (last, object), a heap
    for i in in_order(records):
        size, first, last = records[i].size_bytes, records[i].first, records[i].last
        while busy and busy[0][0] < first:
            returned = heappop(busy)[1]
            insort(free, (sizes[returned], returned))
        if free:
            target = free.pop(_closest(free, size))[1]
            sizes[target] = max(sizes[target], size)
        else:
            target = len(sizes)
            sizes.append(size)
        object_of[i] = target
        heappush(busy, (last, target))
    return Assignment.shared(object_of, sizes)


def _closest(free: Sequence[tuple[int, int]], size: int) -> int:
    """Index in ``free`` of the object with the closest size."""
    above = bisect_left(free, (size, -1))
    if above == 0:
        return above
    if above == len(free) or size - free[above - 1][0] < free[above][0] - size:
        return above - 1
    return above


def by_breadth(records: Sequence[Record]) -> Assignment:
    """Shared objects: first the operation with most bytes alive, of it the largest tensor.

    Source: Pisarchyk and Lee (arXiv:2001.03288), greedy by breadth; TensorFlow Lite's GPU delegate.
    A tensor takes the smallest object that is free all its life and large enough; otherwise the
    largest free one, which grows; otherwise a new one.

    Of operations with equally many bytes, the later comes first. This order gives the known totals
    of MobileNet v1, v2 and VGG-16; with the other order VGG-16, PoseNet and YOLOv2 get smaller,
    NASNet-A larger.

    Promises at most naive's total; with by_size_improved the smallest of this family on most
    networks. O(n^2).
    """
    object_of = [-1] * len(records)
    sizes: list[int] = []
    inside: list[list[Record]] = []
    for i in _by_breadth(records):
        record, size = records[i], records[i].size_bytes
        free = [o for o, tensors in enumerate(inside) if not any(map(record.alive_with, tensors))]
        large_enough = [o for o in free if sizes[o] >= size]
        if large_enough:
            target = min(large_enough, key=sizes.__getitem__)
        elif free:
            target = max(free, key=sizes.__getitem__)
            sizes[target] = size
        else:
            target = len(sizes)
            sizes.append(size)
            inside.append([])
        object_of[i] = target
        inside[target].append(record)
    return Assignment.shared(object_of, sizes)


def _by_breadth(records: Sequence[Record]) -> list[int]:
    """All tensors in the order in which they are placed."""
    alive = alive_at(records)
    breadth = {op: sum(records[i].size_bytes for i in tensors) for op, tensors in alive.items()}
    order: dict[int, None] = {}
    for op in sorted(alive, key=lambda op: (-breadth[op], -op)):
        largest_first = sorted(alive[op], key=lambda i: -records[i].size_bytes)
        order |= dict.fromkeys(largest_first)  # a tensor that is listed already keeps its place
    return list(order)


def min_cost_flow(records: Sequence[Record]) -> Assignment:
    """Shared objects: each tensor takes over the object of another, so that objects grow least.

    Source: Lee et al., "On-Device Neural Net Inference with Mobile GPUs" (arXiv:1907.01989),
    min-cost flow memory management; TensorFlow Lite's GPU delegate. In the flow network a unit for
    tensor y comes from the source at the cost of its size (a new object), or from a tensor x that
    has ended before y begins, at the cost of max(0, size of y - size of x). Each x gives its object
    to one y.

    Promises the least sum of these costs, which is at least the total; so the total is at most
    naive's. It need not be the least total: an object that now holds a smaller tensor pays again
    when it grows. O(n^3) at worst and in practice nearer to n^2, in numpy: 0.1 s for the 684
    tensors of NASNet-A. O(n) memory.
    """
    givers = _Givers(records)
    order = in_order(records)
    for i in order:
        givers.add(i)
    object_of = [-1] * len(records)
    sizes: list[int] = []
    for i in order:
        giver = givers.giver(i)
        if giver is None:
            object_of[i] = len(sizes)
            sizes.append(records[i].size_bytes)
        else:
            object_of[i] = object_of[giver]
            sizes[object_of[i]] = max(sizes[object_of[i]], records[i].size_bytes)
    return Assignment.shared(object_of, sizes)


class _Givers:
    """The cheapest choice of givers for the tensors added so far. A giver is a tensor whose object
    another tensor, the taker, takes over.

    The network is bipartite with a unit for each tensor, so a shortest path of the residual network
    alternates between takers and their givers. Successive shortest paths, one for each tensor, by
    Dijkstra's algorithm with potentials over all givers at once. The edges of a taker are computed
    when it is reached, so the O(n^2) edges are never stored.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        # Dijkstra's algorithm takes the first of several nearest givers. This order puts the
        # smallest object with the least cost first; of equally large ones, the last made.
        self._givers = sorted(range(len(records)), key=lambda x: (records[x].size_bytes, -x))
        self._sizes = np.array([records[x].size_bytes for x in self._givers], np.float64)
        self._last = np.array([records[x].last for x in self._givers])
        self._records = records
        self._giver_potential = np.zeros(len(records))
        self._taker_potential = [0.0] * len(records)
        self._taker: list[int | None] = [None] * len(records)
        self._giver: list[int | None] = [None] * len(records)

    def giver(self, taker: int) -> int | None:
        """The tensor whose object ``taker`` takes over; None: it gets a new one."""
        column = self._giver[taker]
        return None if column is None else self._givers[column]

    def add(self, start: int) -> None:
        """Add one more tensor, and change the choices of other tensors where that costs less."""
        distance = np.full(len(self._givers), np.inf)
        came_from = np.full(len(self._givers), -1)
        settled = np.zeros(len(self._givers), bool)
        travelled = {start: 0.0}
        taker, new_for, new_distance = start, start, np.inf
        while True:
            base = travelled[taker] - self._taker_potential[taker]
            if base + self._records[taker].size_bytes < new_distance:
                new_for, new_distance = taker, base + self._records[taker].size_bytes
            lengths = base + self._costs(taker) - self._giver_potential
            closer = lengths < distance
            distance[closer] = lengths[closer]
            came_from[closer] = taker
            unsettled = np.where(settled, np.inf, distance)
            nearest = int(np.argmin(unsettled))
            length = float(unsettled[nearest])  # infinite if no giver is left
            following = self._taker[nearest]
            if following is None or new_distance <= length:
                break
            settled[nearest] = True
            taker = following
            travelled[taker] = length
        length = min(new_distance, length)
        for taker, so_far in travelled.items():
            self._taker_potential[taker] += length - so_far
        self._giver_potential[settled] -= length - distance[settled]
        column: int | None = nearest
        if new_distance <= length:  # the path ends with a new object for a taker that had a giver
            column, self._giver[new_for] = self._giver[new_for], None
        self._take_back(column, came_from)

    def _take_back(self, column: int | None, came_from: npt.NDArray[np.int64]) -> None:
        """Change the choices along a path, from its last giver back to its start, which has no
        giver."""
        while column is not None:
            taker = int(came_from[column])
            self._taker[column] = taker
            column, self._giver[taker] = self._giver[taker], column

    def _costs(self, taker: int) -> Floats:
        """Cost of each giver's object for ``taker``; infinite if the giver is alive too long."""
        record = self._records[taker]
        growth = np.maximum(0.0, record.size_bytes - self._sizes)
        return np.where(self._last < record.first, growth, np.inf)


STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        "by_breadth": by_breadth,
        "by_size_improved": by_size_improved,
        "greedy_in_order": greedy_in_order,
        "min_cost_flow": min_cost_flow,
        "naive": naive,
        "offsets_by_size": offsets_by_size,
    }
)
"""Name -> strategy, sorted by name."""

FAMILY_OF: Mapping[str, Family] = MappingProxyType(
    {name: "offsets" if name == "offsets_by_size" else "objects" for name in STRATEGIES}
)
"""Name of a strategy -> its family."""


def assign_all(records: Sequence[Record]) -> dict[str, Assignment]:
    """The assignment of ``records`` by each strategy, by name, verified."""
    assignments = {name: strategy(records) for name, strategy in STRATEGIES.items()}
    for assignment in assignments.values():
        verify(records, assignment)
    return assignments
