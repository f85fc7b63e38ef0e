"""Strips: the regions that devices compute without exchanging data, and what they fetch first."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from coexec.graph.graph import Piece
from coexec.graph.region import Region
from coexec.planners.methods.splitting.shares import Cut
from coexec.problem.problem import Problem

__all__ = ["Fetch", "Portion", "RegionsByTask", "StripRegions", "Strips", "pieces_of"]

StripRegions = tuple[tuple[int, Region], ...]
"""Pairs of a device and the region of a tensor that it has."""

RegionsByTask = Mapping[str, StripRegions]
"""The parts of each tensor that a later task reads. Inputs of the model are not listed, because all
devices have them."""


class Portion(NamedTuple):
    """The regions that one device computes in one launch."""

    device: int
    regions: tuple[Region, ...]
    """The region of the main output, for each task that the device computes."""
    compute_s: float
    """Includes one launch for all tasks together."""


class Fetch(NamedTuple):
    """Transfer of the missing elements of a tensor's region to a device."""

    name: str
    region: Region
    copy_s: float
    latencies_s: tuple[tuple[int, float], ...]
    """Each device that supplies missing elements, with the latency of its link in seconds."""


@dataclass(frozen=True, slots=True)
class Strips:
    """One step of a plan: devices compute regions of some tasks and exchange no data meanwhile."""

    tasks: tuple[int, ...]
    cut: Cut | None
    """The division of the last task; None if devices compute different tasks."""
    shares: tuple[Portion, ...]
    tasks_of: tuple[tuple[int, ...], ...]
    """The tasks that each share's device computes."""
    fetches: tuple[tuple[Fetch, ...], ...]
    """The data that each share's device fetches first."""
    durations_s: tuple[float, ...]
    """Seconds of copying and computing, by share. If no share fetches anything, the devices
    continue in their current launch, so no launch time is included."""

    @classmethod
    def of(
        cls,
        problem: Problem,
        tasks: tuple[int, ...],
        cut: Cut | None,
        shares: tuple[Portion, ...],
        tasks_of: tuple[tuple[int, ...], ...],
        fetches: tuple[tuple[Fetch, ...], ...],
    ) -> "Strips":
        """Strips whose durations are computed from the other values."""
        alone = not any(fetches)
        durations_s = tuple(
            [
                math.fsum([fetch.copy_s for fetch in own])
                + max(0.0, compute_s - alone * problem.launches_s[device])
                for (device, _, compute_s), own in zip(shares, fetches, strict=True)
            ]
        )
        return cls(tasks, cut, shares, tasks_of, fetches, durations_s)

    @property
    def seconds(self) -> float:
        """Seconds until the last device ends, if all devices begin when all data that they read has
        been made."""
        return max(
            duration_s + max((s for f in own for _, s in f.latencies_s), default=0.0)
            for duration_s, own in zip(self.durations_s, self.fetches, strict=True)
        )

    def made(self, problem: Problem) -> list[tuple[str, int, Region]]:
        """New parts after this step: tensor, device, and the region that the device now has."""
        graph = problem.graph
        parts = [
            (f.name, share.device, f.region)
            for share, own in zip(self.shares, self.fetches, strict=True)
            for f in own
        ]
        for (device, regions, _), own in zip(self.shares, self.tasks_of, strict=True):
            for task, region in zip(own, regions, strict=True):
                main, *further = graph.tasks[task].outputs
                parts.append((main, device, region))
                parts += [(name, device, graph.tensors[name].whole) for name in further]
        return parts


def pieces_of(problem: Problem, steps: Iterable[Strips]) -> Iterable[tuple[int, Piece]]:
    """Pairs of a device and a piece that it computes, step by step."""
    for step in steps:
        for (device, regions, _), own in zip(step.shares, step.tasks_of, strict=True):
            for task, region in zip(own, regions, strict=True):
                yield device, Piece(problem.graph.tasks[task].name, region)
