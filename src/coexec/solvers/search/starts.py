"""What searches begin with: plans of quick planners, so that no limit makes them worse than those.

Beside the planners' own plans there are list schedules for links that seem slower than they are.
List scheduling does not see the launches that a crossing makes at both ends, nor how often two
devices will wait for each other.
"""

from dataclasses import replace

from coexec.planners import dmdar, heft, hope_greedy, mosaic
from coexec.problem.fusion import fused
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, simulated_s
from coexec.problem.timeline import Timeline
from coexec.solvers.exact.listing import listed

__all__ = ["starts"]

_CAUTION = (1.0, 1.5, 2.0, 2.5)
"""By how much links may seem to take longer."""


def starts(problem: Problem) -> list[Solution]:
    """Plans to begin with, their launches fused, by rising makespan in the simulator."""
    heuristics = (dmdar, hope_greedy, mosaic)  # hope_greedy's is no slower than one device
    found = [heuristic.solve(problem) for heuristic in heuristics]
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
        found += [Solution(timeline.place, sequence), heft.solve(cautious)]
    plain = (Solution(one.assignment, one.sequence) for one in found)
    return sorted((fused(problem, one) for one in plain), key=lambda one: simulated_s(problem, one))
