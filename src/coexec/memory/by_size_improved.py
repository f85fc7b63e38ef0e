"""Shared objects: the largest tensors first; among similar sizes, those closest in time first."""

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from coexec.memory.bounds import positional_maxima
from coexec.memory.records import Assignment, Record

__all__ = ["assign"]

Gaps = npt.NDArray[np.float64]
"""By tensor: number of operations between it and the nearest tensor of an object; inf if both are
alive at once."""


def assign(records: Sequence[Record]) -> Assignment:
    """Place tensors in stages of similar size, in each stage those first that closely follow
    another.

    Source: Pisarchyk and Lee (arXiv:2001.03288), greedy by size improved; TensorFlow Lite's GPU
    delegate. The positional maxima are the sizes that the objects have at best. A stage contains
    the tensors from one maximum down to the next: any of these fills the object equally well, so
    their order is free. The tensor closest in time to a free object comes first; of equally close
    tensors, the largest. It joins that object, which grows if needed, or gets a new one if none is
    free.

    Promises at most naive's total; with by_breadth the smallest of this family on most networks.
    O(objects * n^2), in numpy.
    """
    first = np.array([r.first for r in records], np.float64)
    last = np.array([r.last for r in records], np.float64)
    object_of = [-1] * len(records)
    sizes: list[int] = []
    gaps: list[Gaps] = []
    for stage in _stages(records):
        left = np.array(stage)
        while len(left):
            target, at = _closest([gap[left] for gap in gaps])
            i = int(left[at])
            left = np.delete(left, at)
            gap = np.maximum(first, first[i]) - np.minimum(last, last[i])
            gap[gap <= 0] = np.inf
            if target is None:
                target = len(sizes)
                sizes.append(records[i].size_bytes)
                gaps.append(gap)
            else:
                overlap = np.isinf(gap) | np.isinf(gaps[target])
                gaps[target] = np.where(overlap, np.inf, np.minimum(gap, gaps[target]))
                sizes[target] = max(sizes[target], records[i].size_bytes)
            object_of[i] = target
    return Assignment.shared(object_of, sizes)


def _stages(records: Sequence[Record]) -> list[list[int]]:
    """Tensors by the last positional maximum that is not smaller than the tensor; each stage is
    sorted by size, the largest first."""
    maxima = -np.array(positional_maxima(records))
    position = np.searchsorted(maxima, [-r.size_bytes for r in records], side="right")
    order = sorted(range(len(records)), key=lambda i: (position[i], -records[i].size_bytes))
    return [list(stage) for _, stage in groupby(order, key=lambda i: int(position[i]))]


def _closest(gaps: Sequence[Gaps]) -> tuple[int | None, int]:
    """The free object that is closest to a tensor, and the position of that tensor. Without a free
    object: None and the first tensor."""
    if not gaps:
        return None, 0
    nearest = np.min(gaps, axis=0)
    at = int(np.argmin(nearest))
    if np.isinf(nearest[at]):
        return None, at
    return int(np.argmin([gap[at] for gap in gaps])), at
