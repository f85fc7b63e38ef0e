"""Shares of a task: the axis along which its output is divided, and the part of each device."""

import math
from collections.abc import Container, Iterator, Sequence
from typing import Literal, NamedTuple

from coexec.graph.graph import Graph, Task
from coexec.graph.receptive import splittable_axes
from coexec.graph.region import Region

STEPS = 10
"""Shares are multiples of a tenth, as in CoDL."""
FINE_STEPS = 16
"""Steps of a sixteenth: in up to 256 channels, each multiple of 16 channels can be the end of a
part. With tenths, some of these multiples cannot."""
CHANNEL_BLOCK = 16
"""A multiple of the channel blocks of all processors, which have 4, 8 or 16 channels."""
Dimension = Literal["H", "OC"]
"""Rows, or output channels."""

_SPATIAL = frozenset(
    {
        "AveragePool",
        "Conv",
        "ConvTranspose",
        "GlobalAveragePool",
        "GlobalMaxPool",
        "LpPool",
        "MaxPool",
    }
)
"""Operators on [N, C, spatial axes], of any number of spatial axes."""


class Cut(NamedTuple):
    """Division of an output between devices along one axis."""

    axis: int | None
    """None: one device computes the whole output."""
    steps: tuple[int, ...]
    """By device, its number of steps, for example of tenths."""
    block: int = 1
    """Each part begins at a multiple of this number."""


def axis_of(graph: Graph, task: Task, dimension: Dimension) -> int | None:
    """The axis of the main output for a dimension; None if cuts along it would not be exact.

    Feature maps [N, C, H, ...] have channels on axis 1 and rows on axis 2. Other outputs, such as
    products of matrices [..., M, N], have channels (the columns of the weights) on the last axis
    and rows on the second last axis.
    """
    rank = len(graph.output_of(task).shape)
    spatial = rank > 3 or (rank == 3 and any(op.op_type in _SPATIAL for op in task.operators))
    channels, rows = (1, 2) if spatial else (rank - 1, rank - 2)
    axis = channels if dimension == "OC" else rows
    return axis if axis in splittable_axes(graph, task) else None


def ratios(
    steps: int, allowed: Sequence[Container[int]], ends: Sequence[int], taken: int = 0
) -> Iterator[tuple[int, ...]]:
    """Distributions of ``steps`` steps over devices, the largest number for the first device first.

    Args:
        allowed: by device, its possible numbers of steps.
        ends: possible numbers of steps that some first devices have together, falling.
        taken: steps that other devices have already.
    """
    first, *following = allowed
    if not following:
        if steps - taken in first:
            yield (steps - taken,)
        return
    for end in ends:
        if end >= taken and end - taken in first:
            for remaining in ratios(steps, following, ends, end):
                yield (end - taken, *remaining)


def parts(whole: Region, cut: Cut) -> tuple[Region | None, ...]:
    """The region of each device, in order along the axis; None for a device without a part.

    A border is rounded up to a multiple of the block, so the device before the border gets the
    additional items.
    """
    axis, numbers, block = cut
    if axis is None:
        return tuple([whole if steps else None for steps in numbers])
    size, total = whole.stop[axis], sum(numbers)
    regions: list[Region | None] = []
    start = taken = 0
    for steps in numbers:
        taken += steps
        stop = _border(size, taken, total, block) if steps else start
        regions.append(whole.with_axis(axis, start, stop) if stop > start else None)
        start = stop
    return tuple(regions)


def _border(size: int, taken: int, total: int, block: int) -> int:
    """Number of items of the first devices, which have ``taken`` of ``total`` steps together."""
    return min(size, math.ceil(size * taken / total / block) * block)


def cuts_of(
    whole: Region, axis: int, steps: int, block: int, allowed: Sequence[Container[int]]
) -> list[Cut]:
    """The possible cuts along an axis: no two give the same parts, and each uses at least two
    devices.

    Of the cuts that give the same parts, the one with the most steps for the first devices counts.

    Args:
        allowed: by device, its possible numbers of steps.
    """
    size = whole.stop[axis]
    borders = [_border(size, taken, steps, block) for taken in range(steps + 1)]
    ends = [n for n in range(steps, -1, -1) if n == steps or borders[n] < borders[n + 1]]
    distributions = ratios(steps, allowed, ends)
    return [Cut(axis, ratio, block) for ratio in distributions if sum(map(bool, ratio)) > 1]


def allowed_steps(shares: Sequence[float], most: float, steps: int) -> list[Container[int]]:
    """By device, the numbers of steps that differ from its share by at most ``most``.

    Args:
        shares: by device; all ``steps`` together are 1.
    """
    return [
        [n for n in range(steps + 1) if abs(n / steps - share) <= most + 1e-9] for share in shares
    ]
