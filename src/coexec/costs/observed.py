"""Costs that are corrected by the measured times of real runs, with exponential smoothing."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from coexec.costs.base import AlteredCosts, PartSeconds
from coexec.graph.graph import Graph, Task
from coexec.graph.region import Region
from coexec.graph.task_samples import TaskParts
from coexec.hardware.hardware import Place

_SMOOTHING = 0.1
"""Weight of the newest observation: one slow run in ten moves a cost by a tenth of its excess."""


@dataclass(frozen=True, slots=True)
class Observation:
    """One run of a segment: its place, its tasks, its predicted and its measured seconds."""

    place: Place
    tasks: tuple[str, ...]
    predicted_s: float
    measured_s: float


@dataclass(frozen=True)
class Observed(AlteredCosts):
    """A cost model times a factor for each task and place, learned from runs.

    The excess of a segment is attributed to all its tasks alike: another program or a lower clock
    slows down all tasks of a cluster of cores. Tasks that never ran at a place take the mean factor
    of those that did, for the same reason.
    """

    factors: Mapping[Place, Mapping[str, float]] = field(default_factory=dict)
    """Factor by place, then by task."""

    def after(self, observations: Iterable[Observation]) -> "Observed":
        """This model with one more run taken into account (exponential smoothing)."""
        factors = {place: dict(tasks) for place, tasks in self.factors.items()}
        for observation in observations:
            if observation.predicted_s <= 0.0 or observation.measured_s <= 0.0:
                continue
            ratio = observation.measured_s / observation.predicted_s
            place_factors = factors.setdefault(observation.place, {})
            for task in observation.tasks:
                before = place_factors.get(task, 1.0)
                place_factors[task] = before + _SMOOTHING * (ratio - before)
        return replace(self, factors=factors)

    def factor(self, place: Place, task: str) -> float:
        """Factor by which ``task`` at ``place`` takes longer than in the base model."""
        place_factors = self.factors.get(place, {})
        return place_factors[task] if task in place_factors else _mean(place_factors)

    def drift(self, since: "Observed") -> float:
        """The largest change of a place's mean factor: 0.25 means a quarter slower or faster."""
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
