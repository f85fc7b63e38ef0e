"""Measure parts of tasks on one engine, in place of predictions.

All tasks of a model are cut in two in the same way at once. The parts are timed in place, one after
the other, as whole tasks are (`sweep`). So a model needs as many passes as a task has cuts. The
parts are those that a plan for two devices may give to either device.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from coexec.engines.opened import OpenDevice
from coexec.graph.graph import Graph, Piece, Task
from coexec.graph.region import Region
from coexec.hardware.hardware import Place
from coexec.plan.derive import in_steps
from coexec.plan.plan import Plan, Provenance
from coexec.planners.methods.splitting.shares import (
    CHANNEL_BLOCK,
    STEPS,
    Dimension,
    axis_of,
    cuts_of,
    parts,
)
from coexec.profiling.activity import Quiet
from coexec.profiling.store import Measurement
from coexec.profiling.sweep import SweepItem, feeds_of, medians_s, others_share, sweep
from coexec.runtime.compiler import Compiler
from coexec.settings import Effort

Cutting = Mapping[str, Sequence[Region]]
"""Parts of the main output, by task."""

_DIMENSIONS: Sequence[Dimension] = ("H", "OC")
_EFFORT = Effort(warm_up=1, least=5, most=5)
_OF = " of "


def signature_of_piece(task: Task, region: Region) -> str:
    """Key of the measurement of a part; equal for parts with equal times."""
    return f"{task.signature}{_OF}{region}"


def cuttings(graph: Graph) -> Iterator[Cutting]:
    """Cuttings, each of which cuts all tasks in two. Tasks without such a cut stay whole."""
    for dimension in _DIMENSIONS:
        cuts_by_task = {task.name: _halves(graph, task, dimension) for task in graph.tasks}
        for number in range(max(map(len, cuts_by_task.values()), default=0)):
            yield {
                name: cuts[number] if number < len(cuts) else (_whole(graph, graph.task[name]),)
                for name, cuts in cuts_by_task.items()
            }


def _whole(graph: Graph, task: Task) -> Region:
    return graph.output_of(task).whole


def _halves(graph: Graph, task: Task, dimension: Dimension) -> list[tuple[Region, ...]]:
    """The two parts of each cut along a dimension."""
    axis, whole = axis_of(graph, task, dimension), _whole(graph, task)
    if axis is None or task.opaque:
        return []
    block = CHANNEL_BLOCK if dimension == "OC" else 1
    return [
        tuple(region for region in parts(whole, cut) if region is not None)
        for cut in cuts_of(whole, axis, STEPS, block, [range(STEPS + 1)] * 2)
    ]


def known_pieces(graph: Graph, stored: Mapping[str, Measurement]) -> dict[Piece, float]:
    """Seconds of those parts of a model's tasks that were measured, in any model."""
    if not any(_OF in signature for signature in stored):
        return {}
    seconds_by_piece: dict[Piece, float] = {}
    for cutting in cuttings(graph):
        for name, regions in cutting.items():
            for region in regions if len(regions) > 1 else ():
                measurement = stored.get(signature_of_piece(graph.task[name], region))
                if measurement is not None:
                    seconds_by_piece[Piece(name, region)] = measurement.seconds
    return seconds_by_piece


def measure_pieces(
    compiler: Compiler,
    devices: Sequence[OpenDevice],
    place_of: Mapping[str, Place],
    cutting: Cutting,
    measured: Place,
    quiet: Quiet | None = None,
) -> dict[str, Measurement]:
    """Measurements of the parts of tasks that run at ``measured``, by signature.

    Args:
        place_of: place of all parts of a task, by task.

    Raises:
        ExecutionError: a part does not run with made-up inputs.
    """
    graph = compiler.model.graph
    pieces = [Piece(name, region) for name, regions in cutting.items() for region in regions]
    order: dict[str, tuple[Piece, ...]] = {}
    for piece in pieces:  # devices that share a processor take turns
        order[place_of[piece.task].device] = (*order.get(place_of[piece.task].device, ()), piece)
    engine_of = {piece: place_of[piece.task].engine for piece in pieces}
    plan = Plan(graph.fingerprint, order, engine_of, Provenance("in steps"))
    schedule = in_steps(plan, graph)
    tasks = [graph.task[segment.pieces[0].task] for segment in schedule.segments]
    part = SweepItem(tasks, compiler.compile(schedule, devices))
    feeds = next(feeds_of(part, compiler.model))
    runs = sweep(part, devices, feeds, _EFFORT, lambda done, total: None, quiet)
    samples: dict[str, list[float]] = {}
    for segment, seconds in zip(schedule.segments, medians_s(runs), strict=True):
        (piece,) = segment.pieces
        if place_of[piece.task] == measured and len(cutting[piece.task]) > 1:
            signature = signature_of_piece(graph.task[piece.task], piece.region)
            samples.setdefault(signature, []).append(seconds)
    other_share = others_share(runs)
    return {s: replace(Measurement.of(taken), others=other_share) for s, taken in samples.items()}
