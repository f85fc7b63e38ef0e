"""What each share of a pipeline plan computes, and how much of it others compute, too."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product

from coexec.ir.graph import Graph, Task
from coexec.ir.region import Region
from coexec.ir.strip import Strip, strip_of
from coexec.plans.pipeline.plan import PipelinePlan, Stage

__all__ = ["SharedWork", "redundancy", "share_strip", "stage_work"]


@dataclass(frozen=True, slots=True)
class SharedWork:
    """What one share computes."""

    machine: str
    strip: Strip
    useful_macs: Fraction
    """What n shares of the stage compute alike counts as one n-th to each of them, so that the
    useful parts of all shares add up to what is computed at least once."""

    @property
    def redundant_macs(self) -> Fraction:
        """What would not have to be computed if no other share computed the same."""
        return self.strip.macs - self.useful_macs


def share_strip(graph: Graph, stage: Stage, index: int) -> Strip:
    """The strip of the share ``index``: pieces with halos, what it reads and what it hands on."""
    return strip_of(graph, _tasks(graph, stage), dict(stage.shares[index].outputs))


def stage_work(graph: Graph, stage: Stage) -> tuple[SharedWork, ...]:
    """By share, its work."""
    strips = [share_strip(graph, stage, index) for index in range(len(stage.shares))]
    regions = [{piece.task: piece.region for piece in strip.pieces} for strip in strips]
    useful = [Fraction(0)] * len(strips)
    for task in _tasks(graph, stage):
        own = [found.get(task.name) for found in regions]
        whole = graph.output_of(task).whole.size
        for index, size in enumerate(_own_elements(own)):
            useful[index] += task.macs * size / max(1, whole)
    return tuple(
        SharedWork(machine, strip, min(own_macs, Fraction(strip.macs)))
        for machine, strip, own_macs in zip(stage.machines, strips, useful, strict=True)
    )


def redundancy(graph: Graph, plan: PipelinePlan) -> float:
    """Share of all that machines compute which is computed more often than once, 0 to 1."""
    works = [work for stage in plan.stages for work in stage_work(graph, stage)]
    total = sum(work.strip.macs for work in works)
    return float(sum(work.redundant_macs for work in works) / total) if total else 0.0


def _tasks(graph: Graph, stage: Stage) -> list[Task]:
    return [graph.task[name] for name in stage.tasks]


def _own_elements(regions: Sequence[Region | None]) -> list[Fraction]:
    """By region its number of elements, those that n regions hold as one n-th each.

    The borders of all regions cut space into cells that lie inside or outside of each.
    """
    found = [Fraction(0)] * len(regions)
    there = [region for region in regions if region is not None]
    if not there:
        return found
    edges = [
        sorted({edge for r in there for edge in (r.start[axis], r.stop[axis])})
        for axis in range(len(there[0].start))
    ]
    for corner in product(*(pairwise(marks) for marks in edges)):
        cell = Region(tuple(a for a, _ in corner), tuple(b for _, b in corner))
        holders = [i for i, r in enumerate(regions) if r is not None and r.contains(cell)]
        for index in holders:
            found[index] += Fraction(cell.size, len(holders))
    return found
