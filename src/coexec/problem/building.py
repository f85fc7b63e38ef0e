"""Build the plan of a planner's answer."""

from collections.abc import Mapping
from typing import Any

from coexec.plan.plan import Plan, Provenance
from coexec.problem.fusion import fused
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, simulated_s, written
from coexec.problem.timeline import makespan_s

__all__ = ["build_plan"]


def build_plan(
    problem: Problem, solution: Solution, planner: str, options: Mapping[str, Any]
) -> Plan:
    """The plan of a solution. If it divides no task, tasks are fused by `problem.fusion.fused`.

    The bound is the problem's, unless the planner has a better one. The predicted makespan is from
    the planners' model of time, in which every task is a launch of its own. A solution that divides
    tasks has its predicted makespan from the simulator, and no bound: bounds for whole tasks do not
    hold for it.
    """
    used, whole = dict(options), solution.undivided(problem)
    if whole is None:
        seconds = simulated_s(problem, solution)
        return written(problem, solution, Provenance(planner, used, solution.status, seconds))
    predicted_s = makespan_s(problem, whole.assignment, whole.sequence)
    bound_s = problem.bound_s if whole.bound_s is None else whole.bound_s
    provenance = Provenance(planner, used, whole.status, predicted_s, bound_s)
    return written(problem, fused(problem, whole), provenance)
