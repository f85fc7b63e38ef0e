"""From what a planner answers to the plan of it."""

from collections.abc import Mapping
from typing import Any

from coexec.plans.plan import Plan, Provenance
from coexec.problem.fusion import fused
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, written
from coexec.problem.timeline import makespan_s

__all__ = ["build_plan"]


def build_plan(
    problem: Problem, solution: Solution, planner: str, options: Mapping[str, Any]
) -> Plan:
    """The plan of a solution, with tasks fused as `problem.fusion.fused` does it.

    The bound is that of the problem unless the planner knows better. What the plan promises is in
    the planners' model of time, where every task is a launch.
    """
    predicted_s = makespan_s(problem, solution.assignment, solution.sequence)
    bound_s = problem.bound_s if solution.bound_s is None else solution.bound_s
    provenance = Provenance(planner, dict(options), solution.status, predicted_s, bound_s)
    return written(problem, fused(problem, solution), provenance)
