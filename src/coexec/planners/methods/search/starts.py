"""Plans that searches start from. They are the plans of fast planners, so a search is never worse
than these, whatever its limits are.

Further plans come from list scheduling with link latencies that are larger than the real ones,
because list scheduling does not count the launches that a transfer causes at both ends, nor how
often two devices wait for each other.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from coexec.planners.methods.listing import listed
from coexec.problem.fusion import fused
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, simulated_s
from coexec.problem.timeline import Timeline

__all__ = ["Starts", "sorted_starts"]

Starts: TypeAlias = Callable[[Problem], list[Solution]]
"""Makes plans to start from, the shortest first. Searches have it as an argument, because they know
no other planner."""

_CAUTION = (1.0, 1.5, 2.0, 2.5)
"""Factors by which list scheduling multiplies the latency of links."""


def sorted_starts(
    problem: Problem,
    heuristics: Iterable[Callable[[Problem], Solution]],
    list_scheduler: Callable[[Problem], Solution],
) -> list[Solution]:
    """Plans to start from, with fused launches, by rising makespan in the simulator.

    Args:
        heuristics: planners that are called once.
        list_scheduler: a planner that is also called with larger latencies of links.
    """
    solutions = [heuristic(problem) for heuristic in heuristics]
    for caution in _CAUTION:
        system = replace(
            problem.system,
            links=tuple(
                replace(x, sync_latency_s=caution * x.sync_latency_s) for x in problem.system.links
            ),
        )
        cautious = Problem(problem.graph, problem.cost, system)
        ranks_s = cautious.upward_rank_s
        timeline, sequence = listed(cautious, cautious.tasks, Timeline(cautious), ranks_s)
        solutions += [Solution(timeline.place, sequence), list_scheduler(cautious)]
    plain = (Solution(one.assignment, one.sequence) for one in solutions)
    return sorted((fused(problem, one) for one in plain), key=lambda one: simulated_s(problem, one))
