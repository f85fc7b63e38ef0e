"""Memory for tensors that are not alive at the same time: lifetimes, bounds, and who shares what.

A device that runs its tasks in order has a `Record` for each intermediate tensor. There are two
families of assignments, with one strategy each:

    from coexec.plan.memory import STRATEGIES, records_of

    records = [*records_of(graph).values()]
    assignment = STRATEGIES["offsets"](records)

Where segments run in parallel, positions in time do not suffice: `share` works on a partial order.

Source: Pisarchyk and Lee, "Efficient Memory Management for Deep Neural Net Inference"
(arXiv:2001.03288). The other strategies of the papers are in `research/memory_strategies.py`. For
what a run shares, buffers by offset and images of one extent, none needs fewer bytes on a network
of the zoo.
"""

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import groupby
from math import inf
from operator import and_
from types import MappingProxyType
from typing import Literal, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from coexec.graph.graph import Graph


@dataclass(frozen=True, slots=True)
class Record:
    """A tensor that is needed from operation ``first``, which makes it, to ``last``, inclusive.

    Where memory has to begin at a multiple of some number, as OpenCL's sub-buffers do, round
    ``size_bytes`` up to a multiple of it: all offsets are sums of sizes, so they are multiples too.

    Raises ValueError if the size is negative or ``last`` lies before ``first``.
    """

    size_bytes: int
    first: int
    last: int

    def __post_init__(self) -> None:
        if self.size_bytes < 0 or self.last < self.first:
            raise ValueError(f"{self} has a negative size or ends before it begins")

    def __str__(self) -> str:
        return f"{self.size_bytes} B, operations {self.first} to {self.last}"

    def alive_with(self, other: "Record") -> bool:
        """Whether some operation needs both."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True, slots=True)
class Assignment:
    """Tensor i lies at byte ``offsets[i]`` of the memory object ``object_of[i]``.

    One form for both families of strategies. Shared objects: all offsets are 0, and an object
    holds one tensor at a time. Offsets: there is one object, and tensors lie side by side in it.
    """

    object_of: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    """Bytes of each object."""

    @classmethod
    def shared(cls, object_of: Sequence[int], sizes: Sequence[int]) -> Self:
        """Shared objects, each for one tensor at a time."""
        return cls(tuple(object_of), (0,) * len(object_of), tuple(sizes))

    @classmethod
    def arena(cls, offsets: Sequence[int], total_bytes: int) -> Self:
        """One object of ``total_bytes`` that tensors share by their offsets."""
        return cls((0,) * len(offsets), tuple(offsets), (total_bytes,))

    @property
    def total_bytes(self) -> int:
        return sum(self.sizes)


def verify(records: Sequence[Record], assignment: Assignment) -> None:
    """Check that each tensor lies in its object, and overlaps no tensor that is alive with it.

    O(n log n) and a comparison for each pair that is alive together in one object.

    Raises:
        ValueError: naming the two tensors that overlap, or the one that its object cannot hold.
    """
    count = len(records)
    if len(assignment.object_of) != count or len(assignment.offsets) != count:
        raise ValueError(
            f"there are {count} tensors, but {len(assignment.object_of)} have an object and "
            f"{len(assignment.offsets)} an offset"
        )
    for i in range(count):
        _verify_inside(i, records[i], assignment)
    for a, b in _alive_pairs(records, assignment):
        (start, end), (other_start, other_end) = (_span(i, records, assignment) for i in (a, b))
        if max(start, other_start) < min(end, other_end):
            raise ValueError(
                f"tensors {a} ({records[a]}; bytes {start} to {end}) and {b} ({records[b]}; bytes "
                f"{other_start} to {other_end}) are alive together and overlap in object "
                f"{assignment.object_of[a]}"
            )


def _verify_inside(i: int, record: Record, assignment: Assignment) -> None:
    target, offset, sizes = assignment.object_of[i], assignment.offsets[i], assignment.sizes
    if not 0 <= target < len(sizes):
        raise ValueError(f"tensor {i} lies in object {target}, but there are {len(sizes)}")
    if offset < 0 or offset + record.size_bytes > sizes[target]:
        raise ValueError(
            f"tensor {i} ({record}) lies at byte {offset} of object {target}, which ends at "
            f"{sizes[target]}"
        )


def _alive_pairs(records: Sequence[Record], assignment: Assignment) -> Iterator[tuple[int, int]]:
    """The pairs of tensors that are alive together in one object."""
    inside: dict[int, list[int]] = {}
    for i in in_order(records):
        target = assignment.object_of[i]
        alive = [j for j in inside.get(target, ()) if records[j].last >= records[i].first]
        yield from ((j, i) for j in alive)
        inside[target] = [*alive, i]


def _span(i: int, records: Sequence[Record], assignment: Assignment) -> tuple[int, int]:
    return assignment.offsets[i], assignment.offsets[i] + records[i].size_bytes


def in_order(records: Sequence[Record]) -> list[int]:
    """The tensors in the order in which they are made; of one operation, in the given order."""
    return sorted(range(len(records)), key=lambda i: records[i].first)


def alive_at(records: Sequence[Record]) -> Mapping[int, Sequence[int]]:
    """By operation: the tensors that it or a later operation needs, in ascending order.

    Only operations that make a tensor are listed: between two of them no tensor begins to live, so
    no other operation needs more memory.
    """
    tensors_by_first: dict[int, list[int]] = {}
    alive: list[int] = []
    for i in in_order(records):
        first = records[i].first
        alive = [j for j in alive if records[j].last >= first] + [i]
        tensors_by_first[first] = alive
    return {first: sorted(tensors) for first, tensors in tensors_by_first.items()}


def records_of(graph: Graph) -> dict[str, Record]:
    """A record for each tensor that a task makes, by name, in the order of tasks.

    Positions are those of ``graph.tasks``. Values inside a task (a convolution's result that its
    activation overwrites) need no memory. Inputs of the model belong to the caller and have no
    record. Outputs of the model live to the end: they are fetched after the last task.
    """
    end = len(graph.tasks) - 1
    last = {name: end for name in graph.outputs}
    for position in range(end, -1, -1):
        for name in graph.tasks[position].inputs:
            last.setdefault(name, position)
    return {
        name: Record(graph.tensors[name].size_bytes, position, last.get(name, position))
        for position, task in enumerate(graph.tasks)
        for name in task.outputs
    }


# Lower bounds


def offsets_bound(records: Sequence[Record]) -> int:
    """Largest number of bytes that are alive at once: every assignment needs that much."""
    return max((sum(sizes) for sizes in _sizes_alive(records)), default=0)


def shared_objects_bound(records: Sequence[Record]) -> int:
    """Sum of the positional maxima: a lower bound on the total of shared objects.

    If the i-th largest tensor alive has some size, i objects are at least as large.
    """
    return sum(positional_maxima(records))


def positional_maxima(records: Sequence[Record]) -> list[int]:
    """For each i, the maximum over all operations of the i-th largest size alive; descending."""
    maxima: list[int] = []
    for sizes in _sizes_alive(records):
        maxima += [0] * (len(sizes) - len(maxima))
        for i, size in enumerate(sorted(sizes, reverse=True)):
            maxima[i] = max(maxima[i], size)
    return maxima


def _sizes_alive(records: Sequence[Record]) -> list[list[int]]:
    return [[records[i].size_bytes for i in alive] for alive in alive_at(records).values()]


# The strategies of a run


def offsets_by_size(records: Sequence[Record]) -> Assignment:
    """Offsets in one arena: the largest tensor first, each into the smallest gap that holds it.

    A gap lies between placed tensors that are alive with it. Where no gap is large enough, the
    tensor comes behind the last of them. Only for memory whose parts can be addressed by their
    offset: buffers, not images.

    Source: Pisarchyk and Lee (arXiv:2001.03288), greedy by size for offset calculation; TensorFlow
    Lite's GPU delegate.

    Promises at most the sum of all sizes. It equals the bound for the graphs of the zoo, and
    exceeds it by 6 % at most for their launches on OpenCL devices. O(n^2).
    """
    offsets = [0] * len(records)
    total_bytes = 0
    placed: list[tuple[int, int, int, int, int]] = []  # (offset, tensor, end, first, last), sorted
    for i in sorted(range(len(records)), key=lambda i: -records[i].size_bytes):
        size, first, last = records[i].size_bytes, records[i].first, records[i].last
        end, offset, smallest = 0, None, inf
        for other_start, _, other_end, other_first, other_last in placed:
            if other_first <= last and first <= other_last:
                if size <= other_start - end < smallest:
                    offset, smallest = end, other_start - end
                end = max(end, other_end)
        offsets[i] = end if offset is None else offset
        total_bytes = max(total_bytes, offsets[i] + size)
        insort(placed, (offsets[i], i, offsets[i] + size, first, last))
    return Assignment.arena(offsets, total_bytes)


_Gaps: TypeAlias = npt.NDArray[np.float64]
"""By tensor: number of operations between it and the nearest tensor of an object; inf if both are
alive at once."""


def by_size_improved(records: Sequence[Record]) -> Assignment:
    """Shared objects: tensors in stages of similar size, in each stage those first that closely
    follow another.

    The positional maxima are the sizes that the objects have at best. A stage contains the tensors
    from one maximum down to the next: any of these fills the object equally well, so their order is
    free. The tensor closest in time to a free object comes first; of equally close tensors, the
    largest. It joins that object, which grows if needed, or gets a new one if none is free.

    Source: Pisarchyk and Lee (arXiv:2001.03288), greedy by size improved; TensorFlow Lite's GPU
    delegate.

    Promises at most the sum of all sizes; with by_breadth the smallest of this family on most
    networks. O(objects * n^2), in numpy.
    """
    first = np.array([r.first for r in records], np.float64)
    last = np.array([r.last for r in records], np.float64)
    object_of = [-1] * len(records)
    sizes: list[int] = []
    gaps: list[_Gaps] = []
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


def _closest(gaps: Sequence[_Gaps]) -> tuple[int | None, int]:
    """The free object that is closest to a tensor, and the position of that tensor. Without a free
    object: None and the first tensor."""
    if not gaps:
        return None, 0
    nearest = np.min(gaps, axis=0)
    at = int(np.argmin(nearest))
    if np.isinf(nearest[at]):
        return None, at
    return int(np.argmin([gap[at] for gap in gaps])), at


Family = Literal["objects", "offsets"]
"""Whether an object holds one tensor at a time, or many side by side by their offsets.

Images of a GPU cannot be addressed by an offset, so they can only be shared as objects.
"""

Strategy: TypeAlias = Callable[[Sequence[Record]], Assignment]
"""A pure function: same records, same assignment. None of them fails."""

STRATEGIES: Mapping[Family, Strategy] = MappingProxyType(
    {"objects": by_size_improved, "offsets": offsets_by_size}
)
"""Family -> the strategy of a run."""

BOUNDS: Mapping[Family, Callable[[Sequence[Record]], int]] = MappingProxyType(
    {"objects": shared_objects_bound, "offsets": offsets_bound}
)
"""Family -> least bytes of every assignment of the family."""


# Sharing where segments run in parallel


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

    Greedy by size after Pisarchyk and Lee, on the partial order. O(tensors^2) bit operations.

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
