"""The task that computes each node of a model as it was given.

Tasks have the operators of the simplified model. Most of its values keep their names of the given
model. A node whose results are gone was folded into the nodes that read them.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from graphlib import TopologicalSorter
from typing import TYPE_CHECKING

from coexec.graph.graph import Graph

if TYPE_CHECKING:
    import onnx

__all__ = ["tasks_of_nodes"]


def tasks_of_nodes(model: "onnx.ModelProto", graph: Graph) -> Sequence[str | None]:
    """For each node of the model's main graph, the name of the task that does its work.

    None for a node that was folded into several tasks, or into none.

    Args:
        model: as it was given; ``graph`` was made from it.
    """
    nodes = model.graph.node
    if len(graph.tasks) == 1:
        return [graph.tasks[0].name] * len(nodes)
    task_of = {name: t.name for t in graph.tasks for op in t.operators for name in op.outputs}
    readers = _readers(nodes)
    tasks: list[str | None] = [
        next((task_of[name] for name in node.output if name in task_of), None) for node in nodes
    ]
    for index in TopologicalSorter(readers).static_order():  # readers come first
        if tasks[index] is None:
            read_by = {tasks[reader] for reader in readers[index]}
            tasks[index] = read_by.pop() if len(read_by) == 1 else None
    return tasks


def _readers(nodes: "Sequence[onnx.NodeProto]") -> dict[int, set[int]]:
    """By index of a node, the indices of the nodes that read its results."""
    maker = {name: index for index, node in enumerate(nodes) for name in node.output}
    readers: dict[int, set[int]] = defaultdict(set)
    for index, node in enumerate(nodes):
        for name in _reads(node):
            if name in maker and maker[name] != index:
                readers[maker[name]].add(index)
        readers[index]  # a node without readers has an entry, too
    return readers


def _reads(node: "onnx.NodeProto") -> Iterator[str]:
    """Names that a node reads, and those of the outer graph that the bodies in it read."""
    yield from node.input
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            own = {value.name for value in (*body.input, *body.initializer)}
            own.update(name for inner in body.node for name in inner.output)
            read = [value.name for value in body.output]
            read += [name for inner in body.node for name in _reads(inner)]
            yield from (name for name in read if name not in own)
