"""A planner's answer in numbers: its makespan, and its conversion to a plan."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from coexec.plan.derive import derive
from coexec.plan.plan import Plan, Provenance
from coexec.problem.problem import Problem
from coexec.timing.simulate import simulate

_NOBODYS = Provenance("")

__all__ = ["Solution", "alone", "simulated_s", "written"]


class Solution(NamedTuple):
    """A planner's answer: a plan of whole tasks, and its status."""

    assignment: Sequence[int]
    """Device, by task."""
    sequence: Sequence[int]
    """All tasks, each after its predecessors: so a plan without ``fused`` has no deadlock."""
    fused: frozenset[int] = frozenset()
    """Tasks fused into the launch of the previous task on their device. Invalid if another device
    must run something between the two."""
    status: str = "feasible"
    """"optimal", "feasible" or "time limit"."""
    bound_s: float | None = None
    """A lower bound of the makespan, if the planner has a better one than the problem's."""
    options: Mapping[str, Any] = MappingProxyType({})
    """Options that the planner has chosen itself, because the caller has not set them."""


def alone(problem: Problem) -> list[Solution]:
    """Plans that use one device only, one for each device that runs all tasks.

    Planners that search without look-ahead, or with a limit, should not return a slower plan.
    """
    able = (d for d in problem.devices if all(row[d] < math.inf for row in problem.latency_s))
    return [Solution([device] * len(problem.tasks), problem.tasks) for device in able]


def simulated_s(problem: Problem, found: Solution) -> float:
    """Makespan of one inference in the simulator, in seconds."""
    schedule = derive(written(problem, found), problem.graph)
    return simulate(schedule, problem.cost, problem.system).makespan_s


def written(problem: Problem, found: Solution, provenance: Provenance = _NOBODYS) -> Plan:
    """The plan that runs each task on its device, in the order of the sequence."""
    graph = problem.graph
    pieces = [graph.whole_piece(task) for task in graph.tasks]
    order = {
        place: tuple(pieces[task] for task in found.sequence if found.assignment[task] == device)
        for device, place in enumerate(problem.system.places)
    }
    fused = frozenset(pieces[task] for task in found.fused)
    return Plan.of_places(graph.fingerprint, order, provenance, fused)
