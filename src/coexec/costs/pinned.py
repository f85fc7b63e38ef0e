"""Tasks that the user has put on a device: for every planner, as costs of the others."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from coexec.costs.base import CostModel
from coexec.errors import InfeasibleError, UsageError
from coexec.ir.graph import Graph, Task
from coexec.ir.region import Region
from coexec.system.hardware import Link, System

__all__ = ["Pinned", "resolve"]


@dataclass(frozen=True)
class Pinned:
    """A cost model that knows no other device for pinned tasks: no planner can place them there."""

    base: CostModel
    device_of: Mapping[str, str]
    """By task name."""

    def piece_s(self, graph: Graph, task: Task, region: Region, device: str) -> float:
        if self.device_of.get(task.name, device) != device:
            return math.inf
        return self.base.piece_s(graph, task, region, device)

    def launch_s(self, device: str) -> float:
        return self.base.launch_s(device)

    def transfer_s(self, size_bytes: int, link: Link) -> float:
        return self.base.transfer_s(size_bytes, link)


def resolve(
    pins: Mapping[str, str], graph: Graph, cost: CostModel, system: System
) -> dict[str, str]:
    """The device of each task that a pattern matches; a later pattern wins over an earlier one.

    Raises:
        UsageError: a pattern that matches no task, or a device that is not there.
        InfeasibleError: a device that cannot run a task pinned to it.
    """
    found: dict[str, str] = {}
    for pattern, device in pins.items():
        if device not in system.names:
            raise UsageError(f"pin {pattern}={device}: there is no device {device!r} in this plan, "
                             f"only {', '.join(system.names)}")  # fmt: skip
        matching = [t for t in graph.tasks if fnmatchcase(t.name, pattern)]
        if not matching:
            raise UsageError(f"pin {pattern}={device} matches no task; coexec inspect MODEL "
                             f"--tasks lists them, patterns are allowed")  # fmt: skip
        for task in matching:
            if math.isinf(cost.piece_s(graph, task, graph.output_of(task).whole, device)):
                raise InfeasibleError(f"pin {pattern}={device}: {device} does not run task "
                                      f"{task.name!r} ({task.kind})")  # fmt: skip
            found[task.name] = device
    return found
