"""What each machine does with a frame: its own steps of `coexec.plans.pipeline.flow.actions`.

A step is an action of the flow, by its index. Whatever a step waits for happens on the same machine
or arrives there, so machines need no clock and no coordinator: a step starts when all before it
have ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coexec.ir.graph import Graph
from coexec.ir.strip import Strip
from coexec.plans.pipeline.flow import Action, Computation, actions
from coexec.plans.pipeline.plan import PipelinePlan, boundary
from coexec.plans.schedule import Part

__all__ = ["FRAME", "Compute", "MachineJob", "Send", "ShareKey", "Step", "jobs_of"]

FRAME = -1
"""The step that brings a frame to the machines that begin with it."""
ShareKey = tuple[int, int]
"""A stage and a share of it, by their indices."""


@dataclass(frozen=True, slots=True)
class Compute:
    """A share."""

    step: int
    after: tuple[int, ...]
    share: ShareKey
    reads: tuple[Part, ...]
    writes: tuple[Part, ...]
    macs: int
    """Multiply-accumulates, halos included."""


@dataclass(frozen=True, slots=True)
class Send:
    """A message to another machine, which receives it as the same step."""

    step: int
    after: tuple[int, ...]
    stage: int
    target: str
    parts: tuple[Part, ...]
    size_bytes: int


Step = Compute | Send


@dataclass(frozen=True)
class MachineJob:
    """All that one machine does with each frame."""

    machine: str
    steps: tuple[Step, ...]
    receives: Mapping[int, tuple[Part, ...]]
    """By step, the parts that arrive with it."""
    outputs: tuple[Part, ...] = ()
    """The model's outputs, on the machine that answers."""
    answers_after: tuple[int, ...] = ()


def jobs_of(
    plan: PipelinePlan, graph: Graph
) -> tuple[Mapping[str, MachineJob], Mapping[ShareKey, Strip]]:
    """By machine, its job; and by share, what it computes.

    A machine whose first steps wait for nothing gets the frame: the first leader with the inputs of
    the model, others without any.
    """
    flow = actions(plan, graph)
    steps: dict[str, list[Step]] = {name: [] for name in plan.machines}
    receives: dict[str, dict[int, tuple[Part, ...]]] = {name: {} for name in plan.machines}
    strips: dict[ShareKey, Strip] = {}
    for index, action in enumerate(flow):
        what, after = action.what, action.after or (FRAME,)
        if isinstance(what, Computation):
            key = what.stage, what.share
            strip = strips[key] = what.strip
            writes = plan.stages[what.stage].shares[what.share].outputs
            compute = Compute(index, after, key, strip.reads, _full(writes), strip.macs)
            steps[what.machine].append(compute)
        else:
            send = Send(index, after, what.stage, what.target, what.parts, what.size_bytes)
            steps[what.source].append(send)
            receives[what.target][index] = what.parts
    _begin(plan, graph, steps, receives)
    last = plan.stages[-1].leader
    names = boundary(graph, plan.stages, len(plan.stages))
    outputs = tuple((name, graph.tensors[name].whole) for name in names)
    return {
        name: MachineJob(name, tuple(steps[name]), receives[name],
                  outputs if name == last else (), _all(flow, last) if name == last else ())
        for name in plan.machines
    }, strips  # fmt: skip


def _full(writes: Sequence[Part]) -> tuple[Part, ...]:
    return tuple(part for part in writes if part[1].size)


def _begin(
    plan: PipelinePlan,
    graph: Graph,
    steps: Mapping[str, Sequence[Step]],
    receives: Mapping[str, dict[int, tuple[Part, ...]]],
) -> None:
    """Bring the frame to all that wait for nothing else."""
    first = plan.stages[0].leader
    for name, own in steps.items():
        if name == first or any(FRAME in step.after for step in own):
            taken = graph.inputs if name == first else ()
            receives[name][FRAME] = tuple((n, graph.tensors[n].whole) for n in taken)


def _all(flow: Sequence[Action], machine: str) -> tuple[int, ...]:
    """What is computed on a machine or arrives there."""
    found = []
    for index, action in enumerate(flow):
        what = action.what
        where = what.machine if isinstance(what, Computation) else what.target
        if where == machine:
            found.append(index)
    return tuple(found)
