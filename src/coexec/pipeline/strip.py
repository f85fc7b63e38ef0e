"""Strips: the work of one machine on several tasks without a pause, halos recomputed inside.

Going backwards from the requested regions of outputs, each task computes the hull of its own
requested region and of the regions that its readers inside of the strip need. These are the
receptive fields of `coexec.graph.receptive`, one behind the other. A task that must be computed
whole along an axis is computed whole."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coexec.graph.graph import Graph, Piece, Task
from coexec.graph.receptive import needed_inputs, splittable_axes
from coexec.graph.region import Region


@dataclass(frozen=True, slots=True)
class Strip:
    """Pieces in topological order, the regions that they read from outside, and their results."""

    pieces: tuple[Piece, ...]
    reads: tuple[tuple[str, Region], ...]
    """Tensors that are made outside, each with the region that is needed."""
    writes: tuple[tuple[str, Region], ...]
    macs: int
    """Multiply-accumulates, halos included."""


def strip_of(graph: Graph, tasks: Sequence[Task], regions: Mapping[str, Region]) -> Strip:
    """The strip that computes the regions ``regions`` of tensors that ``tasks`` make.

    Tasks that are not needed are left out.

    Args:
        tasks: in topological order; everything else that the regions depend on is read from
            outside.

    Raises:
        PlanError: a region lies outside of its tensor.
    """
    need = {name: region for name, region in regions.items() if region.size}
    pieces: list[Piece] = []
    for task in reversed(tasks):
        region = _computed(graph, task, need)
        if region is None:
            continue
        pieces.append(Piece(task.name, region))
        for name, read in needed_inputs(graph, task, region).items():
            if read.size or not graph.tensors[name].whole.size:
                need[name] = need[name].hull(read) if name in need else read
    made = {name for task in tasks for name in task.outputs}
    return Strip(
        tuple(reversed(pieces)),
        tuple((name, region) for name, region in need.items() if name not in made),
        tuple((name, region) for name, region in regions.items() if region.size),
        sum(piece_macs(graph, piece) for piece in pieces),
    )


def piece_macs(graph: Graph, piece: Piece) -> int:
    """Multiply-accumulates of a piece, in proportion to its region and rounded up."""
    task = graph.task[piece.task]
    whole = graph.output_of(task).whole.size
    return -(-task.macs * piece.region.size // whole) if whole else task.macs


def _computed(graph: Graph, task: Task, need: Mapping[str, Region]) -> Region | None:
    """The region of the main output to compute; None if nothing is needed."""
    main, *side_outputs = task.outputs
    whole = graph.tensors[main].whole
    if any(name in need for name in side_outputs):
        return whole
    region = need.get(main)
    if region is None or region == whole:
        return region
    axes = splittable_axes(graph, task)
    for axis, size in enumerate(whole.stop):
        if axis not in axes:
            region = region.with_axis(axis, 0, size)
    return region
