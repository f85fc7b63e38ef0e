"""The parts of tensors that a box of a launch's grid reads and writes.

A generator declares them where it defines the grid. They may be too large, never too small.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coexec.engines.kernels.value import Value
from coexec.engines.tiles import Box


@dataclass(frozen=True, slots=True)
class Along:
    """Items of one axis of the grid, and the part of one axis of a memory that each touches.

    Item i touches the part from ``starts[i]`` to ``stops[i]``, exclusive, as far as it exists. Both
    never descend.
    """

    axis: int
    starts: Sequence[int]
    stops: Sequence[int]

    def part(self, box: Box, size: int) -> tuple[int, int]:
        """The part that a box touches, of a memory's axis with this size."""
        begin, end = box[self.axis]
        start = max(0, self.starts[begin])
        return start, max(start, min(size, self.stops[end - 1]))

    def covers(self, size: int) -> bool:
        """Whether all items together touch the whole axis."""
        gaps = any(a < b for a, b in zip(self.stops, self.starts[1:], strict=False))
        return self.starts[0] <= 0 and self.stops[-1] >= size and not gaps


def along(axis: int, items: int, step: int = 1, first: int = 0, extent: int = 0) -> Along:
    """Each of ``items`` touches ``extent``, by default ``step``, from ``first + step * i`` on."""
    end, stop = first + items * step, first + (extent or step)
    return Along(axis, range(first, end, step), range(stop, stop + items * step, step))


@dataclass(frozen=True, slots=True)
class Touch:
    """The part of a tensor's memory that a box touches: some rows of some planes of some samples.

    The memory consists of ``sizes``: samples, planes of each, rows of each, scalars of each. A
    plane is a block of channels, a channel, or a matrix; a row may also be one pixel.
    """

    sizes: tuple[int, int, int, int]
    samples: Along | None = None
    planes: Along | None = None
    rows: Along | None = None
    """None: all of them."""

    @property
    def axes(self) -> tuple[Along | None, Along | None, Along | None]:
        return self.samples, self.planes, self.rows

    @property
    def plane(self) -> int:
        """Scalars of a plane."""
        return self.sizes[2] * self.sizes[3]

    def part(self, box: Box) -> tuple[int, int, int, int]:
        """The part that a box touches: the first plane and the one behind the last, counted over
        all samples, and the range of scalars in each of these planes."""
        samples, planes, rows = (
            (0, size) if axis is None else axis.part(box, size)
            for axis, size in zip(self.axes, self.sizes, strict=False)
        )
        per_sample, row = self.sizes[1], self.sizes[3]
        first = samples[0] * per_sample + planes[0]
        last = (samples[1] - 1) * per_sample + planes[1]
        return first, last, rows[0] * row, rows[1] * row

    def covers(self) -> bool:
        """Whether all boxes together certainly touch the whole memory."""
        axes = [axis.axis for axis in self.axes if axis]
        return len(axes) == len(set(axes)) and all(
            axis is None or axis.covers(size)
            for axis, size in zip(self.axes, self.sizes, strict=False)
        )


def of_image(
    value: Value,
    rows: Along | None = None,
    planes: Along | None = None,
    samples: Along | None = None,
    *,
    pixels: bool = False,
    joint: bool = False,
) -> Touch:
    """The part of a tensor of four axes, in blocks or row-major.

    Args:
        pixels: ``rows`` counts pixels.
        joint: ``planes`` counts the planes of all samples.
    """
    n, channels, height, width = value.shape
    count = value.slices if value.block else channels
    n, count = (1, n * count) if joint else (n, count)
    height, width = (height * width, 1) if pixels else (height, width)
    return Touch((n, count, height, width * (value.block or 1)), samples, planes, rows)


def of_rows(value: Value, width: int, rows: Along) -> Touch:
    """The part of a tensor that consists of rows of ``width`` scalars."""
    return Touch((1, 1, value.items // width, width), rows=rows)
