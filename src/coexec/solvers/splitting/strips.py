"""What devices compute of some tasks without handing anything over, and what they get first."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from coexec.ir.graph import Piece
from coexec.ir.region import Region
from coexec.problem.problem import Problem
from coexec.solvers.splitting.shares import Cut

__all__ = ["Fetch", "Held", "Parts", "Portion", "Strips", "pieces_of"]

Parts = tuple[tuple[int, Region], ...]
"""Devices with the region of a tensor that each has."""

Held = Mapping[str, Parts]
"""By tensor that is still read, where its parts lie. Inputs of the model are not listed: all
devices have them."""


class Portion(NamedTuple):
    """What one device computes in one go."""

    device: int
    regions: tuple[Region, ...]
    """By task that it computes, of the main output."""
    compute_s: float
    """With one launch for all of them."""


class Fetch(NamedTuple):
    """A part of a tensor of which a device lacks something."""

    name: str
    region: Region
    copy_s: float
    latencies_s: tuple[tuple[int, float], ...]
    """Of the devices that make what it lacks, each with the latency of its link."""


@dataclass(frozen=True, slots=True)
class Strips:
    """What the devices compute of some tasks, handing over nothing inside."""

    tasks: tuple[int, ...]
    cut: Cut | None
    """Of the last task; None where devices compute different tasks."""
    shares: tuple[Portion, ...]
    tasks_of: tuple[tuple[int, ...], ...]
    """By share, the tasks that its device computes."""
    fetches: tuple[tuple[Fetch, ...], ...]
    """By share, what its device gets of others first."""
    durations_s: tuple[float, ...]
    """By share, seconds of copying and computing: where nothing is handed over, devices go on
    within a launch."""

    @classmethod
    def of(
        cls, problem: Problem, tasks: tuple[int, ...], cut: Cut | None, shares: tuple[Portion, ...],
        tasks_of: tuple[tuple[int, ...], ...], fetches: tuple[tuple[Fetch, ...], ...],
    ) -> "Strips":  # fmt: skip
        """With durations that follow from the rest."""
        alone = not any(fetches)
        durations_s = tuple([
            math.fsum([fetch.copy_s for fetch in own])
            + max(0.0, compute_s - alone * problem.launches_s[device])
            for (device, _, compute_s), own in zip(shares, fetches, strict=True)
        ])  # fmt: skip
        return cls(tasks, cut, shares, tasks_of, fetches, durations_s)

    @property
    def seconds(self) -> float:
        """Until the last device has ended, if all begin when everything that they read is made."""
        return max(
            duration_s + max((s for f in own for _, s in f.latencies_s), default=0.0)
            for duration_s, own in zip(self.durations_s, self.fetches, strict=True)
        )

    def made(self, problem: Problem) -> list[tuple[str, int, Region]]:
        """Tensors, devices and which part of the tensor these have now that they had not."""
        graph = problem.graph
        found = [
            (f.name, share.device, f.region)
            for share, own in zip(self.shares, self.fetches, strict=True)
            for f in own
        ]
        for (device, regions, _), own in zip(self.shares, self.tasks_of, strict=True):
            for task, region in zip(own, regions, strict=True):
                main, *others = graph.tasks[task].outputs
                found.append((main, device, region))
                found += [(name, device, graph.tensors[name].whole) for name in others]
        return found


def pieces_of(problem: Problem, steps: Iterable[Strips]) -> Iterable[tuple[int, Piece]]:
    """Devices with the pieces that they compute, step by step."""
    for step in steps:
        for (device, regions, _), own in zip(step.shares, step.tasks_of, strict=True):
            for task, region in zip(own, regions, strict=True):
                yield device, Piece(problem.graph.tasks[task].name, region)
