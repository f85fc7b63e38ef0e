"""A plan: which device computes which pieces, in which order, and who thought so.

Nothing else is stored. Transfers, segments and memory follow from it (`coexec.plans.schedule`).
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any, Self

from coexec.errors import InfeasibleError, PlanError
from coexec.ir.graph import Graph, Piece, Task
from coexec.ir.region import Region
from coexec.system.hardware import System
from coexec.units import format_bytes

__all__ = ["Plan", "Provenance", "task_bytes", "verify_plan"]

_FORMAT = 1


@dataclass(frozen=True)
class Provenance:
    """Who made a plan, with what, and what was promised."""

    planner: str
    options: Mapping[str, Any] = field(default_factory=dict)
    status: str = "feasible"
    """"optimal", "feasible" or "time limit"."""
    predicted_s: float | None = None
    """The makespan that the planner computed with its own model of time."""
    bound_s: float | None = None
    """No plan can be faster, under the cost model."""


@dataclass(frozen=True)
class Plan:
    """For each device the pieces that it computes, in order."""

    model: str
    """`Graph.fingerprint` of the model that it was made for."""
    order: Mapping[str, tuple[Piece, ...]]
    provenance: Provenance
    joined: frozenset[Piece] = frozenset()
    """Pieces that are launched as a unit with the piece before them on their device, although
    that may delay others; what delays nobody is joined anyway (`coexec.plans.derive`)."""

    @cached_property
    def device_of(self) -> Mapping[Piece, str]:
        """The device of each piece."""
        return {piece: device for device, pieces in self.order.items() for piece in pieces}

    @property
    def used(self) -> tuple[str, ...]:
        """The devices that have something to do."""
        return tuple(d for d, pieces in self.order.items() if pieces)

    def to_json(self) -> str:
        """As text that a person can read and edit; `from_json` reads it back."""
        order = {d: [self._row(p) for p in pieces] for d, pieces in self.order.items()}
        head = {"format": _FORMAT, "model": self.model, "provenance": asdict(self.provenance)}
        return json.dumps(head | {"order": order}, indent=1, default=str)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`.

        Raises:
            PlanError: not a plan, or one of another version.
        """
        try:
            data = json.loads(text)
            if data["format"] != _FORMAT:
                raise PlanError(f"the plan has format {data['format']!r}, this version reads "
                                f"{_FORMAT}; make it again with coexec plan")  # fmt: skip
            rows = {str(d): [(_piece(r), _joined(r)) for r in o] for d, o in data["order"].items()}
            order = {d: tuple(piece for piece, _ in o) for d, o in rows.items()}
            if not any(order.values()):
                raise ValueError("no device computes anything")
            joined = frozenset(piece for o in rows.values() for piece, flag in o if flag)
            return cls(str(data["model"]), order, Provenance(**data["provenance"]), joined)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, PlanError):
                raise
            raise PlanError(
                f"this is not a plan: {type(error).__name__}: {error}; make one with "
                f"coexec plan MODEL --output plan.json"
            ) from None

    def _row(self, piece: Piece) -> dict[str, Any]:
        row = {"task": piece.task, "start": piece.region.start, "stop": piece.region.stop}
        return row | ({"joined": True} if piece in self.joined else {})


def _piece(row: Any) -> Piece:
    return Piece(str(row["task"]), _region(row["start"], row["stop"]))


def _joined(row: Any) -> bool:
    flag = row.get("joined", False)
    if type(flag) is not bool:
        raise TypeError(f"joined is {flag!r}, neither true nor false")
    return flag


def _region(start: Any, stop: Any) -> Region:
    for numbers in (start, stop):
        if not isinstance(numbers, list) or any(type(n) is not int for n in numbers):
            raise TypeError(f"{numbers!r} is not a list of whole numbers")
    if len(start) != len(stop):
        raise ValueError(f"{start} and {stop} have different lengths")
    return Region(tuple(start), tuple(stop))


def verify_plan(plan: Plan, graph: Graph, system: System) -> None:
    """Refuse a plan that does not compute the whole of ``graph`` exactly once on ``system``.

    Raises:
        PlanError: naming the worst offender. That the order has no deadlock is checked where it
            is derived, by `coexec.plans.schedule.derive`.
        InfeasibleError: a memory cannot hold what the plan puts there.
    """
    if plan.model != graph.fingerprint:
        raise PlanError(
            f"the plan was made for another model or other shapes: it says {plan.model}, "
            f"{graph.name!r} is {graph.fingerprint}; make a new one with coexec plan"
        )
    for device in plan.used:
        if device not in system.device:
            raise PlanError(
                f"the plan uses device {device!r}, the system has {', '.join(system.names)}; "
                f"run with --devices {','.join(plan.used)} or make a new plan"
            )
    pieces: dict[str, list[Region]] = {task.name: [] for task in graph.tasks}
    for order in plan.order.values():
        for piece in order:
            if piece.task not in pieces:
                raise PlanError(f"the plan computes {piece.task!r}, which {graph.name!r} does "
                                f"not have; make a new one with coexec plan")  # fmt: skip
            pieces[piece.task].append(piece.region)
    for task in graph.tasks:
        _verify_cover(task.name, pieces[task.name], graph.output_of(task).whole)
    _verify_memory(plan, graph, system)


def task_bytes(graph: Graph, task: Task) -> int:
    """Bytes that must lie in a device's memory while it runs a task: weights, inputs, outputs."""
    names = dict.fromkeys((*task.weights, *task.inputs, *task.outputs))
    return sum(graph.tensors[name].size_bytes for name in names)


def _verify_memory(plan: Plan, graph: Graph, system: System) -> None:
    """Refuse a plan if the weights in a memory and one task on top are more than it has.

    That is the least: intermediate tensors that live longer come on top.
    """
    wholes: dict[str, list[Task]] = {}
    for name in plan.used:
        order = plan.order[name]
        tasks = [graph.task[piece.task] for piece in order]
        memory = system.device[name].memory
        wholes.setdefault(memory, []).extend(
            t for t, p in zip(tasks, order, strict=True) if p == graph.whole_piece(t)
        )
    for memory, tasks in wholes.items():
        devices = [d for d in system.devices if d.memory == memory and d.memory_bytes is not None]
        weights = {name for task in tasks for name in task.weights}
        weights_bytes = sum(graph.tensors[name].size_bytes for name in weights)
        if not devices or not tasks:
            continue
        largest = max(tasks, key=lambda task: task_bytes(graph, task))
        own = sum(graph.tensors[name].size_bytes for name in largest.weights)
        needed = weights_bytes - own + task_bytes(graph, largest)
        available = max(device.memory_bytes or 0 for device in devices)
        if needed > available:
            raise InfeasibleError(
                f"the plan puts {format_bytes(needed)} into the memory of "
                f"{', '.join(d.name for d in devices)}, which has {format_bytes(available)}: "
                f"weights of {len(tasks)} tasks and the tensors of {largest.name!r}; pin tasks to "
                f"devices with another memory, or take a smaller model or input"
            )


def _verify_cover(task: str, regions: list[Region], whole: Region) -> None:
    """Disjoint regions inside the output whose sizes add up to it are all of it."""
    for region in regions:
        fits = len(region.start) == len(whole.start)
        if not fits or not whole.contains(region) or (region.size == 0 and whole.size > 0):
            raise PlanError(f"the plan computes {region} of {task!r}, whose output is {whole}; "
                            f"make a new one with coexec plan")  # fmt: skip
    for a, b in combinations(regions, 2):
        if a.overlap(b).size or a == b:
            raise PlanError(f"the plan computes {a} and {b} of {task!r}, which overlap in "
                            f"{a.overlap(b)}; make a new one with coexec plan")  # fmt: skip
    covered = sum(region.size for region in regions)
    if covered != whole.size or not regions:
        raise PlanError(f"the plan computes {covered} of the {whole.size} elements of {task!r}; "
                        f"make a new one with coexec plan")  # fmt: skip
