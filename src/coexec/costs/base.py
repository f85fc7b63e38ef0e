"""What a planner may ask about time, and what a profile may be told instead of measuring."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coexec.costs.estimated import Work
from coexec.ir.graph import Graph, Task
from coexec.ir.parts import TaskParts
from coexec.ir.region import Region
from coexec.system.hardware import Link, Place

__all__ = [
    "AlteredCosts",
    "CostModel",
    "PartSeconds",
    "Prediction",
    "Predictor",
    "Sample",
    "Unmeasured",
    "Workload",
]


PartSeconds = Callable[[Task, Region], float]
"""Of a region of a task, on one place."""


class CostModel(Protocol):
    """Seconds for computing and for moving: measured, fitted or of a simulated platform."""

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        """Seconds that ``place`` computes a piece on its own; infinite where it cannot."""
        ...

    def parts_s(self, parts: TaskParts, place: Place) -> PartSeconds:
        """`piece_s` of tasks that are alike. It may remember what it was asked, as long as the
        caller keeps it."""
        ...

    def launch_s(self, place: Place) -> float:
        """Seconds of each `piece_s` that go into starting a program.

        A segment is started once, so it takes ``n - 1`` launches less than its n pieces one by one.
        """
        ...

    def stitch_s(self, tensor: str, size_bytes: int, own_bytes: int, place: Place) -> float:
        """Seconds that ``place`` puts so many bytes of a tensor together from boxes; ``own_bytes``
        of them it has made itself."""
        ...

    def transfer_s(self, tensor: str, size_bytes: int, link: Link) -> float:
        """Seconds that moving so many bytes of a tensor keeps the link and its busy processor
        occupied; with a change of its layout, where its ends have it in different ones."""
        ...


@dataclass(frozen=True)
class AlteredCosts:
    """Another cost model, but for what a subclass says otherwise."""

    base: CostModel

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        return self.base.piece_s(graph, task, region, place)

    def parts_s(self, parts: TaskParts, place: Place) -> PartSeconds:
        return lambda task, region: self.piece_s(parts.graph, task, region, place)

    def launch_s(self, place: Place) -> float:
        return self.base.launch_s(place)

    def stitch_s(self, tensor: str, size_bytes: int, own_bytes: int, place: Place) -> float:
        return self.base.stitch_s(tensor, size_bytes, own_bytes, place)

    def transfer_s(self, tensor: str, size_bytes: int, link: Link) -> float:
        return self.base.transfer_s(tensor, size_bytes, link)


@dataclass(frozen=True, slots=True)
class Sample:
    """A task that was measured."""

    work: Work
    seconds: float


@dataclass(frozen=True, slots=True)
class Unmeasured:
    """A task that was not measured at its size on a place, with what is known of it there."""

    graph: Graph
    task: Task
    operators: str
    """Types of the operators that the engine makes of it, with spaces between."""
    key: str
    """Equal for places on which a task takes equally long: `Device.key`."""
    launch_s: float
    """Seconds of launching any program there."""
    samples: Sequence[Sample]
    """Of equal operators at other sizes (`family_of`), as the same operators of the engine."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds, and their relative error, which nine of ten predictions keep."""

    seconds: float
    uncertainty: float


@dataclass(frozen=True, slots=True)
class Workload:
    """What the kernel of a task has to do, in units of which only the seconds are to be learnt."""

    kind: str
    """Of the kernel: "pointwise", "winograd 4". Each kind has unit times of its own."""
    terms: Mapping[str, float]
    """By unit, how many of it: blocks written out, bytes from a cache, launches. None below 0; the
    names are the same in every workload of the kind."""


Predictor = Callable[[Unmeasured], Prediction | None]
"""Predicts what a task takes; None where it knows too little to say."""
