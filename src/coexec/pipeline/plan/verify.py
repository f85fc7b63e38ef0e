"""Refuse pipeline plans that do not compute the model, or whose machines have too little memory."""

from collections.abc import Mapping

from coexec.errors import InfeasibleError, PlanError
from coexec.graph.graph import Graph
from coexec.graph.receptive import splittable_axes
from coexec.graph.region import Region
from coexec.graph.stitch import missing
from coexec.hardware.hardware import System
from coexec.pipeline.plan.memory import machine_memory
from coexec.pipeline.plan.plan import PipelinePlan, Stage, stage_outputs
from coexec.units import format_bytes


def verify_pipeline(plan: PipelinePlan, graph: Graph, system: System) -> None:
    """Refuse a plan whose stages do not compute ``graph`` exactly once on machines of ``system``.

    Raises:
        PlanError: the plan is for another model, or uses an unknown machine; or a task is missing,
            listed twice or listed after a reader; or shares overlap or leave out a part of an
            output.
        InfeasibleError: a machine cannot hold its shares.
    """
    if plan.model != graph.fingerprint:
        raise PlanError(
            f"the pipeline plan was made for another model or other shapes: it says {plan.model}, "
            f"{graph.name!r} is {graph.fingerprint}; plan again"
        )
    if plan.at_once is not None and plan.at_once < 1:
        raise PlanError(f"the pipeline plan lets {plan.at_once} frames in at once; at least 1")
    for name in plan.machines:
        if name not in system.device:
            raise PlanError(
                f"the pipeline plan uses machine {name!r}, there are "
                f"{', '.join(system.names)}; plan again"
            )
    _verify_chain(plan, graph)
    for index, stage in enumerate(plan.stages):
        _verify_shares(stage, index, graph, stage_outputs(graph, plan.stages, index))
    _verify_memory(plan, graph, system)


def _verify_chain(plan: PipelinePlan, graph: Graph) -> None:
    """Refuse tasks that are missing, in two stages, or before a task that they read."""
    stage_of: dict[str, int] = {}
    for index, stage in enumerate(plan.stages):
        for name in stage.tasks:
            if name not in graph.task:
                raise PlanError(
                    f"stage {index} computes {name!r}, which the model does not have; plan again"
                )
            if name in stage_of:
                raise PlanError(
                    f"stages {stage_of[name]} and {index} both compute {name!r}; leave "
                    f"it in one of them"
                )
            for before in graph.predecessors[name]:
                if before.name not in stage_of:
                    raise PlanError(
                        f"stage {index} computes {name!r} before {before.name!r}, which it reads; "
                        f"order tasks and stages topologically"
                    )
            stage_of[name] = index
    absent = [task.name for task in graph.tasks if task.name not in stage_of]
    if absent:
        raise PlanError(
            f"the pipeline plan leaves out {len(absent)} of {len(graph.tasks)} tasks, "
            f"{absent[0]!r} among them; plan again"
        )


def _verify_shares(stage: Stage, index: int, graph: Graph, outputs: tuple[str, ...]) -> None:
    """Refuse regions that overlap, that cannot be computed independently, or that leave out a part
    of an output."""
    if len(set(stage.machines)) < len(stage.machines):
        raise PlanError(
            f"stage {index} has two shares of one machine, of "
            f"{', '.join(stage.machines)}; give each machine one"
        )
    regions: dict[str, list[tuple[str, Region]]] = {name: [] for name in outputs}
    for share in stage.shares:
        if not share.outputs:
            raise PlanError(
                f"the share of {share.machine!r} in stage {index} is empty; leave it out"
            )
        for name, region in share.outputs:
            if name not in regions:
                raise PlanError(
                    f"stage {index} does not hand on {name!r}, which {share.machine!r} "
                    f"is to compute; it hands on {', '.join(outputs)}"
                )
            _verify_region(graph, name, region, f"{share.machine!r} in stage {index}")
            for other, box in regions[name]:
                if box.overlap(region).size:
                    raise PlanError(
                        f"{other!r} and {share.machine!r} both compute {box.overlap(region)} of "
                        f"{name!r} in stage {index}; shares of a stage are disjoint"
                    )
            regions[name].append((share.machine, region))
    for name, machine_regions in regions.items():
        gaps = missing(graph.tensors[name].whole, [region for _, region in machine_regions])
        if gaps:
            raise PlanError(
                f"stage {index} leaves out {', '.join(map(str, gaps))} of {name!r}, "
                f"which is {graph.tensors[name].whole}; plan again"
            )


def _verify_region(graph: Graph, name: str, region: Region, what: str) -> None:
    whole, task = graph.tensors[name].whole, graph.producer[name]
    fits = len(region.start) == len(whole.start) and whole.contains(region)
    if not fits or (whole.size and not region.size):
        raise PlanError(
            f"{what} computes {region} of {name!r}, which is {whole}; give a part that lies inside"
        )
    axes = splittable_axes(graph, task) if name == task.outputs[0] else ()
    for axis, size in enumerate(whole.stop):
        cut = (region.start[axis], region.stop[axis]) != (0, size)
        if cut and axis not in axes:
            raise PlanError(
                f"{what} computes {region} of {name!r}, which cannot be cut along axis "
                f"{axis}; give the whole range 0:{size} there"
            )


def _verify_memory(plan: PipelinePlan, graph: Graph, system: System) -> None:
    """Refuse plans that need more memory than a machine has. The error names the machine with the
    largest ratio."""
    over: Mapping[str, float] = {
        name: need.total_bytes / limit
        for name, need in machine_memory(graph, plan).items()
        if (limit := system.device[name].engine.memory_bytes) is not None
        and need.total_bytes > limit
    }
    if not over:
        return
    name = max(over, key=lambda machine: over[machine])
    need, limit = machine_memory(graph, plan)[name], system.device[name].engine.memory_bytes
    raise InfeasibleError(
        f"machine {name!r} has {format_bytes(limit or 0)} and would hold "
        f"{format_bytes(need.total_bytes)}: {format_bytes(need.weight_bytes)} of weights and "
        f"{format_bytes(need.feature_bytes)} of feature maps; use more machines, or a planner that "
        f"gives each a part of the model, such as pico"
    )
