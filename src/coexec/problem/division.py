"""A planner's answer that divides tasks into pieces and places each piece on a device."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from coexec.errors import PlanError
from coexec.graph.graph import Piece
from coexec.hardware.hardware import Place
from coexec.plan.derive import derive
from coexec.plan.plan import Plan, Provenance
from coexec.problem.building import build_plan
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution
from coexec.timing.clock import launched_s
from coexec.timing.simulate import simulate

__all__ = ["Division", "best_of", "planned"]


class Division(NamedTuple):
    """Pieces of all tasks: for each device, in the order in which it computes them."""

    order: Sequence[Sequence[Piece]]
    status: str = "feasible"
    options: Mapping[str, Any] = MappingProxyType({})
    """Options that the planner has chosen itself, because the caller has not set them."""

    seconds: float | None = None
    """Makespan in the simulator, if it was computed already."""

    @classmethod
    def of(cls, problem: Problem, done: Iterable[tuple[int, Piece]]) -> Self:
        """Division of (device, piece) pairs. The pieces of each device keep their order."""
        order: list[list[Piece]] = [[] for _ in problem.devices]
        for device, piece in done:
            order[device].append(piece)
        return cls(order)

    @classmethod
    def undivided(cls, problem: Problem, found: Solution) -> Self:
        """Division of a plan of whole tasks."""
        order: list[list[Piece]] = [[] for _ in problem.devices]
        for task in found.sequence:
            piece = problem.graph.whole_piece(problem.graph.tasks[task])
            order[found.assignment[task]].append(piece)
        return cls(order)


def best_of(problem: Problem, found: Iterable[Division]) -> Division:
    """The fastest of several divisions, or the whole model on one device if that is faster."""
    timed = [each._replace(seconds=_simulated_s(problem, each)) for each in found]
    return min((*timed, *_alone(problem)), key=lambda each: each.seconds or 0.0)


def _alone(problem: Problem) -> Iterable[Division]:
    """Divisions with the whole model on one device, as one launch."""
    graph = problem.graph
    wholes = [graph.whole_piece(task) for task in graph.tasks]
    for device in problem.devices:
        tasks_s = [row[device] for row in problem.latency_s]
        if inf not in tasks_s:
            order = [wholes if d == device else [] for d in problem.devices]
            yield Division(order, seconds=launched_s(tasks_s, problem.launches_s[device]))


def planned(problem: Problem, found: Division, planner: str, options: Mapping[str, Any]) -> Plan:
    """Plan of a division.

    Its predicted makespan is from the simulator. It has no bound, as bounds for whole tasks do not
    hold for it. A division that divides no task is planned like any solution.
    """
    solution = _undivided(problem, found)
    if solution is not None:
        return build_plan(problem, solution, planner, options)
    seconds = _simulated_s(problem, found) if found.seconds is None else found.seconds
    return _plan(problem, found, Provenance(planner, dict(options), found.status, seconds))


def _undivided(problem: Problem, found: Division) -> Solution | None:
    """The division as a solution of whole tasks; None if it divides a task."""
    graph = problem.graph
    number_of = {graph.whole_piece(task): i for i, task in enumerate(graph.tasks)}
    orders = [[number_of.get(piece, -1) for piece in pieces] for pieces in found.order]
    if any(-1 in order for order in orders):
        return None
    device_of = {task: device for device, order in enumerate(orders) for task in order}
    sequence = _merged(problem, orders)
    return Solution([device_of[t] for t in problem.tasks], sequence, status=found.status)


def _merged(problem: Problem, orders: Sequence[Sequence[int]]) -> list[int]:
    """All tasks, each after its predecessors; the tasks of each device keep their order."""
    done: dict[int, None] = {}
    queues = [deque(order) for order in orders]
    while any(queues):
        before = len(done)
        for queue in queues:
            while queue and done.keys() >= set(problem.predecessors[queue[0]]):
                done[queue.popleft()] = None
        if len(done) == before:
            raise PlanError("the division has a deadlock: each device waits for another one")
    return list(done)


def _simulated_s(problem: Problem, found: Division) -> float:
    schedule = derive(_plan(problem, found, Provenance("")), problem.graph)
    return simulate(schedule, problem.remembered_cost, problem.system).makespan_s


def _plan(problem: Problem, found: Division, provenance: Provenance) -> Plan:
    order: dict[Place, tuple[Piece, ...]] = {
        place: tuple(pieces)
        for place, pieces in zip(problem.system.places, found.order, strict=True)
    }
    return Plan.of_places(problem.graph.fingerprint, order, provenance)
