"""CoEdge: layer by layer. Only halos move between neighbours, and weak machines are dropped where
maps are small."""

from coexec.pipeline.plan.plan import Stage
from coexec.pipeline.planners.methods.bodies import StageBody, in_proportion
from coexec.pipeline.planners.methods.building import layers_of, notes_of, stages_of
from coexec.pipeline.planners.methods.problem import PipelineProblem, PipelineSolution
from coexec.pipeline.planners.methods.rows import Range, RowGraph, bits_of


def solve(problem: PipelineProblem) -> PipelineSolution:
    """Each task on some machines of a list, with rows in proportion to their capacities.

    Rows stay on the machine that made them; a machine receives only the other rows that it needs.
    For each layer, the weakest machine is dropped as long as a machine has no rows, or fewer rows
    of input than its halo. One frame at a time. A baseline. From "CoEdge: Cooperative DNN Inference
    with Adaptive Workload Partitioning over Heterogeneous Edge Devices" (Zeng et al., IEEE/ACM ToN
    2020), in the form with which PICO is compared.
    """
    stages, in_list = list[Stage](), list(problem.system.names)
    for tasks in layers_of(problem):
        body = problem.bodies.of(tasks)
        machines, shares = _at_work(problem, body, in_list)
        if body.tail == tasks:
            machines, shares = [problem.machines[0]], [(0, 1)]
        stages += stages_of(problem, body, machines, shares, "neighbours")
    return PipelineSolution(tuple(stages), at_once=1, notes=notes_of(problem))


def _at_work(
    problem: PipelineProblem, body: StageBody, in_list: list[str]
) -> tuple[list[str], list[Range]]:
    """Machines that have more rows than their halo, and their rows."""
    machines = list(in_list)
    while True:
        shares = list(in_proportion(body.height, [problem.rate[name] for name in machines]))
        if len(machines) == 1:
            return machines, shares
        if all(b - a > 0 and _halo(problem.rows, body, (a, b)) <= 0 for a, b in shares):
            return machines, shares
        machines.remove(min(machines, key=lambda name: problem.rate[name]))


def _halo(rows: RowGraph, body: StageBody, share: Range) -> int:
    """Rows of input that a share needs from other machines, minus its own rows; the maximum over
    all tasks."""
    missing = -1
    a, b = share
    for task in bits_of(body.tasks & ~body.tail):
        height = rows.rows[rows.makes[task][0]]
        for tensor, first, stop in rows.reads[task]:
            if first is None or stop is None:
                continue
            own_rows = (b - a) * rows.rows[tensor] / height
            read = stop[b - 1] - first[a]
            missing = max(missing, round(read - own_rows - own_rows))
    return missing
