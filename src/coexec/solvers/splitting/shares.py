"""Shares of a task: along which axis its output is divided, and how much each device computes."""

import math
from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple

from coexec.ir.graph import Graph, Task
from coexec.ir.receptive import splittable_axes
from coexec.ir.region import Region

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
"""So that each block of 16 may end a part of up to 256 channels, of which tenths miss a few."""
CHANNEL_BLOCK = 16
"""Channels that lie together on every processor: blocks are of 4, 8 or 16."""
Dimension = Literal["H", "OC"]
"""Rows, or output channels."""

_SPATIAL = frozenset({"AveragePool", "Conv", "ConvTranspose", "GlobalAveragePool", "GlobalMaxPool",
                      "LpPool", "MaxPool"})  # fmt: skip
"""Operators on [N, C, spatial axes], of any number of spatial axes."""


class Cut(NamedTuple):
    """How an output is divided."""

    axis: int | None
    """None: one device computes all."""
    steps: tuple[int, ...]
    """By device, how many tenths (or other steps) are its own."""
    block: int = 1
    """Parts begin at multiples of it."""

    def near(self, shares: Sequence[float], most: float) -> bool:
        """Whether no device has over ``most`` more or less than its share; all of it is 1."""
        total = sum(self.steps)
        return all(abs(steps / total - share) <= most + 1e-9
                   for steps, share in zip(self.steps, shares, strict=True))  # fmt: skip


def axis_of(graph: Graph, task: Task, dimension: Dimension) -> int | None:
    """The axis of the main output that is a dimension, if any cut along it is exact.

    Feature maps [N, C, H, ...] have channels on axis 1 and rows on axis 2. Of other outputs, such
    as products of matrices [..., M, N], the last axis has the channels, which are the columns of
    the weights, and the one before it the rows.
    """
    rank = len(graph.output_of(task).shape)
    spatial = rank > 3 or (rank == 3 and any(op.op_type in _SPATIAL for op in task.operators))
    channels, rows = (1, 2) if spatial else (rank - 1, rank - 2)
    axis = channels if dimension == "OC" else rows
    return axis if axis in splittable_axes(graph, task) else None


def ratios(devices: int, steps: int) -> Iterable[tuple[int, ...]]:
    """All ways to give so many steps to the devices."""
    if devices == 1:
        yield (steps,)
        return
    for first in range(steps, -1, -1):
        for rest in ratios(devices - 1, steps - first):
            yield (first, *rest)


def parts(whole: Region, cut: Cut) -> tuple[Region | None, ...]:
    """By device its region, in their order along the axis; None where nothing is left for it.

    What blocks round up goes to the device before the border.
    """
    if cut.axis is None:
        return tuple(whole if steps else None for steps in cut.steps)
    size, total = whole.stop[cut.axis], sum(cut.steps)
    found: list[Region | None] = []
    start = taken = 0
    for steps in cut.steps:
        taken += steps
        rounded = math.ceil(size * taken / total / cut.block) * cut.block
        stop = min(size, rounded) if steps else start
        found.append(whole.with_axis(cut.axis, start, stop) if stop > start else None)
        start = stop
    return tuple(found)


def cuts_of(whole: Region, axis: int, devices: int, steps: int, block: int) -> list[Cut]:
    """The cuts along an axis to choose from: no two with the same parts, none for one device."""
    found: dict[Sequence[Region | None], Cut] = {}
    for given in ratios(devices, steps):
        cut = Cut(axis, given, block)
        regions = parts(whole, cut)
        if sum(region is not None for region in regions) > 1:
            found.setdefault(regions, cut)
    return list(found.values())
