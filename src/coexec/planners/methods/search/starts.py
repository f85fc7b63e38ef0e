"""Plans that searches start from. They are the plans of fast planners, so a search is never worse
than these, whatever its limits are.

Further plans come from list scheduling with link latencies that are larger than the real ones,
because list scheduling does not count the launches that a transfer causes at both ends, nor how
often two devices wait for each other.
"""

from dataclasses import replace

from coexec.planners import dmdar, heft, hope_greedy, mosaic
from coexec.planners.methods.exact.listing import listed
from coexec.problem.fusion import fused
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, simulated_s
from coexec.problem.timeline import Timeline

__all__ = ["starts"]

_CAUTION = (1.0, 1.5, 2.0, 2.5)
"""Factors by which list scheduling multiplies the latency of links."""


def starts(problem: Problem) -> list[Solution]:
    """Plans to start from, with fused launches, by rising makespan in the simulator."""
    heuristics = (dmdar, hope_greedy, mosaic)  # hope_greedy is no slower than a single device
    solutions = [heuristic.solve(problem) for heuristic in heuristics]
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
        solutions += [Solution(timeline.place, sequence), heft.solve(cautious)]
    plain = (Solution(one.assignment, one.sequence) for one in solutions)
    return sorted((fused(problem, one) for one in plain), key=lambda one: simulated_s(problem, one))
