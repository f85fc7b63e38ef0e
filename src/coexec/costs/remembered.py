"""Costs of parts of tasks, each worked out once: a planner asks for them again and again."""

from coexec.costs.base import CostModel, PartSeconds
from coexec.ir.graph import Graph, Task
from coexec.ir.parts import GraphParts, TaskParts
from coexec.ir.region import Region
from coexec.system.hardware import Link, Place

__all__ = ["RememberedCosts"]


class RememberedCosts:
    """What another cost model says of one graph. It lives as long as a planning call."""

    def __init__(self, base: CostModel, parts: GraphParts) -> None:
        self._base, self._parts = base, parts
        self._part_s: dict[tuple[TaskParts, Place], PartSeconds] = {}

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        return self.parts_s(self._parts.of(task), place)(task, region)

    def parts_s(self, parts: TaskParts, place: Place) -> PartSeconds:
        key = parts, place
        if key not in self._part_s:
            self._part_s[key] = self._base.parts_s(parts, place)
        return self._part_s[key]

    def launch_s(self, place: Place) -> float:
        return self._base.launch_s(place)

    def stitch_s(self, size_bytes: int, place: Place) -> float:
        return self._base.stitch_s(size_bytes, place)

    def transfer_s(self, size_bytes: int, link: Link) -> float:
        return self._base.transfer_s(size_bytes, link)
