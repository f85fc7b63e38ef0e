"""What no plan can beat, and what one device takes: figures beside a prediction."""

import math
from dataclasses import dataclass

from coexec.hardware.hardware import Place
from coexec.selection.prepared import Prepared
from coexec.units import format_seconds


def alone_s(prepared: Prepared, place: Place) -> float:
    """Seconds of all tasks, one after the other, on one device."""
    graph, cost = prepared.graph, prepared.cost
    wholes = ((task, graph.output_of(task).whole) for task in graph.tasks)
    return math.fsum(cost.piece_s(graph, task, whole, place) for task, whole in wholes)


@dataclass(frozen=True)
class LowerBound:
    """Lower bound of the time of any plan of whole tasks on these devices, by the profile."""

    seconds: float
    devices: tuple[str, ...]
    """Devices with their engines."""

    def __str__(self) -> str:
        where = ", ".join(self.devices)
        return f"{format_seconds(self.seconds)}: no plan of whole tasks on {where} is faster"


def bound_of(prepared: Prepared, fastest_s: float = math.inf) -> LowerBound | None:
    """The lower bound of a plan; None if there is none.

    None also if other devices are faster than the bound: a plan for them has another bound.

    Args:
        fastest_s: the shortest measured time, on any devices.
    """
    seconds = prepared.plan.provenance.bound_s
    chosen = prepared.candidates[0].devices if prepared.candidates else ()
    other_figures = [
        figure
        for candidate in prepared.candidates
        if candidate.devices != chosen and candidate.is_able
        for figure in (candidate.predicted_s, candidate.paced_s, candidate.loop_s)
        if figure is not None
    ]
    if not seconds or seconds > min([fastest_s, *other_figures]):
        return None
    return LowerBound(seconds, tuple(str(place) for place in prepared.system.places))
