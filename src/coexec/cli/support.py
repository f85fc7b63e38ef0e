"""Which tasks of a model a device runs, why it refuses others, and the resulting sub-graphs."""

from collections import Counter
from typing import Any

from rich.table import Table

from coexec.cli.console import out
from coexec.engines.base import OpenEngine
from coexec.graph.graph import Graph
from coexec.hardware.hardware import Place
from coexec.plan.derive import derive
from coexec.plan.plan import Plan, Provenance
from coexec.units import format_count

__all__ = ["facts", "show"]

_ELSEWHERE = Place("elsewhere", "any")


def facts(graph: Graph, engine: OpenEngine) -> dict[str, Any]:
    """Counts of supported and refused tasks, and the segments if all supported tasks run there."""
    reasons = {t.name: engine.refusal(t, graph.tensors) for t in graph.tasks}
    order: dict[Place, list[Any]] = {engine.place: [], _ELSEWHERE: []}
    for task in graph.tasks:
        place = engine.place if reasons[task.name] is None else _ELSEWHERE
        order[place].append(graph.whole_piece(task))
    pieces = {place: tuple(own_pieces) for place, own_pieces in order.items() if own_pieces}
    plan = Plan.of_places(graph.fingerprint, pieces, Provenance("offload"))
    schedule = derive(plan, graph)
    refused: dict[str, list[str]] = {}
    for task in graph.tasks:
        if (reason := reasons[task.name]) is not None:
            refused.setdefault(reason, []).append(task.name)
    run = [t for t in graph.tasks if reasons[t.name] is None]
    return {
        "device": str(engine.place),
        "supported": Counter(t.kind for t in run),
        "supported_tasks": len(run),
        "supported_macs": sum(t.macs for t in run),
        "refused": refused,
        "segments": [(s.device, [p.task for p in s.pieces]) for s in schedule.segments],
    }


def show(graph: Graph, facts: dict[str, Any]) -> None:
    """Print the result of `facts`."""
    count, macs = facts["supported_tasks"], facts["supported_macs"]
    out.print(
        f"{facts['device']} runs {count} of {len(graph.tasks)} tasks, "
        f"{format_count(macs)} of {format_count(graph.macs)} MACs"
    )
    table = Table("runs", "count", box=None)
    for kind, number in facts["supported"].most_common():
        table.add_row(kind, str(number))
    out.print(table)
    if facts["refused"]:
        table = Table("refuses, because", "count", "for example", box=None)
        for reason, tasks in sorted(facts["refused"].items(), key=lambda item: -len(item[1])):
            table.add_row(reason, str(len(tasks)), tasks[0])
        out.print(table)
    table = Table("sub-graph", "runs on", "tasks", "from", "to", box=None)
    for number, (device, tasks) in enumerate(facts["segments"]):
        table.add_row(str(number), device, str(len(tasks)), tasks[0], tasks[-1])
    out.print(table)
