"""Lifetimes of tensors and their places in memory: input and output of all strategies."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

__all__ = ["Assignment", "Record", "alive_at", "in_order", "verify"]


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
