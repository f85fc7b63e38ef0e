"""Jobs of the machines: each machine's own steps of `coexec.pipeline.plan.flow.actions`.

A step is an action of the flow, numbered by its index there. All predecessors of a step are
computed on the same machine or arrive there, so machines need no common clock and no coordinator: a
step starts when all its predecessors have ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coexec.graph.graph import Graph
from coexec.pipeline.plan.flow import Action, Computation, actions
from coexec.pipeline.plan.plan import PipelinePlan, boundary
from coexec.pipeline.strip import Strip
from coexec.plan.schedule import TaskRegion

__all__ = ["FRAME", "Compute", "MachineJob", "Send", "ShareKey", "Step", "jobs_of"]

FRAME = -1
"""Step that starts a frame on the machines whose first steps have no predecessor."""
ShareKey = tuple[int, int]
"""Index of a stage, and index of a share in that stage."""


@dataclass(frozen=True, slots=True)
class Compute:
    """Computation of a share."""

    step: int
    after: tuple[int, ...]
    share: ShareKey
    reads: tuple[TaskRegion, ...]
    writes: tuple[TaskRegion, ...]
    macs: int
    """Multiply-accumulates, halos included."""


@dataclass(frozen=True, slots=True)
class Send:
    """A message to another machine, which receives it under the same step number."""

    step: int
    after: tuple[int, ...]
    stage: int
    target: str
    parts: tuple[TaskRegion, ...]
    size_bytes: int


Step = Compute | Send


@dataclass(frozen=True)
class MachineJob:
    """All steps of one machine for each frame."""

    machine: str
    steps: tuple[Step, ...]
    receives: Mapping[int, tuple[TaskRegion, ...]]
    """Parts that arrive, by step."""
    outputs: tuple[TaskRegion, ...] = ()
    """The model's outputs on the machine that answers; empty on other machines."""
    answers_after: tuple[int, ...] = ()
    """Steps that must have ended before the answer."""


def jobs_of(
    plan: PipelinePlan, graph: Graph
) -> tuple[Mapping[str, MachineJob], Mapping[ShareKey, Strip]]:
    """Jobs by machine, and strips by share.

    The frame is sent to each machine with steps that have no predecessor: to the first leader with
    the model's inputs, to others without any.
    """
    flow = actions(plan, graph)
    steps: dict[str, list[Step]] = {name: [] for name in plan.machines}
    receives: dict[str, dict[int, tuple[TaskRegion, ...]]] = {name: {} for name in plan.machines}
    strips: dict[ShareKey, Strip] = {}
    for index, action in enumerate(flow):
        operation, after = action.what, action.after or (FRAME,)
        if isinstance(operation, Computation):
            key = operation.stage, operation.share
            strip = strips[key] = operation.strip
            writes = plan.stages[operation.stage].shares[operation.share].outputs
            compute = Compute(index, after, key, strip.reads, _full(writes), strip.macs)
            steps[operation.machine].append(compute)
        else:
            send = Send(
                index,
                after,
                operation.stage,
                operation.target,
                operation.parts,
                operation.size_bytes,
            )
            steps[operation.source].append(send)
            receives[operation.target][index] = operation.parts
    _begin(plan, graph, steps, receives)
    last = plan.stages[-1].leader
    names = boundary(graph, plan.stages, len(plan.stages))
    outputs = tuple((name, graph.tensors[name].whole) for name in names)
    return {
        name: MachineJob(
            name,
            tuple(steps[name]),
            receives[name],
            outputs if name == last else (),
            _all(flow, last) if name == last else (),
        )
        for name in plan.machines
    }, strips


def _full(writes: Sequence[TaskRegion]) -> tuple[TaskRegion, ...]:
    return tuple(part for part in writes if part[1].size)


def _begin(
    plan: PipelinePlan,
    graph: Graph,
    steps: Mapping[str, Sequence[Step]],
    receives: Mapping[str, dict[int, tuple[TaskRegion, ...]]],
) -> None:
    """Send the frame to all machines with steps that have no other predecessor."""
    first = plan.stages[0].leader
    for name, machine_steps in steps.items():
        if name == first or any(FRAME in step.after for step in machine_steps):
            tensors = graph.inputs if name == first else ()
            receives[name][FRAME] = tuple((n, graph.tensors[n].whole) for n in tensors)


def _all(flow: Sequence[Action], machine: str) -> tuple[int, ...]:
    """Indices of the actions that compute on a machine or send to it."""
    indices = []
    for index, action in enumerate(flow):
        operation = action.what
        where = operation.machine if isinstance(operation, Computation) else operation.target
        if where == machine:
            indices.append(index)
    return tuple(indices)
