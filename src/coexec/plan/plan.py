"""A plan: which device computes which pieces, in which order, and which planner made it.

Nothing else is stored. Transfers, segments and memory follow from it (`coexec.plan.schedule`).
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import groupby, pairwise, permutations
from typing import Any, Self

from coexec.errors import PlanError
from coexec.graph.graph import Graph, Piece, Task
from coexec.graph.receptive import needed_inputs
from coexec.graph.region import Region
from coexec.graph.stitch import missing
from coexec.hardware.hardware import Place, System
from coexec.plan.footprint import verify_memory
from coexec.precision import FLOAT32

_FORMAT = 2
"""Version of the format of plan files. 2: each piece names its engine."""


@dataclass(frozen=True)
class Provenance:
    """Planner of a plan, its options, and its prediction."""

    planner: str
    options: Mapping[str, Any] = field(default_factory=dict)
    status: str = "feasible"
    """"optimal", "feasible" or "time limit"."""
    predicted_s: float | None = None
    """The makespan that the planner computed with its own model of time."""
    bound_s: float | None = None
    """Lower bound of the makespan, under the cost model."""


@dataclass(frozen=True)
class Plan:
    """Pieces that each processor computes, in order, and the engine of each piece."""

    model: str
    """`Graph.fingerprint` of the model that it was made for."""
    order: Mapping[str, tuple[Piece, ...]]
    """By processor; devices that share it take turns in this order."""
    engine_of: Mapping[Piece, str]
    provenance: Provenance
    fused: frozenset[Piece] = frozenset()
    """Pieces that are fused into one launch with the previous piece on their device, although that
    may delay other devices. Fusions that delay nothing are made anyway (`coexec.plan.derive`) and
    are not listed."""
    as_given: bool = False
    """The engine's own session runs the whole model as it was given, with all of the engine's
    optimisations and its own threads. Only for plans of one place."""

    @classmethod
    def of_places(
        cls,
        model: str,
        order: Mapping[Place, tuple[Piece, ...]],
        provenance: Provenance,
        fused: frozenset[Piece] = frozenset(),
    ) -> Self:
        """A plan in which no two devices share a processor.

        Raises:
            ValueError: two devices share one.
        """
        if len({place.device for place in order}) < len(order):
            raise ValueError(f"devices that share a processor: {', '.join(map(str, order))}")
        engine_of = {piece: place.engine for place, pieces in order.items() for piece in pieces}
        by_device = {place.device: pieces for place, pieces in order.items()}
        return cls(model, by_device, engine_of, provenance, fused)

    @classmethod
    def in_turns(cls, graph: Graph, place_of: Mapping[str, Place], provenance: Provenance) -> Self:
        """A plan of whole tasks on devices that share one processor. The tasks are ordered so that
        the devices take few turns: each turn is a launch.

        Args:
            place_of: device by task name; at most three devices.
        """
        orders = [graph.tasks]
        for places in permutations(dict.fromkeys(place_of.values())):
            turn_of = _turns(graph, place_of, places)
            orders.append(tuple(sorted(graph.tasks, key=lambda task: turn_of[task.name])))
        tasks = min(orders, key=lambda tasks: len(list(groupby(place_of[t.name] for t in tasks))))
        engine_of = {graph.whole_piece(t): place_of[t.name].engine for t in tasks}
        (device,) = {place.device for place in place_of.values()}
        return cls(graph.fingerprint, {device: tuple(engine_of)}, engine_of, provenance)

    @cached_property
    def device_of(self) -> Mapping[Piece, str]:
        """The processor of each piece."""
        return {piece: device for device, pieces in self.order.items() for piece in pieces}

    @cached_property
    def place_of(self) -> Mapping[Piece, Place]:
        """The device of each piece."""
        return {p: Place(device, self.engine_of[p]) for p, device in self.device_of.items()}

    @property
    def places(self) -> tuple[Place, ...]:
        """Devices that compute something, grouped by processor."""
        return tuple(dict.fromkeys(self.place_of.values()))

    @cached_property
    def lower(self) -> Mapping[str, int]:
        """Number of pieces by precision, of those that are computed in less than float32."""
        return Counter(p for place in self.place_of.values() if (p := place.precision) != FLOAT32)

    @property
    def lower_in_words(self) -> str:
        """`lower` as text: "51 of 53 tasks in bf16"; "" if it is empty."""
        of = f"of {len(self.place_of)} tasks in"
        return ", ".join(f"{count} {of} {precision}" for precision, count in self.lower.items())

    @property
    def requests(self) -> tuple[str, ...]:
        """Devices that compute something, in the form of a user's request: "cpu:1/cpp"."""
        return tuple(map(str, self.places))

    @property
    def used(self) -> tuple[str, ...]:
        """Names of the processors that compute something."""
        return tuple(d for d, pieces in self.order.items() if pieces)

    def to_json(self) -> str:
        """JSON text that a person can read and edit; `from_json` reads it back."""
        order = {d: [self._row(p) for p in pieces] for d, pieces in self.order.items()}
        head = {"format": _FORMAT, "model": self.model, "provenance": asdict(self.provenance)}
        if self.as_given:
            head["as_given"] = True
        return json.dumps(head | {"order": order}, indent=1, default=str)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Inverse of `to_json`.

        Raises:
            PlanError: the text is no plan, or has another format.
        """
        try:
            try:
                data = json.loads(text)
            except ValueError as error:
                raise PlanError(
                    f"this is not a plan, nor any JSON ({error}); make one with coexec plan MODEL "
                    f"--output plan.json"
                ) from None
            if not isinstance(data, dict) or "format" not in data:
                raise PlanError(
                    "this is JSON, but not a plan: it has no 'format'; make one with coexec plan "
                    "MODEL --output plan.json"
                )
            if data["format"] != _FORMAT:
                raise _other_format(data["format"])
            rows = {str(d): [(_piece(r), r) for r in o] for d, o in data["order"].items()}
            order = {d: tuple(piece for piece, _ in o) for d, o in rows.items()}
            pieces = [pair for o in rows.values() for pair in o]
            return cls(
                str(data["model"]),
                order,
                {piece: str(row["engine"]) for piece, row in pieces},
                _provenance(data["provenance"]),
                frozenset(piece for piece, row in pieces if _flag(row, "fused")),
                _flag(data, "as_given"),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if isinstance(error, PlanError):
                raise
            raise PlanError(
                f"this is not a plan: {type(error).__name__}: {error}; make one with "
                f"coexec plan MODEL --output plan.json"
            ) from None

    def _row(self, piece: Piece) -> dict[str, Any]:
        row = {
            "task": piece.task,
            "start": piece.region.start,
            "stop": piece.region.stop,
            "engine": self.engine_of[piece],
        }
        return row | ({"fused": True} if piece in self.fused else {})


def _other_format(found: Any) -> PlanError:
    is_newer = type(found) is int and found > _FORMAT
    source = ", which a newer version of coexec has written" if is_newer else ""
    remedy = "update coexec, or make it again" if is_newer else "make it again"
    return PlanError(
        f"the plan has format {found!r}{source}; this version reads {_FORMAT}: {remedy} with "
        f"coexec plan"
    )


def _provenance(row: Any) -> Provenance:
    provenance = Provenance(**row)
    for name in ("predicted_s", "bound_s"):
        seconds = getattr(provenance, name)
        if type(seconds) not in (int, float, type(None)):
            raise TypeError(f"{name} is {seconds!r}, which is no number")
    for name in ("planner", "status"):
        if not isinstance(getattr(provenance, name), str):
            raise TypeError(f"{name} is {getattr(provenance, name)!r}, which is no text")
    return provenance


def _piece(row: Any) -> Piece:
    return Piece(str(row["task"]), _region(row["start"], row["stop"]))


def _flag(row: Any, name: str) -> bool:
    flag = row.get(name, False)
    if type(flag) is not bool:
        raise TypeError(f"{name} is {flag!r}, neither true nor false")
    return flag


def _region(start: Any, stop: Any) -> Region:
    for numbers in (start, stop):
        if not isinstance(numbers, list) or any(type(n) is not int for n in numbers):
            raise TypeError(f"{numbers!r} is not a list of whole numbers")
    if len(start) != len(stop):
        raise ValueError(f"{start} and {stop} have different lengths")
    return Region(tuple(start), tuple(stop))


def _turns(graph: Graph, place_of: Mapping[str, Place], order: Sequence[Place]) -> dict[str, int]:
    """The turn of each task: the first one of its device that is not before the turns of the tasks
    that it reads from. The devices have turns in ``order``, again and again."""
    turn_of: dict[str, int] = {}
    for task in graph.tasks:
        earliest = max((turn_of[t.name] for t in graph.predecessors[task.name]), default=0)
        waits = (order.index(place_of[task.name]) - earliest) % len(order)
        turn_of[task.name] = earliest + waits
    return turn_of


def verify_plan(plan: Plan, graph: Graph, system: System) -> None:
    """Refuse a plan that does not compute the whole of ``graph`` exactly once on ``system``.

    Raises:
        PlanError: the plan is wrong; the message names a fault. Deadlocks are found when the
            schedule is derived, by `coexec.plan.derive.derive`.
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
                f"run with --devices {','.join(plan.requests)} or make a new plan"
            )
    for place in plan.places:
        if place not in system.at:
            have = ", ".join(str(other) for other in system.at if other.device == place.device)
            raise PlanError(
                f"the plan computes on {place}, the system has {have}; run with --devices "
                f"{','.join(map(str, plan.places))} or make a new plan"
            )
    if plan.as_given and len(plan.places) > 1:
        raise PlanError(
            f"the plan runs the model as it was given, which one place does, and names "
            f"{', '.join(map(str, plan.places))}; make a new one with "
            f"coexec plan"
        )
    pieces: dict[str, list[Region]] = {task.name: [] for task in graph.tasks}
    for order in plan.order.values():
        for before, piece in pairwise(order):
            if piece in plan.fused and plan.engine_of[before] != plan.engine_of[piece]:
                raise PlanError(
                    f"the plan fuses {piece}, which {plan.engine_of[piece]} computes, "
                    f"with {before}, which {plan.engine_of[before]} does; make a new "
                    f"one with coexec plan"
                )
        for piece in order:
            if piece.task not in pieces:
                raise PlanError(
                    f"the plan computes {piece.task!r}, which {graph.name!r} does "
                    f"not have; make a new one with coexec plan"
                )
            pieces[piece.task].append(piece.region)
    for task in graph.tasks:
        _verify_cover(task, pieces, graph)
    verify_memory(plan.place_of, graph, system)


def _verify_cover(task: Task, pieces: Mapping[str, Sequence[Region]], graph: Graph) -> None:
    """Refuse regions of a task that lie outside its output, are listed twice, cannot be computed
    independently, or leave out something that is needed.

    Regions may overlap: rows that two pieces need are cheaper to compute twice than to transfer.
    Regions that no output and no reader needs may be left out.
    """
    regions, whole = pieces[task.name], graph.output_of(task).whole
    for region in regions:
        fits = len(region.start) == len(whole.start)
        if not fits or not whole.contains(region) or (region.size == 0 and whole.size > 0):
            raise PlanError(
                f"the plan computes {region} of {task.name!r}, whose output is "
                f"{whole}; make a new one with coexec plan"
            )
        if region != whole:
            needed_inputs(graph, task, region)  # raises if the task cannot be divided like this
    if len(set(regions)) < len(regions):
        twice = next(r for r in regions if regions.count(r) > 1)
        raise PlanError(
            f"the plan computes {twice} of {task.name!r} twice; let one device do it, "
            f"and the others read it"
        )
    gaps = missing(whole, regions)
    if gaps and regions:
        gaps = tuple(box for need in _needed(task, pieces, graph) for box in missing(need, regions))
    if gaps or not regions:
        raise PlanError(
            f"the plan leaves out {', '.join(map(str, gaps)) or whole} of the output "
            f"of {task.name!r}, which is {whole}; make a new one with "
            f"coexec plan"
        )


def _needed(task: Task, pieces: Mapping[str, Sequence[Region]], graph: Graph) -> Iterable[Region]:
    """Regions of a task's main output that the caller and the pieces of readers need."""
    name = task.outputs[0]
    if name in graph.outputs:
        yield graph.tensors[name].whole
    for reader in graph.readers.get(name, ()):
        for region in pieces[reader.name]:
            yield needed_inputs(graph, reader, region)[name]
