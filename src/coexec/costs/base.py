"""What a planner may ask about time, and what a profile may be told instead of measuring."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from coexec.costs.estimated import Work
from coexec.ir.graph import Graph, Task
from coexec.ir.region import Region
from coexec.system.hardware import Link, Place

__all__ = ["CostModel", "Prediction", "Predictor", "Sample", "Unmeasured"]


class CostModel(Protocol):
    """Seconds for computing and for moving: measured, fitted or of a simulated platform."""

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        """Seconds that ``place`` computes a piece on its own; infinite where it cannot."""
        ...

    def launch_s(self, place: Place) -> float:
        """Seconds of each `piece_s` that go into starting a program.

        A segment is started once, so it takes ``n - 1`` launches less than its n pieces one by one.
        """
        ...

    def transfer_s(self, size_bytes: int, link: Link) -> float:
        """Seconds that a transfer keeps the link and its busy processor occupied."""
        ...


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


Predictor = Callable[[Unmeasured], Prediction | None]
"""Predicts what a task takes; None where it knows too little to say."""
