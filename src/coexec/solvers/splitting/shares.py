"""Shares of a task: along which axis its output is divided, and how much each device computes."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from coexec.ir.graph import Graph, Task
from coexec.ir.receptive import splittable_axes
from coexec.ir.region import Region

__all__ = ["CHANNELS", "ROWS", "Cut", "cuts_of", "parts", "ratios"]

CHANNELS, ROWS = 1, 2
"""The axes of a feature map [N, C, H, W] along which devices share it."""


@dataclass(frozen=True, slots=True)
class Cut:
    """An axis, and by device how many tenths (or other steps) of it are its own."""

    axis: int
    steps: tuple[int, ...]

    @property
    def alone(self) -> bool:
        """Whether one device computes all."""
        return sum(1 for steps in self.steps if steps) == 1

    def near(self, other: "Cut", most: int) -> bool:
        """Whether no device has over ``most`` steps more or fewer than with the other cut."""
        return all(abs(a - b) <= most for a, b in zip(self.steps, other.steps, strict=True))


def ratios(devices: int, steps: int) -> Iterable[tuple[int, ...]]:
    """All ways to give so many steps to the devices."""
    if devices == 1:
        yield (steps,)
        return
    for first in range(steps, -1, -1):
        for rest in ratios(devices - 1, steps - first):
            yield (first, *rest)


def parts(whole: Region, cut: Cut, block: int) -> list[Region | None]:
    """By device its region, in their order along the axis; None where nothing is left for it.

    Args:
        block: regions end at multiples of it, as what lies together is not divided; the first
            devices get what that rounds up.
    """
    size, total = whole.stop[cut.axis], sum(cut.steps)
    found: list[Region | None] = []
    start = taken = 0
    for steps in cut.steps:
        taken += steps
        stop = min(size, math.ceil(size * taken / total / block) * block) if steps else start
        found.append(whole.with_axis(cut.axis, start, stop) if stop > start else None)
        start = stop
    return found


def cuts_of(graph: Graph, task: Task, axes: Sequence[int], devices: int, steps: int) -> list[Cut]:
    """The cuts to choose from: each device alone, and along each of ``axes`` where it is exact."""
    shape = graph.output_of(task).shape
    able = [a for a in axes if len(shape) == 4 and a in splittable_axes(graph, task)]
    alone = [Cut(0, tuple(steps if d == device else 0 for d in range(devices)))
             for device in range(devices)]  # fmt: skip
    shared = [Cut(axis, given) for axis in able for given in ratios(devices, steps)]
    return [*alone, *(cut for cut in shared if not cut.alone)]
