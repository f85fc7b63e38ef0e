"""Build the plan of a planner's answer."""

from collections.abc import Mapping
from typing import Any

from coexec.plan.plan import Plan, Provenance
from coexec.problem.fusion import fused
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, written
from coexec.problem.timeline import makespan_s

__all__ = ["build_plan"]


def build_plan(
    problem: Problem, solution: Solution, planner: str, options: Mapping[str, Any]
) -> Plan:
    """The plan of a solution, with tasks fused by `problem.fusion.fused`.

    The bound is the problem's, unless the planner has a better one. The predicted makespan is from
    the planners' model of time, in which every task is a launch of its own.
    """
    predicted_s = makespan_s(problem, solution.assignment, solution.sequence)
    bound_s = problem.bound_s if solution.bound_s is None else solution.bound_s
    provenance = Provenance(planner, dict(options), solution.status, predicted_s, bound_s)
    return written(problem, fused(problem, solution), provenance)
