"""Costs that follow what is observed: measured spans of real runs flow back, smoothed."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from coexec.costs.base import AlteredCosts, PartSeconds
from coexec.ir.graph import Graph, Task
from coexec.ir.parts import TaskParts
from coexec.ir.region import Region
from coexec.system.hardware import Place

__all__ = ["Observation", "Observed"]

_SMOOTHING = 0.1
"""Weight of the newest observation: one slow run in ten moves a cost by a tenth of its excess."""


@dataclass(frozen=True, slots=True)
class Observation:
    """A segment that ran: its place, its tasks, what it was predicted to take and took."""

    place: Place
    tasks: tuple[str, ...]
    predicted_s: float
    measured_s: float


@dataclass(frozen=True)
class Observed(AlteredCosts):
    """A cost model times a factor for each task and place, learned from runs.

    A segment's excess is attributed to all its tasks alike: what a cluster loses to another program
    or to its clock, it loses in all of them. Tasks that never ran at a place take the mean factor
    of those that did, for the same reason.
    """

    factors: Mapping[Place, Mapping[str, float]] = field(default_factory=dict)
    """By place, then by task."""

    def after(self, observations: Iterable[Observation]) -> "Observed":
        """The model with one more run taken into account (exponential smoothing)."""
        factors = {place: dict(tasks) for place, tasks in self.factors.items()}
        for seen in observations:
            if seen.predicted_s <= 0.0 or seen.measured_s <= 0.0:
                continue
            ratio = seen.measured_s / seen.predicted_s
            known = factors.setdefault(seen.place, {})
            for task in seen.tasks:
                before = known.get(task, 1.0)
                known[task] = before + _SMOOTHING * (ratio - before)
        return replace(self, factors=factors)

    def factor(self, place: Place, task: str) -> float:
        """How many times longer than the base model says ``task`` takes at ``place``."""
        known = self.factors.get(place, {})
        return known[task] if task in known else _mean(known)

    def drift(self, since: "Observed") -> float:
        """The largest change of a place's mean factor: 0.25 is a quarter slower or faster."""
        changes = (_mean(f) / _mean(since.factors.get(p, {})) for p, f in self.factors.items())
        return max((max(c, 1 / c) - 1.0 for c in changes), default=0.0)

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        seconds = self.base.piece_s(graph, task, region, place)
        return seconds * self.factor(place, task.name)

    def parts_s(self, parts: TaskParts, place: Place) -> PartSeconds:
        base_s = self.base.parts_s(parts, place)
        return lambda task, region: base_s(task, region) * self.factor(place, task.name)


def _mean(factors: Mapping[str, float]) -> float:
    return math.fsum(factors.values()) / len(factors) if factors else 1.0
