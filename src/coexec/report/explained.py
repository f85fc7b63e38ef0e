"""Why the tasks of a plan are where they are, and how long they take there."""

from collections.abc import Mapping

from coexec.plan.derive import stepwise
from coexec.profiling.sweep import measure_in_place
from coexec.selection.prepared import Prepared, Simulated
from coexec.timing.explain import Reason, explain
from coexec.timing.trace import Trace


def explained(prepared: Prepared, trace: Trace) -> list[Reason]:
    """A reason for each piece of a plan, with the pins of the user.

    Args:
        trace: the simulation of the plan.
    """
    cost, system = prepared.cost, prepared.system
    is_simulated = isinstance(prepared.origin, Simulated)
    pinned = () if is_simulated else prepared.work.pinned_tasks(cost, system)
    return explain(prepared.plan, prepared.schedule, cost, system, pinned, trace)


def measured_in_place(prepared: Prepared) -> Mapping[str, float]:
    """Measured seconds on the place of the plan, by task; the tasks run one after the other.

    Empty on simulated devices, and for plans with parts of tasks, which cannot run as segments of
    their own.
    """
    graph = prepared.schedule.graph
    if isinstance(prepared.origin, Simulated) or any(
        piece != graph.whole_piece(graph.task[piece.task]) for piece in prepared.plan.device_of
    ):
        return {}
    work = prepared.work
    place_of = {piece.task: place for piece, place in prepared.plan.place_of.items()}
    return measure_in_place(work.compiler, stepwise(graph, place_of), work.devices)
