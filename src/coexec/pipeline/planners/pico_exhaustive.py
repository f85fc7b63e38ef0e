"""The best pipeline of a tiny graph on a few machines, by exhaustive search."""

from coexec.pipeline.planners.methods.blocks import single_tasks
from coexec.pipeline.planners.methods.building import notes_of, stages_of_groups
from coexec.pipeline.planners.methods.fronts import best_of_all
from coexec.pipeline.planners.methods.network import TimeModel
from coexec.pipeline.planners.methods.pipeline import check_model, stages_on_machines
from coexec.pipeline.planners.methods.problem import PipelineProblem, PipelineSolution

__all__ = ["solve"]


def solve(
    problem: PipelineProblem, *, model: TimeModel = "overlap", max_fronts: int = 2000
) -> PipelineSolution:
    """The pipeline of least period, of all pipelines in which each machine serves one stage at
    most.

    Stages are any sets of tasks in topological order, not only chains of pieces. All choices of
    machines are tried. As with `pico`, the strongest machine of a stage leads it, and rows are
    balanced so that all machines finish together. This is the oracle with which `pico` is compared
    (the paper's BFS). O(F^2 3^D) for F sets that stages can end with; machines of the same capacity
    are interchangeable.

    Raises:
        PlanError: there are more than ``max_fronts`` such sets.
        UsageError: there is no such model of time.
    """
    check_model(model)
    pieces = single_tasks(problem.rows)
    quick = stages_on_machines(problem, pieces, model, float("inf"), "stages")
    upper_s = problem.period_s(quick, model)
    best = best_of_all(problem, model, max_fronts, upper_s)
    period_s, groups = (upper_s, quick) if best is None else best
    stages = stages_of_groups(problem, groups)
    return PipelineSolution(stages, period_s, "optimal", period_s, notes=notes_of(problem))
