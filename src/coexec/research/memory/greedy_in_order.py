"""Shared objects: in the order of operations, the free object of the closest size."""

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heappop, heappush

from coexec.plan.memory import Assignment, Record, in_order

__all__ = ["assign"]


def assign(records: Sequence[Record]) -> Assignment:
    """Give each tensor the free object whose size differs least from its own; it grows if needed.

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
