"""Simulated annealing, started from the best plan of the fast planners."""

from collections.abc import Callable

from coexec.errors import UsageError
from coexec.planners.methods.annealing import annealed
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution

Starts = Callable[[Problem], list[Solution]]
"""Makes plans to start from, the shortest first. It is an argument, because a planner imports no
other planner."""


def solve(problem: Problem, starts: Starts, *, steps: int = 30_000, seed: int = 0) -> Solution:
    """Improve the best plan of the fast planners by small changes that the simulator evaluates.

    Promises that no plan of the fast planners (hope_greedy, heft, dmdar, mosaic, single) is shorter
    in the simulator. It is useful if tasks are so short that launches matter, because it takes the
    effect of each launch into account. O(steps |V|); some seconds for hundreds of tasks. See
    `coexec.planners.methods.annealing` for the method.

    Args:
        starts: makes the plans of the fast planners, the shortest first.
        steps: number of changes that are tried.
        seed: seed of the random choices.

    Raises:
        UsageError: ``steps`` is less than 1.
    """
    if steps < 1:
        raise UsageError(f"steps is {steps}, but planner anneal needs at least 1")
    problem.refuse_shared("anneal")
    return annealed(problem, starts(problem)[0], steps, seed=seed, bound_s=problem.bound_s)
