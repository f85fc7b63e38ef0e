"""Why each task is on its device: when its result is delivered, and when another device would.

Each task is moved alone, to the device that would deliver its result first; all other tasks keep
their device and time. The change is the sum of four figures: computing, moving the inputs, waiting
for the device, and moving the result to its readers. On the other device the task takes the first
gap that is long enough, as in list scheduling with insertion (Topcuoglu et al., HEFT, 2002). The
effect of a move on other tasks is not computed.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from coexec.costs.base import CostModel
from coexec.graph.graph import Piece, Task
from coexec.hardware.hardware import Place, System
from coexec.plan.plan import Plan
from coexec.plan.schedule import Schedule, Segment
from coexec.timing.clock import launched_s
from coexec.timing.simulate import simulate
from coexec.timing.trace import Trace
from coexec.units import format_seconds

Group = Literal[
    "pinned", "only", "alone", "computing", "inputs", "waiting", "result", "even", "later"
]

GROUPS: Mapping[Group, str] = {
    "pinned": "pinned by the user",
    "only": "the plan has one device",
    "alone": "no other device runs it",
    "computing": "computes faster here",
    "inputs": "its inputs are here",
    "waiting": "the others are busy",
    "result": "what reads it is here",
    "even": "makes no difference",
    "later": "all tasks together end sooner so",
}
"""Reasons in words. A reason that is one of the four figures is the figure that would increase most
on the other device."""

_EVEN = 0.02
"""Share of a task's computing time; a smaller difference counts as none."""
_WORTH_SAYING = 0.05
"""Share of the difference; smaller figures are left out of the reason."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """Delivery time of a task's result to all devices that read it, as a sum of durations."""

    device: str
    made_s: float
    """Second at which the last of the task's inputs was computed, on any device."""
    inputs_s: float
    """Seconds from then until all inputs are on the device."""
    waiting_s: float
    """Seconds from then until the device starts the task."""
    computing_s: float
    result_s: float
    """Seconds from the end of the task until its result is on all devices that read it."""

    @property
    def end_s(self) -> float:
        """Second at which the result is on all devices that read it."""
        parts = (self.inputs_s, self.waiting_s, self.computing_s, self.result_s)
        return self.made_s + math.fsum(parts)


@dataclass(frozen=True, slots=True)
class Reason:
    """Why one task of a plan is on its device."""

    task: str
    device: str
    engine: str
    group: Group
    why: str
    predicted_s: float
    moved_bytes: int
    """Bytes of the inputs from other devices that this task is the first on its device to fetch."""
    here: Delivery
    elsewhere: Delivery | None
    """Delivery from the other device that is the fastest; None if no other device runs the task."""


def explain(
    plan: Plan,
    schedule: Schedule,
    cost: CostModel,
    system: System,
    pinned: Collection[str] = (),
    trace: Trace | None = None,
) -> list[Reason]:
    """A reason for each piece of the plan, in the order in which they start.

    Args:
        plan: verified; ``schedule`` is derived from it.
        pinned: names of tasks whose device the user has chosen.
        trace: the simulation of ``schedule``; None: it is simulated here.
    """
    trace = simulate(schedule, cost, system) if trace is None else trace
    graph, times = schedule.graph, _Times(plan, schedule, cost, system, trace)
    reasons = []
    for segment in sorted(schedule.segments, key=lambda s: times.start_s(s)):
        transfers = (schedule.transfers[i] for i in schedule.incoming[segment.index])
        arriving = {t.tensor: t.size_bytes for t in transfers}
        for piece in segment.pieces:
            task = graph.task[piece.task]
            moved = sum(arriving.pop(name, 0) for name in task.inputs)
            here, deliveries = times.here(segment, piece), times.elsewhere(segment, piece)
            there = min(deliveries, key=lambda d: d.end_s, default=None)
            group, why = _reason(here, there, len(system.places))
            if task.name in pinned:
                group, why = "pinned", "pinned"
            name = task.name if piece.region == graph.output_of(task).whole else str(piece)
            seconds = cost.piece_s(graph, task, piece.region, segment.place)
            reasons.append(Reason(name, *segment.place, group, why, seconds, moved, here, there))
    return reasons


def _reason(here: Delivery, there: Delivery | None, places: int) -> tuple[Group, str]:
    if there is None:
        return ("only", "the plan's only device") if places == 1 else ("alone", GROUPS["alone"])
    later_s = there.end_s - here.end_s
    parts: dict[Group, float] = {
        "computing": there.computing_s - here.computing_s,
        "inputs": there.inputs_s - here.inputs_s,
        "waiting": there.waiting_s - here.waiting_s,
        "result": there.result_s - here.result_s,
    }
    if abs(later_s) <= _EVEN * here.computing_s:
        return "even", f"as good on {there.device}"
    figures = ", ".join(
        f"{part} {'+' if seconds > 0 else '-'}{format_seconds(abs(seconds))}"
        for part, seconds in sorted(parts.items(), key=lambda item: -abs(item[1]))
        if abs(seconds) > _WORTH_SAYING * abs(later_s)
    )
    order = "later" if later_s > 0 else "sooner"
    why = f"{there.device}: {format_seconds(abs(later_s))} {order} ({figures})"
    return (max(parts, key=parts.__getitem__) if later_s > 0 else "later"), why


class _Made(NamedTuple):
    """A part of a tensor that a segment has computed."""

    segment: int
    place: Place
    computed_s: float
    """Second at which its piece was computed: from then on its own segment can read it."""
    end_s: float
    """Second at which its segment ended: from then on other segments can read it."""
    size_bytes: int


class _Times:
    """Seconds at which tensors are available on devices, in a simulated plan."""

    def __init__(
        self, plan: Plan, schedule: Schedule, cost: CostModel, system: System, trace: Trace
    ) -> None:
        self._graph, self._cost, self._system = schedule.graph, cost, system
        self._span = {span.segment: span for span in trace.of("compute")}
        self._busy: dict[str, list[tuple[float, float]]] = {name: [] for name in system.names}
        for span in trace.of("compute", "transfer"):
            self._busy[span.device].append((span.start_s, span.end_s))
        self._places: dict[str, set[Place]] = {}
        for piece, place in plan.place_of.items():
            self._places.setdefault(piece.task, set()).add(place)
        self._end_s: dict[Piece, float] = {}
        self._makers: dict[str, list[_Made]] = {}
        for segment in schedule.segments:
            self._note(segment)

    def start_s(self, segment: Segment) -> float:
        return self._span[segment.index].start_s

    def _note(self, segment: Segment) -> None:
        """Record when each piece of a segment ends; they run one after the other in one launch."""
        span, launch_s = self._span[segment.index], self._cost.launch_s(segment.place)
        seconds: list[float] = []
        for piece in segment.pieces:
            task = self._graph.task[piece.task]
            seconds.append(self._cost.piece_s(self._graph, task, piece.region, segment.place))
            end_s = self._end_s[piece] = span.start_s + launched_s(seconds, launch_s)
            for name in task.outputs:
                made = _Made(
                    segment.index, segment.place, end_s, span.end_s, self._share(task, piece, name)
                )
                self._makers.setdefault(name, []).append(made)

    def _share(self, task: Task, piece: Piece, tensor: str) -> int:
        """Bytes of a piece's part of ``tensor``."""
        size_bytes = self._graph.tensors[tensor].size_bytes
        whole = self._graph.output_of(task).whole
        return round(size_bytes * piece.region.size / whole.size) if whole.size else size_bytes

    def here(self, segment: Segment, piece: Piece) -> Delivery:
        """Delivery from the device that the plan uses."""
        return self._delivery(segment, piece, segment.place, self._start_s(segment, piece))

    def _start_s(self, segment: Segment, piece: Piece) -> float:
        return max(0.0, self._end_s[piece] - self._computing_s(piece, segment.place))

    def elsewhere(self, segment: Segment, piece: Piece) -> list[Delivery]:
        """Deliveries from each other device that runs the piece. One that shares the processor
        starts when the plan's device does."""
        start_s = self._start_s(segment, piece)
        return [
            self._delivery(
                segment, piece, place, start_s if place.device == segment.device else None
            )
            for place in self._system.places
            if place != segment.place and math.isfinite(self._computing_s(piece, place))
        ]

    def _computing_s(self, piece: Piece, place: Place) -> float:
        return self._cost.piece_s(self._graph, self._graph.task[piece.task], piece.region, place)

    def _delivery(
        self, segment: Segment, piece: Piece, place: Place, start_s: float | None
    ) -> Delivery:
        """Delivery of a piece from ``place``.

        ``start_s``: when the plan starts the piece there; None: in the first gap that is long
        enough.
        """
        task, computing_s = self._graph.task[piece.task], self._computing_s(piece, place)
        made_s = arrived_s = 0.0
        for name, made in ((n, made) for n in task.inputs for made in self._makers.get(n, ())):
            there_s = made.computed_s if made.segment == segment.index else made.end_s
            made_s = max(made_s, there_s)
            moving_s = self._moving_s(name, made.size_bytes, made.place, place)
            arrived_s = max(arrived_s, there_s + moving_s)
        if start_s is None:
            start_s = _gap(self._busy[place.device], arrived_s, computing_s)
        start_s = max(start_s, made_s)
        inputs_s = min(arrived_s, start_s) - made_s
        result_s = max(
            (
                self._moving_s(name, self._share(task, piece, name), place, other)
                for name in task.outputs
                for reader in self._graph.readers.get(name, ())
                for other in self._places[reader.name]
            ),
            default=0.0,
        )
        return Delivery(
            place.device, made_s, inputs_s, start_s - made_s - inputs_s, computing_s, result_s
        )

    def _moving_s(self, tensor: str, size_bytes: int, source: Place, target: Place) -> float:
        if source == target:
            return 0.0
        link = self._system.link(source, target)
        return link.sync_latency_s + self._cost.transfer_s(tensor, size_bytes, link)


def _gap(busy: Sequence[tuple[float, float]], from_s: float, length_s: float) -> float:
    """Start of the first gap of at least ``length_s`` seconds in ``busy``, which is sorted, from
    second ``from_s`` on."""
    for start_s, end_s in busy:
        if start_s - from_s >= length_s:
            break
        from_s = max(from_s, end_s)
    return from_s
