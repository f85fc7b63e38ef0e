"""A planner's answer that divides tasks: strips, each on a device."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, Self

from coexec.ir.graph import Piece
from coexec.plans.derive import derive
from coexec.plans.plan import Plan, Provenance
from coexec.problem.building import build_plan
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution
from coexec.system.hardware import Place
from coexec.timing.simulate import simulate

__all__ = ["Division", "best_of", "planned"]


class _Shared(Protocol):
    """Pieces of each device."""

    @property
    def pieces(self) -> Sequence[Sequence[Piece]]: ...


class Division(NamedTuple):
    """Pieces of all tasks, by device in the order in which it computes them."""

    order: Sequence[Sequence[Piece]]
    status: str = "feasible"
    options: Mapping[str, Any] = MappingProxyType({})
    """Options that the planner has chosen itself, where none were given."""

    @classmethod
    def of(cls, problem: Problem, strips: Iterable[_Shared]) -> Self:
        """Strips one behind the other."""
        order: list[list[Piece]] = [[] for _ in problem.devices]
        for each in strips:
            for device, own in enumerate(each.pieces):
                order[device] += own
        return cls(order)


def best_of(problem: Problem, found: Division) -> Division:
    """``found``, or all of the model on one device where that is quicker."""
    graph = problem.graph
    wholes = [graph.whole_piece(task) for task in graph.tasks]
    alone = [
        Division([wholes if d == device else [] for d in problem.devices])
        for device in problem.devices
        if all(row[device] < inf for row in problem.latency_s)
    ]
    return min((found, *alone), key=lambda each: _simulated_s(problem, each))


def planned(problem: Problem, found: Division, planner: str, options: Mapping[str, Any]) -> Plan:
    """The plan of a division. What it promises is the simulator's, and no bound of whole tasks
    holds for it; but one that divides nothing is planned as any solution."""
    solution = _undivided(problem, found)
    if solution is not None:
        return build_plan(problem, solution, planner, options)
    seconds = _simulated_s(problem, found)
    return _plan(problem, found, Provenance(planner, dict(options), found.status, seconds))


def _undivided(problem: Problem, found: Division) -> Solution | None:
    """The division as whole tasks in their order, if it is one."""
    graph = problem.graph
    number_of = {graph.whole_piece(task): i for i, task in enumerate(graph.tasks)}
    orders = [[number_of.get(piece, -1) for piece in own] for own in found.order]
    if any(-1 in order or order != sorted(order) for order in orders):
        return None
    device_of = {task: device for device, order in enumerate(orders) for task in order}
    return Solution([device_of[t] for t in problem.tasks], problem.tasks, status=found.status)


def _simulated_s(problem: Problem, found: Division) -> float:
    schedule = derive(_plan(problem, found, Provenance("")), problem.graph)
    return simulate(schedule, problem.cost, problem.system).makespan_s


def _plan(problem: Problem, found: Division, provenance: Provenance) -> Plan:
    order: dict[Place, tuple[Piece, ...]] = {
        place: tuple(own) for place, own in zip(problem.system.places, found.order, strict=True)
    }
    return Plan.of_places(problem.graph.fingerprint, order, provenance)
