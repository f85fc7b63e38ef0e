"""From tasks, machines and rows to the stages of a plan."""

from collections.abc import Sequence

from coexec.plans.pipeline.plan import Exchange, Share, Stage
from coexec.solvers.stages.bodies import StageBody
from coexec.solvers.stages.problem import Group, PipelineProblem
from coexec.solvers.stages.rows import Range, bits_of

__all__ = ["WHOLE_STAGES", "notes_of", "stages_of", "stages_of_groups"]

WHOLE_STAGES = (
    "no task of this model can be cut by rows of a feature map: each stage is computed whole on "
    "one machine"
)


def notes_of(problem: PipelineProblem) -> tuple[str, ...]:
    """What a user should know about any pipeline plan of this model."""
    return () if problem.rows.spatial else (WHOLE_STAGES,)


def stages_of_groups(
    problem: PipelineProblem, groups: Sequence[Group], exchange: Exchange = "leader"
) -> tuple[Stage, ...]:
    """Stages with rows that end together, and their tails as stages of their leaders."""
    done, found = 0, list[Stage]()
    for group in groups:
        staged, body = problem.staged(done, group), problem.bodies.of(group.tasks)
        found += stages_of(problem, body, group.machines, staged.shares, exchange)
        done |= group.tasks
    return tuple(found)


def stages_of(
    problem: PipelineProblem, body: StageBody, machines: Sequence[str], shares: Sequence[Range],
    exchange: Exchange = "leader",
) -> list[Stage]:  # fmt: skip
    """The stage of a body, and that of its tail on the leader, the first machine."""
    found = []
    names = [task.name for task in body.graph_tasks()]
    if names:
        given = (
            Share(machine, outputs)
            for machine, rows in zip(machines, shares, strict=True)
            if (outputs := body.outputs(rows))
        )
        found.append(Stage(tuple(names), machines[0], tuple(given), exchange))
    if body.tail:
        found.append(_tail(problem, body, machines[0]))
    return found


def _tail(problem: PipelineProblem, body: StageBody, leader: str) -> Stage:
    """The tail whole on the leader."""
    rows, graph = problem.rows, problem.graph
    outputs = []
    for task in bits_of(body.tail):
        for tensor in rows.makes[task]:
            outside = any(not body.tail >> reader & 1 for reader in rows.readers[tensor])
            if outside or tensor in rows.outputs:
                outputs.append((rows.names[tensor], graph.tensors[rows.names[tensor]].whole))
    names = tuple(task.name for task in body.graph_tasks(tail=True))
    return Stage(names, leader, (Share(leader, tuple(outputs)),))
