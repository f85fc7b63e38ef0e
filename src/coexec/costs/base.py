"""What a planner may ask about time."""

from typing import Protocol

from coexec.ir.graph import Graph, Task
from coexec.ir.region import Region
from coexec.system.hardware import Link, Place

__all__ = ["CostModel"]


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
