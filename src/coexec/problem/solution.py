"""A planner's answer in numbers: its makespan, and its conversion to a plan."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from coexec.graph.graph import Piece
from coexec.plan.derive import derive
from coexec.plan.plan import Plan, Provenance
from coexec.problem.problem import Problem
from coexec.timing.clock import launched_s
from coexec.timing.simulate import simulate

_NOBODYS = Provenance("")


class Solution(NamedTuple):
    """A planner's answer: the device and the order of all tasks or pieces, and a status.

    A planner of whole tasks numbers the tasks, as the problem does. A planner that divides tasks
    lists ``pieces`` and numbers them.
    """

    assignment: Sequence[int]
    """Device, by task or piece."""
    sequence: Sequence[int]
    """All tasks or pieces, each after its predecessors: so a plan without ``fused`` has no
    deadlock."""
    fused: frozenset[int] = frozenset()
    """Tasks or pieces fused into the launch of the previous one on their device. Invalid if another
    device must run something between the two."""
    status: str = "feasible"
    """"optimal", "feasible" or "time limit"."""
    bound_s: float | None = None
    """A lower bound of the makespan, if the planner has a better one than the problem's."""
    options: Mapping[str, Any] = MappingProxyType({})
    """Options that the planner has chosen itself, because the caller has not set them."""
    pieces: Sequence[Piece] = ()
    """The pieces, if tasks are divided; empty: each task is one piece."""

    @classmethod
    def of_pieces(cls, placed: Iterable[tuple[int, Piece]]) -> Self:
        """The solution of pairs of a device and a piece, in a possible sequence."""
        pairs = list(placed)
        devices, pieces = [device for device, _ in pairs], [piece for _, piece in pairs]
        return cls(devices, range(len(pairs)), pieces=pieces)

    def undivided(self, problem: Problem) -> Self | None:
        """The solution in numbers of tasks; None if it divides a task."""
        if not self.pieces:
            return self
        graph = problem.graph
        task_of = {graph.whole_piece(task): number for number, task in enumerate(graph.tasks)}
        tasks = [task_of.get(piece, -1) for piece in self.pieces]
        if sorted(tasks) != list(problem.tasks):
            return None
        device_of = dict(zip(tasks, self.assignment, strict=True))
        return self._replace(
            assignment=[device_of[task] for task in problem.tasks],
            sequence=[tasks[number] for number in self.sequence],
            fused=frozenset(tasks[number] for number in self.fused),
            pieces=(),
        )


def alone_s(problem: Problem, device: int) -> float:
    """Seconds of one device alone in the simulator; infinite if it cannot run some task.

    All tasks are one segment, which is launched once.
    """
    return launched_s([row[device] for row in problem.latency_s], problem.launches_s[device])


def best_of(problem: Problem, solutions: Iterable[Solution]) -> Solution:
    """The fastest in the simulator: one of these solutions, or one device alone.

    Planners that search without look-ahead, or with a limit, should not return a slower plan than
    one device.
    """
    count = len(problem.tasks)
    timed = [(simulated_s(problem, solution), solution) for solution in solutions]
    for device in problem.devices:
        timed.append((alone_s(problem, device), Solution([device] * count, problem.tasks)))
    return min(timed, key=lambda pair: pair[0])[1]


def simulated_s(problem: Problem, solution: Solution) -> float:
    """Makespan of one inference in the simulator, in seconds."""
    schedule = derive(written(problem, solution), problem.graph)
    return simulate(schedule, problem.remembered_cost, problem.system).makespan_s


def written(problem: Problem, solution: Solution, provenance: Provenance = _NOBODYS) -> Plan:
    """The plan that computes each task or piece on its device, in the order of the sequence."""
    graph = problem.graph
    pieces = solution.pieces or [graph.whole_piece(task) for task in graph.tasks]
    order: dict[str, list[Piece]] = {name: [] for name in problem.system.names}
    engine_of: dict[Piece, str] = {}
    for number in solution.sequence:
        place = problem.system.places[solution.assignment[number]]
        order[place.device].append(pieces[number])
        engine_of[pieces[number]] = place.engine
    fused = frozenset(pieces[number] for number in solution.fused)
    by_processor = {name: tuple(own) for name, own in order.items()}
    return Plan(graph.fingerprint, by_processor, engine_of, provenance, fused)
