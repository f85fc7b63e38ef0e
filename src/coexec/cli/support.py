"""What of a model a device runs, what not and why, and the parts that it falls into."""

from collections import Counter
from typing import Any

from rich.table import Table

from coexec.cli.common import out
from coexec.engines.base import Device
from coexec.ir.graph import Graph
from coexec.plans.derive import derive
from coexec.plans.plan import Plan, Provenance
from coexec.units import format_count

__all__ = ["facts", "show"]

_ELSEWHERE = "elsewhere"


def facts(graph: Graph, device: Device) -> dict[str, Any]:
    """Counts of supported and refused tasks, and segments if all that can run there does."""
    reasons = {t.name: device.why_not(t, graph.tensors) for t in graph.tasks}
    order: dict[str, list[Any]] = {device.spec.name: [], _ELSEWHERE: []}
    for task in graph.tasks:
        place = device.spec.name if reasons[task.name] is None else _ELSEWHERE
        order[place].append(graph.whole_piece(task))
    pieces = {name: tuple(found) for name, found in order.items() if found}
    schedule = derive(Plan(graph.fingerprint, pieces, Provenance("offload")), graph)
    refused: dict[str, list[str]] = {}
    for task in graph.tasks:
        if (reason := reasons[task.name]) is not None:
            refused.setdefault(reason, []).append(task.name)
    run = [t for t in graph.tasks if reasons[t.name] is None]
    return {
        "device": device.spec.name,
        "supported": Counter(t.kind for t in run),
        "supported_tasks": len(run),
        "supported_macs": sum(t.macs for t in run),
        "refused": refused,
        "segments": [(s.device, [p.task for p in s.pieces]) for s in schedule.segments],
    }


def show(graph: Graph, found: dict[str, Any]) -> None:
    """Print what `facts` found."""
    count, macs = found["supported_tasks"], found["supported_macs"]
    out.print(
        f"{found['device']} runs {count} of {len(graph.tasks)} tasks, "
        f"{format_count(macs)} of {format_count(graph.macs)} MACs"
    )
    table = Table("runs", "count", box=None)
    for kind, number in found["supported"].most_common():
        table.add_row(kind, str(number))
    out.print(table)
    if found["refused"]:
        table = Table("refuses, because", "count", "for example", box=None)
        for reason, tasks in sorted(found["refused"].items(), key=lambda item: -len(item[1])):
            table.add_row(reason, str(len(tasks)), tasks[0])
        out.print(table)
    table = Table("sub-graph", "runs on", "tasks", "from", "to", box=None)
    for number, (device, tasks) in enumerate(found["segments"]):
        table.add_row(str(number), device, str(len(tasks)), tasks[0], tasks[-1])
    out.print(table)
