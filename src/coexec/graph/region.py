"""Half-open boxes in a tensor's axes: the region that a piece computes or that a transfer moves."""

import math
from collections.abc import Sequence
from typing import NamedTuple

# Planners compute shapes, overlaps and hashes several hundred thousand times. So regions are
# tuples, and their shapes and overlaps are made in lists, without max() and min().


class Region(NamedTuple):
    """The elements x with ``start[i] <= x[i] < stop[i]`` on every axis i.

    A scalar has no axes: its only region has empty ``start`` and ``stop`` and size 1.
    """

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> "Region":
        """The region that covers a tensor of ``shape``."""
        return cls((0,) * len(shape), tuple(shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """Size of each axis."""
        return tuple([b - a if b > a else 0 for a, b in zip(self.start, self.stop, strict=True)])

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def slices(self) -> tuple[slice, ...]:
        """Index of this region in a numpy array of the whole tensor."""
        return tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))

    def covers(self, shape: Sequence[int]) -> bool:
        """Whether this is the whole of a tensor of ``shape``."""
        return self.stop == tuple(shape) and not any(self.start)

    def contains(self, other: "Region") -> bool:
        """Whether every element of ``other`` lies in this region."""
        return other.size == 0 or self.overlap(other) == other

    def overlap(self, other: "Region") -> "Region":
        """The common elements; of size 0 where there are none."""
        start = [a if a > b else b for a, b in zip(self.start, other.start, strict=True)]
        stop = [a if a < b else b for a, b in zip(self.stop, other.stop, strict=True)]
        ends = [b if b > a else a for a, b in zip(start, stop, strict=True)]
        return Region(tuple(start), tuple(ends))

    def hull(self, other: "Region") -> "Region":
        """The smallest region that contains both."""
        if not self.size:
            return other
        if not other.size:
            return self
        start = tuple(min(a, b) for a, b in zip(self.start, other.start, strict=True))
        return Region(start, tuple(max(a, b) for a, b in zip(self.stop, other.stop, strict=True)))

    def relative_to(self, outer: "Region") -> "Region":
        """The same elements in coordinates that start where ``outer`` starts."""
        start = tuple(a - o for a, o in zip(self.start, outer.start, strict=True))
        return Region(start, tuple(b - o for b, o in zip(self.stop, outer.start, strict=True)))

    def with_axis(self, axis: int, start: int, stop: int) -> "Region":
        """This region with another range on one axis."""
        starts, stops = list(self.start), list(self.stop)
        starts[axis], stops[axis] = start, stop
        return Region(tuple(starts), tuple(stops))

    def __str__(self) -> str:
        ranges = (f"{a}:{b}" for a, b in zip(self.start, self.stop, strict=True))
        return "[" + ", ".join(ranges) + "]"
