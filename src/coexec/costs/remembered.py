"""A cost model that caches the costs of parts of tasks: planners need the same costs many times."""

from dataclasses import dataclass, field

from coexec.costs.base import AlteredCosts, PartSeconds
from coexec.graph.graph import Graph, Task
from coexec.graph.region import Region
from coexec.graph.task_samples import GraphParts, TaskParts
from coexec.hardware.hardware import Place


@dataclass(frozen=True, eq=False)
class RememberedCosts(AlteredCosts):
    """Cached costs of another cost model for one graph. It lives as long as a planning call."""

    parts: GraphParts
    _part_s: dict[tuple[TaskParts, Place], PartSeconds] = field(default_factory=dict, init=False)

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        return self.parts_s(self.parts.of(task), place)(task, region)

    def parts_s(self, parts: TaskParts, place: Place) -> PartSeconds:
        key = parts, place
        if key not in self._part_s:
            self._part_s[key] = self.base.parts_s(parts, place)
        return self._part_s[key]
