"""DeepThings: the first layers are fused and cut into a grid of tiles, one machine computes the
others."""

from collections.abc import Sequence

from coexec.errors import UsageError
from coexec.graph.graph import Graph
from coexec.graph.receptive import splittable_axes
from coexec.graph.region import Region
from coexec.pipeline.plan.plan import Share, Stage
from coexec.pipeline.planners.methods.building import notes_of
from coexec.pipeline.planners.methods.problem import PipelineProblem, PipelineSolution
from coexec.pipeline.planners.methods.rows import ROWS, bits_of
from coexec.plan.schedule import TaskRegion


def solve(problem: PipelineProblem, *, layers: int = 16) -> PipelineSolution:
    """Fuse the first tasks, and cut their output into a grid of equal tiles, one for each machine.

    The strongest machine scatters and gathers, and computes all other tasks. One frame at a time. A
    baseline: halos grow on both axes and through all fused layers. From "DeepThings: Distributed
    Adaptive Deep Learning Inference on Resource-Constrained IoT Edge Clusters" (Zhao et al., IEEE
    TCAD 2018), which fuses 16 layers of YOLOv2.

    Args:
        layers: number of tasks to fuse; fewer if one of them cannot be cut.

    Raises:
        UsageError: ``layers`` is below 1.
    """
    if layers < 1:
        raise UsageError(f"layers is at least 1, not {layers}")
    rows, graph, machines = problem.rows, problem.graph, problem.machines
    count = 0
    while count < min(layers, len(graph.tasks)) and rows.cuttable[count]:
        count += 1
    stages = []
    fused = (1 << count) - 1
    if fused:
        outputs = [t for t in rows.handed_on(fused) if rows.maker[t] >= 0]
        names = [rows.names[tensor] for tensor in outputs]
        parts: list[list[TaskRegion]] = [[] for _ in machines]
        for name in names:
            for tiles, tile in zip(parts, _tiles(graph, name, len(machines)), strict=False):
                tiles.append((name, tile))
        shares = tuple(
            Share(m, tuple(tiles)) for m, tiles in zip(machines, parts, strict=True) if tiles
        )
        tasks = tuple(task.name for task in graph.tasks[:count])
        stages.append(Stage(tasks, machines[0], shares))
    other_tasks = problem.all & ~fused
    if other_tasks:
        outputs = [t for t in sorted(rows.outputs) if other_tasks >> rows.maker[t] & 1]
        whole = tuple((rows.names[t], graph.tensors[rows.names[t]].whole) for t in outputs)
        tasks = tuple(graph.tasks[task].name for task in bits_of(other_tasks))
        stages.append(Stage(tasks, machines[0], (Share(machines[0], whole),)))
    return PipelineSolution(tuple(stages), at_once=1, notes=notes_of(problem))


def _tiles(graph: Graph, name: str, count: int) -> Sequence[Region]:
    """At most ``count`` equal tiles, as near to a square grid as this number permits."""
    whole = graph.tensors[name].whole
    wide = ROWS + 1
    if wide not in splittable_axes(graph, graph.producer[name]):
        across = 1
    else:
        across = max(n for n in range(1, count + 1) if count % n == 0 and n * n <= count)
    down = min(count // across, whole.stop[ROWS])
    across = min(across, whole.stop[wide])
    return [
        whole.with_axis(ROWS, *_part(whole.stop[ROWS], i, down)).with_axis(
            wide, *_part(whole.stop[wide], k, across)
        )
        for i in range(down)
        for k in range(across)
    ]


def _part(size: int, number: int, count: int) -> tuple[int, int]:
    return size * number // count, size * (number + 1) // count
