"""The best pipeline of a tiny graph on a few machines, by trying all."""

from coexec.solvers.stages.blocks import single_tasks
from coexec.solvers.stages.building import notes_of, stages_of_groups
from coexec.solvers.stages.fronts import best_of_all
from coexec.solvers.stages.network import TimeModel
from coexec.solvers.stages.pipeline import check_model, stages_on_machines
from coexec.solvers.stages.problem import PipelineProblem, PipelineSolution

__all__ = ["solve"]


def solve(
    problem: PipelineProblem, *, model: TimeModel = "overlap", max_fronts: int = 2000
) -> PipelineSolution:
    """The least period of all pipelines whose stages have machines of their own.

    Stages are any sets of tasks in topological order, not only chains of pieces; machines are
    chosen in all ways. As with `pico`, the strongest machine of a stage leads it, and rows are
    balanced so that all finish together. The oracle that `pico` is compared with (the paper's BFS).
    O(F^2 3^D) for F sets that stages can end with; machines of one capacity count as alike.

    Raises:
        PlanError: there are more than ``max_fronts`` such sets.
        UsageError: there is no such model of time.
    """
    check_model(model)
    pieces = single_tasks(problem.rows)
    quick = stages_on_machines(problem, pieces, model, float("inf"), "stages")
    upper_s = problem.period_s(quick, model)
    found = best_of_all(problem, model, max_fronts, upper_s)
    period_s, groups = (upper_s, quick) if found is None else found
    stages = stages_of_groups(problem, groups)
    return PipelineSolution(stages, period_s, "optimal", period_s, notes=notes_of(problem))
