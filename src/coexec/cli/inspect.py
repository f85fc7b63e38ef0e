"""`coexec inspect`: what a model is made of."""

from collections import Counter
from typing import Any

from rich.table import Table

from coexec.cli import support
from coexec.cli.common import (
    CacheOpt,
    DebugOpt,
    InputsOpt,
    JsonOpt,
    ModelArg,
    ShapeOpt,
    ValueOpt,
    print_json,
    settings,
)
from coexec.cli.console import out
from coexec.errors import UsageError
from coexec.ir.graph import Graph
from coexec.ir.text import format_graph
from coexec.ir.width import critical_path, width
from coexec.memory.strategies import BOUNDS, FAMILIES, assign_all
from coexec.memory.usage import records_of
from coexec.units import format_bytes, format_count
from coexec.workbench import Workbench


def command(
    model: ModelArg,
    shape: ShapeOpt = None,
    value: ValueOpt = None,
    inputs: InputsOpt = None,
    tasks: bool = False,
    memory: bool = False,
    device: str | None = None,
    cache: CacheOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Show tasks, FLOPs, bytes, width and critical path. --tasks lists every task, --memory what
    intermediate tensors take on one device, by strategy, --device what a device runs and what not.
    """
    work = Workbench(
        model, settings(devices=device, shape=shape, value=value, inputs=inputs, cache=cache)
    )
    graph = work.model.graph
    facts = _facts(graph)
    if device is not None and len(work.devices) != 1:
        raise UsageError(f"--device {device!r} names {len(work.devices)} devices; name one")
    supported = support.facts(graph, work.devices[0].first) if device is not None else None
    if json:
        lists = {
            "operators": _kinds(graph),
            "task_list": [t.name for t in graph.tasks],
            "opaque": {t.name: t.opaque for t in graph.tasks if t.opaque},
        }
        extra = {"memory": _memory(graph)} if memory else {}
        print_json(facts | lists | extra | ({"device": supported} if supported else {}))
        return
    if supported is not None:
        support.show(graph, supported)
        return
    if tasks:
        print(format_graph(graph))
        return
    if memory:
        _print_memory(_memory(graph))
        return
    path = facts["critical_path_macs"]
    table = Table(box=None, show_header=False)
    table.add_row(
        "tasks", f"{len(graph.tasks)} ({len({t.signature for t in graph.tasks})} distinct)"
    )
    table.add_row("MACs", f"{format_count(graph.macs)} ({format_count(2 * graph.macs)} FLOPs)")
    table.add_row("weights", format_bytes(graph.weight_bytes))
    table.add_row("activations", format_bytes(facts["activation_bytes"]))
    table.add_row("width", f"{facts['width']} tasks can run at the same time")
    share = f"{path / graph.macs:.0%} of the MACs" if graph.macs else "no MACs"
    table.add_row("critical path", f"{facts['critical_path_tasks']} tasks, {share}")
    for name in (*graph.inputs, *graph.outputs):
        kind = "input" if name in graph.inputs else "output"
        tensor = graph.tensors[name]
        sizes = "" if tensor.opaque else f"{list(tensor.shape)} "
        table.add_row(kind, f"{name} {sizes}{tensor.dtype}")
    out.print(table)
    kinds = Table("tasks", "count", "MACs", box=None)
    for kind, (count, macs) in _kinds(graph).items():
        kinds.add_row(kind, str(count), format_count(macs))
    out.print(kinds)
    opaque = Table("opaque task", "because", box=None)
    for task in graph.tasks:
        if task.opaque:
            opaque.add_row(task.name, task.opaque)
    if opaque.row_count:
        out.print(opaque)


def _facts(graph: Graph) -> dict[str, int]:
    path = critical_path(graph, lambda task: float(max(task.macs, 1)))
    made = {name for task in graph.tasks for name in task.outputs}
    return {
        "tasks": len(graph.tasks),
        "distinct": len({t.signature for t in graph.tasks}),
        "macs": graph.macs,
        "weight_bytes": graph.weight_bytes,
        "activation_bytes": sum(graph.tensors[name].size_bytes for name in made),
        "width": width(graph),
        "critical_path_tasks": len(path),
        "critical_path_macs": sum(task.macs for task in path),
    }


def _kinds(graph: Graph) -> dict[str, tuple[int, int]]:
    counts = Counter(task.kind for task in graph.tasks)
    macs: Counter[str] = Counter()
    for task in graph.tasks:
        macs[task.kind] += task.macs
    return {kind: (count, macs[kind]) for kind, count in counts.most_common()}


def _memory(graph: Graph) -> dict[str, Any]:
    records = list(records_of(graph).values())
    bounds = {family: bound(records) for family, bound in BOUNDS.items()}
    rows = []
    for family in FAMILIES:
        totals = {name: a.total_bytes for name, a in assign_all(records, [family]).items()}
        least = min(totals.values())
        for name, total in totals.items():
            ratio = total / bounds[family] if bounds[family] else 1.0
            rows.append({"strategy": name, "family": family, "total_bytes": total,
                         "of_bound": ratio, "smallest": total == least})  # fmt: skip
    return {"tensors": len(records), "bound_bytes": bounds, "strategies": rows}


def _print_memory(memory: dict[str, Any]) -> None:
    table = Table("strategy", "shares", "total", "of the bound", "", box=None)
    for row in sorted(memory["strategies"], key=lambda row: (row["family"], row["total_bytes"])):
        mark = "smallest" if row["smallest"] else ""
        total, ratio = format_bytes(row["total_bytes"]), f"{row['of_bound']:.3f}"
        table.add_row(row["strategy"], row["family"], total, ratio, mark)
    for family, size_bytes in memory["bound_bytes"].items():
        table.add_row("bound", family, format_bytes(size_bytes))
    out.print(table)
