"""`coexec inspect`: what a model is made of."""

from collections import Counter

from rich.table import Table

from coexec.cli.common import (
    CacheOpt,
    DebugOpt,
    JsonOpt,
    ModelArg,
    ShapeOpt,
    out,
    pipeline,
    print_json,
)
from coexec.ir.graph import Graph
from coexec.ir.text import format_graph
from coexec.ir.width import critical_path, width
from coexec.units import format_bytes, format_count


def command(
    model: ModelArg,
    shape: ShapeOpt = None,
    tasks: bool = False,
    cache: CacheOpt = None,
    json: JsonOpt = False,
    debug: DebugOpt = False,
) -> None:
    """Show tasks, FLOPs, bytes, width and critical path. --tasks lists every task."""
    graph = pipeline(model, None, shape, cache).model.graph
    facts = _facts(graph)
    if json:
        print_json(
            facts | {"operators": _kinds(graph)} | {"task_list": [t.name for t in graph.tasks]}
        )
        return
    if tasks:
        print(format_graph(graph))
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
        table.add_row(kind, f"{name} {list(tensor.shape)} {tensor.dtype}")
    out.print(table)
    kinds = Table("tasks", "count", "MACs", box=None)
    for kind, (count, macs) in _kinds(graph).items():
        kinds.add_row(kind, str(count), format_count(macs))
    out.print(kinds)


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
