"""A cost model that looks everything up: what `coexec.profiling.profiler` measured."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from coexec.errors import PlanError
from coexec.ir.graph import Graph, Task
from coexec.ir.region import Region
from coexec.system.hardware import Link

__all__ = ["CostTable"]


@dataclass(frozen=True)
class CostTable:
    """Seconds by device name.

    A piece that was not measured itself is charged its share of the whole task, which is exact
    in the limit of large regions; `coexec.profiling.profiler` measures the pieces that matter.
    """

    tasks_s: Mapping[str, Mapping[str, float]]
    """By device, then by task name: the whole task; infinite where the device cannot run it."""
    launches_s: Mapping[str, float] = field(default_factory=dict)

    def piece_s(self, graph: Graph, task: Task, region: Region, device: str) -> float:
        try:
            whole_s = self.tasks_s[device][task.name]
        except KeyError:
            raise PlanError(
                f"task {task.name!r} was not measured on {device!r}; profile the model on it: "
                f"coexec profile MODEL --devices {device}"
            ) from None
        size = graph.output_of(task).whole.size
        return whole_s if region.size == size else whole_s * region.size / max(1, size)

    def launch_s(self, device: str) -> float:
        return self.launches_s.get(device, 0.0)

    def transfer_s(self, size_bytes: int, link: Link) -> float:
        return link.copy_s(size_bytes)

    def total_s(self, device: str) -> float:
        """Seconds of all tasks one by one on ``device``."""
        return math.fsum(self.tasks_s[device].values())
