"""Jobs of the machines: each machine's own actions of `coexec.pipeline.plan.flow.actions`.

A step is the index of an action in the flow. All predecessors of a step are computed on the same
machine or arrive there, so machines need no common clock and no coordinator: a step starts when all
its predecessors have ended.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coexec.graph.graph import Graph
from coexec.pipeline.plan.flow import Action, Computation, actions
from coexec.pipeline.plan.plan import PipelinePlan, boundary
from coexec.pipeline.strip import Strip
from coexec.plan.schedule import TaskRegion

FRAME = -1
"""Step that starts a frame on the machines whose first steps have no predecessor."""
ShareKey = tuple[int, int]
"""Index of a stage, and index of a share in that stage."""


@dataclass(frozen=True)
class MachineJob:
    """All steps of one machine for each frame."""

    machine: str
    steps: Mapping[int, Action]
    """Its computations and messages; the receiver of a message has it under the same step. Each
    has a predecessor: `FRAME` if no other."""
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
    flow = [replace(action, after=action.after or (FRAME,)) for action in actions(plan, graph)]
    steps: dict[str, dict[int, Action]] = {name: {} for name in plan.machines}
    receives: dict[str, dict[int, tuple[TaskRegion, ...]]] = {name: {} for name in plan.machines}
    strips: dict[ShareKey, Strip] = {}
    last, answers_after = plan.stages[-1].leader, list[int]()
    for index, action in enumerate(flow):
        what = action.what
        if isinstance(what, Computation):
            steps[what.machine][index] = action
            strips[what.stage, what.share] = what.strip
            ends_on = what.machine
        else:
            steps[what.source][index] = action
            receives[what.target][index] = what.parts
            ends_on = what.target
        if ends_on == last:
            answers_after.append(index)
    for name, own in steps.items():
        is_first = name == plan.stages[0].leader
        if is_first or any(FRAME in action.after for action in own.values()):
            tensors = graph.inputs if is_first else ()
            receives[name][FRAME] = tuple((n, graph.tensors[n].whole) for n in tensors)
    names = boundary(graph, plan.stages, len(plan.stages))
    jobs = {name: MachineJob(name, steps[name], receives[name]) for name in plan.machines}
    outputs = tuple((name, graph.tensors[name].whole) for name in names)
    jobs[last] = replace(jobs[last], outputs=outputs, answers_after=tuple(answers_after))
    return jobs, strips
