"""Shares of a task: the axis along which its output is divided, and the part of each device."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from coexec.graph.graph import Graph, Task
from coexec.graph.receptive import splittable_axes
from coexec.graph.region import Region

__all__ = [
    "CHANNEL_BLOCK",
    "FINE_STEPS",
    "STEPS",
    "Cut",
    "Dimension",
    "axis_of",
    "cuts_of",
    "parts",
    "ratios",
]

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

    def near(self, shares: Sequence[float], most: float) -> bool:
        """Whether the part of each device differs from its share by at most ``most``.

        Args:
            shares: by device; the whole output is 1.
        """
        total = sum(self.steps)
        return all(
            abs(steps / total - share) <= most + 1e-9
            for steps, share in zip(self.steps, shares, strict=True)
        )


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


def ratios(devices: int, steps: int) -> Iterable[tuple[int, ...]]:
    """All distributions of ``steps`` steps over ``devices`` devices."""
    if devices == 1:
        yield (steps,)
        return
    for first in range(steps, -1, -1):
        for remaining in ratios(devices - 1, steps - first):
            yield (first, *remaining)


def parts(whole: Region, cut: Cut) -> tuple[Region | None, ...]:
    """The region of each device, in order along the axis; None for a device without a part.

    A border is rounded up to a multiple of the block, so the device before the border gets the
    additional items.
    """
    if cut.axis is None:
        return tuple(whole if steps else None for steps in cut.steps)
    size, total = whole.stop[cut.axis], sum(cut.steps)
    regions: list[Region | None] = []
    start = taken = 0
    for steps in cut.steps:
        taken += steps
        rounded = math.ceil(size * taken / total / cut.block) * cut.block
        stop = min(size, rounded) if steps else start
        regions.append(whole.with_axis(cut.axis, start, stop) if stop > start else None)
        start = stop
    return tuple(regions)


def cuts_of(whole: Region, axis: int, devices: int, steps: int, block: int) -> list[Cut]:
    """The possible cuts along an axis: no two give the same parts, and each uses at least two
    devices."""
    cut_of: dict[Sequence[Region | None], Cut] = {}
    for ratio in ratios(devices, steps):
        cut = Cut(axis, ratio, block)
        regions = parts(whole, cut)
        if sum(region is not None for region in regions) > 1:
            cut_of.setdefault(regions, cut)
    return list(cut_of.values())
