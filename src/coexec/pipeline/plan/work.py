"""Work of each share of a pipeline plan, and how much of it other shares repeat."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise, product

from coexec.graph.graph import Graph, Task
from coexec.graph.region import Region
from coexec.pipeline.plan.plan import PipelinePlan, Stage
from coexec.pipeline.strip import Strip, strip_of


@dataclass(frozen=True, slots=True)
class SharedWork:
    """Work of one share."""

    machine: str
    strip: Strip
    useful_macs: Fraction
    """Work that n shares of the stage repeat counts as one n-th for each of them. So the useful
    work of all shares adds up to the work without repetition."""

    @property
    def redundant_macs(self) -> Fraction:
        """Work that could be saved if no other share computed the same."""
        return self.strip.macs - self.useful_macs


def share_strip(graph: Graph, stage: Stage, index: int) -> Strip:
    """Strip of the share ``index``: pieces with halos, the parts that it reads, and its outputs."""
    return strip_of(graph, _tasks(graph, stage), dict(stage.shares[index].outputs))


def stage_work(graph: Graph, stage: Stage) -> tuple[SharedWork, ...]:
    """Work of each share of a stage."""
    strips = [share_strip(graph, stage, index) for index in range(len(stage.shares))]
    regions = [{piece.task: piece.region for piece in strip.pieces} for strip in strips]
    useful = [Fraction(0)] * len(strips)
    for task in _tasks(graph, stage):
        task_regions = [region_by_task.get(task.name) for region_by_task in regions]
        whole = graph.output_of(task).whole.size
        for index, size in enumerate(_own_elements(task_regions)):
            useful[index] += task.macs * size / max(1, whole)
    return tuple(
        SharedWork(machine, strip, min(own_macs, Fraction(strip.macs)))
        for machine, strip, own_macs in zip(stage.machines, strips, useful, strict=True)
    )


def redundancy(graph: Graph, plan: PipelinePlan) -> float:
    """Ratio of the repeated work to the work of all machines, 0 to 1."""
    works = [work for stage in plan.stages for work in stage_work(graph, stage)]
    total = sum(work.strip.macs for work in works)
    return float(sum(work.redundant_macs for work in works) / total) if total else 0.0


def _tasks(graph: Graph, stage: Stage) -> list[Task]:
    return [graph.task[name] for name in stage.tasks]


def _own_elements(regions: Sequence[Region | None]) -> list[Fraction]:
    """Number of elements by region; an element in n regions counts as one n-th for each.

    The borders of all regions cut space into cells. Each cell lies either inside or outside a
    region.
    """
    counts = [Fraction(0)] * len(regions)
    present = [region for region in regions if region is not None]
    if not present:
        return counts
    edges = [
        sorted({edge for r in present for edge in (r.start[axis], r.stop[axis])})
        for axis in range(len(present[0].start))
    ]
    for corner in product(*(pairwise(marks) for marks in edges)):
        cell = Region(tuple(a for a, _ in corner), tuple(b for _, b in corner))
        holders = [i for i, r in enumerate(regions) if r is not None and r.contains(cell)]
        for index in holders:
            counts[index] += Fraction(cell.size, len(holders))
    return counts
