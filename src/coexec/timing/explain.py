"""Why each task is where it is: reasons that a plan's costs, data and times give."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from coexec.costs.base import CostModel
from coexec.ir.graph import Graph, Task
from coexec.plans.plan import Plan
from coexec.plans.schedule import Schedule
from coexec.system.hardware import System
from coexec.timing.simulate import simulate
from coexec.units import format_bytes

__all__ = ["Reason", "explain"]

_CLEARLY = 1.05
"""How much faster a device must be to be the reason."""


@dataclass(frozen=True, slots=True)
class Reason:
    """One task of a plan."""

    task: str
    device: str
    engine: str
    why: str
    predicted_s: float
    moved_bytes: int
    """What it reads of other devices and nobody before it on its device had brought there."""


def explain(
    plan: Plan,
    schedule: Schedule,
    cost: CostModel,
    system: System,
    pinned: Collection[str] = (),
) -> list[Reason]:
    """A reason for each piece of the plan, in the order in which they start.

    Args:
        plan: verified; ``schedule`` is derived from it.
        pinned: names of tasks whose device the user has chosen.
    """
    graph = schedule.graph
    trace = simulate(schedule, cost, system)
    span_of = {s.segment: s for s in trace.of("compute")}
    device_of = {piece.task: device for piece, device in plan.device_of.items()}
    elsewhere = {place.device: place for place in system.places}
    found = []
    for segment in sorted(schedule.segments, key=lambda s: span_of[s.index].start_s):
        beside = sorted(
            {
                other.device
                for other in trace.of("compute", "transfer")
                if other.device != segment.device
                and other.start_s < span_of[segment.index].end_s
                and other.end_s > span_of[segment.index].start_s
            }
        )
        arriving = {t.tensor: t.size_bytes for t in schedule.incoming[segment.index]}
        for piece in segment.pieces:
            task = graph.task[piece.task]
            moved = sum(arriving.pop(name, 0) for name in task.inputs)
            places = {**elsewhere, segment.device: segment.place}
            seconds = {n: cost.piece_s(graph, task, piece.region, p) for n, p in places.items()}
            why = _why(graph, task, segment.device, seconds, device_of, beside)
            why = "pinned" if task.name in pinned else why
            found.append(Reason(str(piece) if piece.region != graph.output_of(task).whole
                                else task.name, *segment.place, why,
                                seconds[segment.device], moved))  # fmt: skip
    return found


def _why(
    graph: Graph,
    task: Task,
    device: str,
    seconds: Mapping[str, float],
    device_of: Mapping[str, str],
    beside: list[str],
) -> str:
    others = {name: s for name, s in seconds.items() if name != device}
    if not others:
        return "the only device"
    if all(math.isinf(s) for s in others.values()):
        return "no other device runs it"
    nearest = min(others, key=others.__getitem__)
    factor = others[nearest] / seconds[device] if seconds[device] else 1.0
    if factor >= _CLEARLY:
        return f"{factor:.1f}x faster here than on {nearest}"
    here = [p for p in graph.predecessors[task.name] if device_of.get(p.name) == device]
    size = sum(graph.tensors[n].size_bytes for p in here for n in p.outputs if n in task.inputs)
    note = f"its input of {format_bytes(size)} is here" if size else ""
    if factor <= 1 / _CLEARLY:
        slower = f"{1 / factor:.1f}x slower than on {nearest}, which is busy"
        return f"{slower}; {note}" if note else slower
    if note:
        return note
    return f"runs beside {', '.join(beside)}" if beside else "as good as elsewhere"
