"""A cost model that looks everything up: what `coexec.profiling.profiler` found."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from coexec.errors import PlanError
from coexec.ir.graph import Graph, Task
from coexec.ir.region import Region
from coexec.system.hardware import Link, Place

__all__ = ["Basis", "CostTable"]

Basis = Literal["measured", "known", "predicted", "estimated"]
"""Where a time comes from: measured now, or before; predicted from other sizes of the task; or
estimated from what it computes and moves, as it could not be measured."""


@dataclass(frozen=True)
class CostTable:
    """Seconds by place, that is by device and engine.

    Whole tasks were measured. A part of one is charged its share of the whole, which is exact in
    the limit of large regions.
    """

    tasks_s: Mapping[Place, Mapping[str, float]]
    """By place, then by task name: the whole task; infinite where the engine cannot run it."""
    launches_s: Mapping[Place, float] = field(default_factory=dict)
    bases: Mapping[Place, Mapping[str, Basis]] = field(default_factory=dict)
    """By place, then by task that runs there; empty if nobody noted it."""

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        try:
            whole_s = self.tasks_s[place][task.name]
        except KeyError:
            raise PlanError(
                f"task {task.name!r} was not measured on {place}; profile the model on it: "
                f"coexec profile MODEL --devices {place}"
            ) from None
        size = graph.output_of(task).whole.size
        return whole_s if region.size == size else whole_s * region.size / max(1, size)

    def launch_s(self, place: Place) -> float:
        return self.launches_s.get(place, 0.0)

    def transfer_s(self, size_bytes: int, link: Link) -> float:
        return link.copy_s(size_bytes)

    def total_s(self, place: Place) -> float:
        """Seconds of all tasks one by one at ``place``."""
        return math.fsum(self.tasks_s[place].values())
