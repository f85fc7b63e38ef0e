"""Strips: the regions that devices compute without exchanging data, and what they fetch first."""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from coexec.graph.graph import Piece
from coexec.graph.region import Region
from coexec.planners.methods.splitting.shares import Cut
from coexec.problem.problem import Problem

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


class Incoming(NamedTuple):
    """All that one device fetches before it computes."""

    fetches: tuple[Fetch, ...]
    copy_s: float
    """Seconds of all copies, which the device makes one after the other."""
    latency_s: float
    """The largest latency of the links to its suppliers; 0 if it fetches nothing."""
    ready_s: float
    """Second at which the last supplier has made its part, plus the latency of its link; 0 if the
    device fetches nothing."""

    @classmethod
    def of(cls, fetches: tuple[Fetch, ...], made_s: Mapping[tuple[str, int], float]) -> "Incoming":
        """Totals of ``fetches``, if parts are complete at ``made_s``, by tensor and device."""
        if not fetches:
            return _NOTHING
        supplies = [(f.name, owner, s) for f in fetches for owner, s in f.latencies_s]
        return cls(
            fetches,
            math.fsum([fetch.copy_s for fetch in fetches]),
            max([latency_s for _, _, latency_s in supplies]),
            max([made_s[name, owner] + latency_s for name, owner, latency_s in supplies]),
        )


_NOTHING = Incoming((), 0.0, 0.0, 0.0)


class Strips(NamedTuple):
    """One step of a plan: devices compute regions of some tasks and exchange no data meanwhile."""

    tasks: tuple[int, ...]
    cut: Cut | None
    """The division of the last task; None if devices compute different tasks."""
    shares: tuple[Portion, ...]
    tasks_of: tuple[tuple[int, ...], ...]
    """The tasks that each share's device computes."""
    incoming: tuple[Incoming, ...]
    """The data that each share's device fetches first."""
    durations_s: tuple[float, ...]
    """Seconds of copying and computing, by share, and of joining an output of the model. If no
    share fetches anything, the devices continue in their current launch, so no launch time is
    included."""

    @classmethod
    def of(
        cls,
        problem: Problem,
        tasks: tuple[int, ...],
        cut: Cut | None,
        shares: tuple[Portion, ...],
        tasks_of: tuple[tuple[int, ...], ...],
        incoming: tuple[Incoming, ...],
    ) -> "Strips":
        """Strips whose durations are computed from the other values."""
        launches_s = problem.launches_s
        alone = not any([own.fetches for own in incoming])
        joined_s = problem.join_s(tasks[-1]) if cut is not None and len(shares) > 1 else 0.0
        durations_s = tuple(
            [
                joined_s + own.copy_s + max(0.0, compute_s - alone * launches_s[device])
                for (device, _, compute_s), own in zip(shares, incoming, strict=True)
            ]
        )
        return cls(tasks, cut, shares, tasks_of, incoming, durations_s)

    @property
    def seconds(self) -> float:
        """Seconds until the last device ends, if all devices begin when all data that they read has
        been made."""
        return max(
            [
                duration_s + own.latency_s
                for duration_s, own in zip(self.durations_s, self.incoming, strict=True)
            ]
        )

    def made(self, problem: Problem) -> list[tuple[str, int, Region]]:
        """New parts after this step: tensor, device, and the region that the device now has."""
        graph = problem.graph
        parts = [
            (f.name, share.device, f.region)
            for share, own in zip(self.shares, self.incoming, strict=True)
            for f in own.fetches
        ]
        for (device, regions, _), tasks in zip(self.shares, self.tasks_of, strict=True):
            for task, region in zip(tasks, regions, strict=True):
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
