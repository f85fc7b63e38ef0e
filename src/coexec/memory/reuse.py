"""Lets tensors that are never alive together share memory, where segments run in parallel."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_

__all__ = ["Lifetime", "share"]


@dataclass(frozen=True, slots=True)
class Lifetime:
    """A tensor that the segments ``writers`` make together and the segments ``readers`` read."""

    size_bytes: int
    writers: tuple[int, ...]
    readers: tuple[int, ...]


def share(
    lifetimes: Sequence[Lifetime], ended_before: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Assign tensors to shared buffers, the largest first, each to the first that it fits.

    Two tensors may share a buffer if all segments that use the first have certainly ended before
    the second is written. ``ended_before[i]`` holds, as bits, the segments that have ended when
    segment i starts. With several devices this is a partial order, so positions in time do not
    suffice.

    Greedy by size after Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net
    Inference" (arXiv:2001.03288), on the partial order. O(tensors^2) bit operations.

    Returns:
        For each tensor the index of its buffer, and the size of each buffer in bytes.
    """
    touch = [_bits((*t.writers, *t.readers)) for t in lifetimes]
    before = [_all_of(ended_before[w] for w in t.writers) for t in lifetimes]
    order = sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i].size_bytes)
    members: list[list[int]] = []
    buffer_of = [-1] * len(lifetimes)

    def apart(a: int, b: int) -> bool:
        return not (touch[a] & ~before[b] and touch[b] & ~before[a])

    for i in order:
        fits = (b for b, inside in enumerate(members) if all(apart(i, o) for o in inside))
        buffer = next(fits, len(members))
        if buffer == len(members):
            members.append([])
        members[buffer].append(i)
        buffer_of[i] = buffer
    return buffer_of, [lifetimes[inside[0]].size_bytes for inside in members]


def _bits(numbers: Iterable[int]) -> int:
    bits = 0
    for number in numbers:
        bits |= 1 << number
    return bits


def _all_of(sets: Iterable[int]) -> int:
    return reduce(and_, sets)
