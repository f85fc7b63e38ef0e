"""A plan as planners see it, in numbers; what it takes, and how it is written."""

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from coexec.plans.derive import derive
from coexec.plans.plan import Plan, Provenance
from coexec.problem.problem import Problem
from coexec.timing.simulate import simulate

_NOBODYS = Provenance("")

__all__ = ["Solution", "alone", "simulated_s", "written"]


class Solution(NamedTuple):
    """A planner's answer: a plan of whole tasks, and what the planner says of it."""

    assignment: Sequence[int]
    """By task, its device."""
    sequence: Sequence[int]
    """All tasks, none before its predecessors: so a plan without ``fused`` has no deadlock."""
    fused: frozenset[int] = frozenset()
    """Tasks fused into the launch of the one before them on their device. Invalid if another device
    must run something between the two."""
    status: str = "feasible"
    """"optimal", "feasible" or "time limit"."""
    bound_s: float | None = None
    """A lower bound of the makespan, if the planner knows a better one than the problem's."""
    options: Mapping[str, Any] = MappingProxyType({})
    """Options that the planner has chosen itself, where none were given."""


def alone(problem: Problem) -> list[Solution]:
    """The plans that use one device only, for each that runs all tasks.

    Planners that search without looking ahead, or with a limit, should not return anything slower.
    """
    able = (d for d in problem.devices if all(row[d] < math.inf for row in problem.latency_s))
    return [Solution([device] * len(problem.tasks), problem.tasks) for device in able]


def simulated_s(problem: Problem, found: Solution) -> float:
    """Seconds of one inference in the simulator."""
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
