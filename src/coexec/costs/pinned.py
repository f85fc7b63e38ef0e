"""Tasks that the user has pinned to a device: their cost on other devices is infinite, so every
planner obeys."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from coexec.costs.base import AlteredCosts, CostModel, PartSeconds
from coexec.errors import InfeasibleError, UsageError
from coexec.graph.graph import Graph, Task
from coexec.graph.region import Region
from coexec.graph.task_samples import TaskParts
from coexec.hardware.hardware import Place, System


@dataclass(frozen=True)
class Pinned(AlteredCosts):
    """A cost model in which a pinned task costs infinitely much on all places but the allowed
    ones."""

    allowed: Mapping[str, frozenset[Place]]
    """Allowed places by name of the pinned task."""

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        if task.name in self.allowed and place not in self.allowed[task.name]:
            return math.inf
        return self.base.piece_s(graph, task, region, place)

    def parts_s(self, parts: TaskParts, place: Place) -> PartSeconds:
        base_s, allowed = self.base.parts_s(parts, place), self.allowed

        def part_s(task: Task, region: Region) -> float:
            pinned = task.name in allowed and place not in allowed[task.name]
            return math.inf if pinned else base_s(task, region)

        return part_s


def resolve(
    pins: Mapping[str, str], graph: Graph, cost: CostModel, system: System
) -> dict[str, frozenset[Place]]:
    """Allowed places by task name, for the tasks that a pattern matches. A later pattern replaces
    an earlier one.

    A pin names a device, "cpu:1", or one of its engines, "cpu:1/cpp".

    Raises:
        UsageError: a pattern matches no task, or a device is not in ``system``.
        InfeasibleError: a device cannot run a task that is pinned to it.
    """
    allowed: dict[str, frozenset[Place]] = {}
    for pattern, device in pins.items():
        places = frozenset(p for p in system.places if device in (p.device, str(p)))
        if not places:
            raise UsageError(
                f"pin {pattern}={device}: there is no device {device!r} in this plan, "
                f"only {', '.join(map(str, system.places))}"
            )
        matching = [t for t in graph.tasks if fnmatchcase(t.name, pattern)]
        if not matching:
            raise UsageError(
                f"pin {pattern}={device} matches no task; coexec inspect MODEL "
                f"--tasks lists them, patterns are allowed"
            )
        for task in matching:
            whole = graph.output_of(task).whole
            if all(math.isinf(cost.piece_s(graph, task, whole, place)) for place in places):
                raise InfeasibleError(
                    f"pin {pattern}={device}: {device} does not run task "
                    f"{task.name!r} ({task.kind})"
                )
            allowed[task.name] = places
    return allowed
