"""Figures and tables of a model: tasks, operators, memory."""

from collections import Counter
from typing import Any

from rich.table import Table

from coexec.cli.console import out
from coexec.graph.graph import Graph
from coexec.graph.width import critical_path, width
from coexec.plan.memory import BOUNDS, STRATEGIES, records_of, verify
from coexec.units import format_bytes

__all__ = ["memory_facts", "model_facts", "operator_counts", "print_memory"]


def model_facts(graph: Graph) -> dict[str, int]:
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


def operator_counts(graph: Graph) -> dict[str, tuple[int, int]]:
    counts = Counter(task.kind for task in graph.tasks)
    macs: Counter[str] = Counter()
    for task in graph.tasks:
        macs[task.kind] += task.macs
    return {kind: (count, macs[kind]) for kind, count in counts.most_common()}


def memory_facts(graph: Graph) -> dict[str, Any]:
    records = list(records_of(graph).values())
    bounds = {family: bound(records) for family, bound in BOUNDS.items()}
    rows = []
    for family, strategy in STRATEGIES.items():
        assignment = strategy(records)
        verify(records, assignment)
        total_bytes, bound_bytes = assignment.total_bytes, bounds[family]
        rows.append(
            {
                "strategy": strategy.__name__,
                "family": family,
                "total_bytes": total_bytes,
                "of_bound": total_bytes / bound_bytes if bound_bytes else 1.0,
            }
        )
    return {"tensors": len(records), "bound_bytes": bounds, "strategies": rows}


def print_memory(memory: dict[str, Any]) -> None:
    table = Table("strategy", "shares", "total", "bound", "of the bound", box=None)
    for row in memory["strategies"]:
        total, bound = row["total_bytes"], memory["bound_bytes"][row["family"]]
        ratio = f"{row['of_bound']:.3f}"
        table.add_row(
            row["strategy"], row["family"], format_bytes(total), format_bytes(bound), ratio
        )
    out.print(table)
