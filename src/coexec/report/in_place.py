"""Measured times of tasks at the places of a plan."""

from collections.abc import Mapping

from coexec.plan.derive import stepwise
from coexec.profiling.sweep import measure_in_place
from coexec.selection.prepared import Prepared

__all__ = ["measured_in_place"]


def measured_in_place(prepared: Prepared) -> Mapping[str, float]:
    """Measured seconds on the place of the plan, by task; the tasks run one after the other.

    Empty for plans with parts of tasks, which cannot run as segments of their own.
    """
    graph, work = prepared.schedule.graph, prepared.work
    if any(piece != graph.whole_piece(graph.task[piece.task]) for piece in prepared.plan.device_of):
        return {}
    place_of = {piece.task: place for piece, place in prepared.plan.place_of.items()}
    return measure_in_place(work.compiler, stepwise(graph, place_of), work.devices)
