"""Interfaces of cost models, which give planners durations, and of predictors, which replace
measurements in a profile."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from coexec.costs.estimated import Work
from coexec.graph.graph import Graph, Task
from coexec.graph.region import Region
from coexec.graph.task_samples import TaskParts
from coexec.hardware.hardware import Link, Place

PartSeconds = Callable[[Task, Region], float]
"""Seconds of a region of a task, on one place."""


class CostModel(Protocol):
    """Seconds for computing and for moving: measured, fitted or of a simulated platform."""

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        """Seconds that ``place`` takes for a piece that runs alone; infinite if it cannot compute
        it."""
        ...

    def parts_s(self, parts: TaskParts, place: Place) -> PartSeconds:
        """`piece_s` as a function, for all tasks that are alike. The function may cache its
        results, for as long as the caller keeps it."""
        ...

    def launch_s(self, place: Place) -> float:
        """Seconds that starting a program takes; each `piece_s` includes them.

        A segment is started once, so a segment of n pieces takes ``n - 1`` launches less than the
        sum of their `piece_s`.
        """
        ...

    def stitch_s(self, tensor: str, size_bytes: int, own_bytes: int, place: Place) -> float:
        """Seconds in which ``place`` assembles ``size_bytes`` of a tensor from boxes; it has
        computed ``own_bytes`` of them itself."""
        ...

    def join_s(self, size_bytes: int) -> float:
        """Seconds in which the host copies ``size_bytes`` of an output, which several segments have
        written in parts, to one array of the caller."""
        ...

    def transfer_s(self, tensor: str, size_bytes: int, link: Link) -> float:
        """Seconds for which moving ``size_bytes`` of a tensor occupies the link and its busy
        processor. They include a change of the layout, if the ends of the link use different
        layouts."""
        ...


@dataclass(frozen=True)
class AlteredCosts:
    """The costs of another model, except those that a subclass overrides."""

    base: CostModel

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        return self.base.piece_s(graph, task, region, place)

    def parts_s(self, parts: TaskParts, place: Place) -> PartSeconds:
        return lambda task, region: self.piece_s(parts.graph, task, region, place)

    def launch_s(self, place: Place) -> float:
        return self.base.launch_s(place)

    def stitch_s(self, tensor: str, size_bytes: int, own_bytes: int, place: Place) -> float:
        return self.base.stitch_s(tensor, size_bytes, own_bytes, place)

    def join_s(self, size_bytes: int) -> float:
        return self.base.join_s(size_bytes)

    def transfer_s(self, tensor: str, size_bytes: int, link: Link) -> float:
        return self.base.transfer_s(tensor, size_bytes, link)


@dataclass(frozen=True, slots=True)
class Sample:
    """A measured task."""

    work: Work
    seconds: float


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """A task that was not measured at its size on a place, and the data for predicting its time."""

    graph: Graph
    task: Task
    operators: str
    """Types of the engine's operators for this task, separated by spaces."""
    key: str
    """`Device.key` of the place: equal for places on which a task takes equally long."""
    launch_s: float
    """Seconds that launching any program takes there."""
    samples: Sequence[Sample]
    """Measurements of equal operators at other sizes (`family_of`) for which the engine uses the
    same operators."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted seconds, and the relative error that nine of ten predictions keep."""

    seconds: float
    uncertainty: float


Predictor = Callable[[Unmeasured], Prediction | None]
"""Predicts how long a task takes; None if the data do not suffice."""


class TrainedPredictor(Protocol):
    """A `Predictor` of one place that was trained there, and that predicts parts of tasks, too."""

    def __call__(self, task: Unmeasured) -> Prediction | None: ...

    def shares(self, parts: TaskParts) -> Callable[[Region], float | None]:
        """Function from a region of a task's main output to its predicted share of the whole task's
        seconds, at most 1; None if the part or the whole cannot be predicted."""
        ...
