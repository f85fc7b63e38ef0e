"""A graph as text, one task a line: for people, and for tests to compare with."""

from collections.abc import Iterable

from coexec.graph.graph import Graph, Task, Tensor


def format_graph(graph: Graph) -> str:
    """Inputs, tasks in order with shapes and MACs, outputs."""
    return "\n".join(_lines(graph))


def format_type(tensor: Tensor) -> str:
    """Shape and type of elements, "1x3x224x224" or "2 int64"; of an opaque tensor, its type."""
    if tensor.opaque:
        return tensor.dtype or "unknown"
    shape = "x".join(map(str, tensor.shape)) or "scalar"
    return shape if tensor.dtype == "float32" else f"{shape} {tensor.dtype}"


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
    return f"{name}: {format_type(graph.tensors[name])}"
