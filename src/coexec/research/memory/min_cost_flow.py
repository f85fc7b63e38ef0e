"""Shared objects: the least growth of objects from tensor to tensor, as a minimum-cost flow."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from coexec.plan.memory import Assignment, Record, in_order

__all__ = ["assign"]

Floats = npt.NDArray[np.float64]
"""Bytes. Sums of sizes are exact up to 2**53 B."""


def assign(records: Sequence[Record]) -> Assignment:
    """Choose for each tensor the tensor whose object it takes over, so that objects grow least in
    sum.

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
