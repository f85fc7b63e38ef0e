"""A graph as text, one task a line: for people, and for tests to compare with."""

from collections.abc import Iterable

from coexec.graph.graph import Graph, Task

__all__ = ["format_graph"]


def format_graph(graph: Graph) -> str:
    """Inputs, tasks in order with shapes and MACs, outputs."""
    return "\n".join(_lines(graph))


def _lines(graph: Graph) -> Iterable[str]:
    yield f"graph {graph.name} ({', '.join(_value(graph, n) for n in graph.inputs)})"
    for task in graph.tasks:
        yield f"  {_task(graph, task)}"
    yield f"return {', '.join(graph.outputs)}"


def _task(graph: Graph, task: Task) -> str:
    results = ", ".join(_value(graph, name) for name in task.outputs)
    notes = [f"{task.macs} MACs"] if task.macs else []
    notes += [task.opaque] if task.opaque else []
    comment = f"  # {'; '.join(notes)}" if notes else ""
    return f"{results} = {task.kind}({', '.join(task.inputs)}){comment}"


def _value(graph: Graph, name: str) -> str:
    tensor = graph.tensors[name]
    if tensor.opaque:
        return f"{name}: {tensor.dtype or 'unknown'}"
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    kind = "" if tensor.dtype == "float32" else f" {tensor.dtype}"
    return f"{name}: {shape}{kind}"
