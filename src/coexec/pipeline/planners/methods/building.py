"""From tasks, machines and rows to the stages of a plan."""

from collections.abc import Iterable, Sequence

from coexec.pipeline.plan.plan import Exchange, Share, Stage
from coexec.pipeline.planners.methods.bodies import StageBody
from coexec.pipeline.planners.methods.problem import Group, PipelineProblem
from coexec.pipeline.planners.methods.rows import Range, bits_of

WHOLE_STAGES = (
    "no task of this model can be cut by rows of a feature map: each stage is computed whole on "
    "one machine"
)


def notes_of(problem: PipelineProblem) -> tuple[str, ...]:
    """Notes for the user that are true for every pipeline plan of this model."""
    return () if problem.rows.spatial else (WHOLE_STAGES,)


def stages_of_groups(problem: PipelineProblem, groups: Sequence[Group]) -> tuple[Stage, ...]:
    """The stages of a plan, with shares of rows that end together. A tail is a stage of its own, on
    the leader."""
    done, stages = 0, list[Stage]()
    for group in groups:
        staged, body = problem.staged(done, group), problem.bodies.of(group.tasks)
        stages += stages_of(problem, body, group.machines, staged.shares)
        done |= group.tasks
    return tuple(stages)


def stages_of(
    problem: PipelineProblem,
    body: StageBody,
    machines: Sequence[str],
    shares: Sequence[Range],
    exchange: Exchange = "leader",
) -> list[Stage]:
    """The stage of a body, and the stage of its tail, which the leader (the first machine) runs."""
    stages = []
    names = [task.name for task in body.graph_tasks()]
    if names:
        plan_shares = (
            Share(machine, outputs)
            for machine, rows in zip(machines, shares, strict=True)
            if (outputs := body.outputs(rows))
        )
        stages.append(Stage(tuple(names), machines[0], tuple(plan_shares), exchange))
    if body.tail:
        stages.append(_tail(problem, body, machines[0]))
    return stages


def _tail(problem: PipelineProblem, body: StageBody, leader: str) -> Stage:
    """The stage in which the leader computes the whole tail."""
    rows, graph = problem.rows, problem.graph
    outputs = []
    for task in bits_of(body.tail):
        for tensor in rows.makes[task]:
            outside = any(not body.tail >> reader & 1 for reader in rows.readers[tensor])
            if outside or tensor in rows.outputs:
                outputs.append((rows.names[tensor], graph.tensors[rows.names[tensor]].whole))
    names = tuple(task.name for task in body.graph_tasks(tail=True))
    return Stage(names, leader, (Share(leader, tuple(outputs)),))


def layers_of(problem: PipelineProblem) -> Iterable[int]:
    """The layers as bits of tasks: each task that can be cut by rows is a layer, and so is each run
    of tasks that cannot."""
    rows, waiting = problem.rows, 0
    for task in bits_of(problem.all):
        if rows.cuttable[task]:
            if waiting:
                yield waiting
            waiting = 0
            yield 1 << task
        else:
            waiting |= 1 << task
    if waiting:
        yield waiting
