"""The usage records of a graph whose tasks one device runs in their order."""

from collections.abc import Callable
from operator import attrgetter

from coexec.graph.graph import Graph, Tensor
from coexec.memory.records import Record

__all__ = ["records_of"]


def records_of(
    graph: Graph, size_bytes: Callable[[Tensor], int] = attrgetter("size_bytes")
) -> dict[str, Record]:
    """A record for each tensor that a task makes, by name, in the order of tasks.

    Positions are those of ``graph.tasks``. Values inside a task (a convolution's result that its
    activation overwrites) need no memory. Inputs of the model belong to the caller and have no
    record. Outputs of the model live to the end: they are fetched after the last task.

    Args:
        graph: the graph that the device runs.
        size_bytes: bytes of a tensor on the device, for example in a layout with padded channels,
            or rounded up to the alignment of its memory.
    """
    end = len(graph.tasks) - 1
    last = {name: end for name in graph.outputs}
    for position in range(end, -1, -1):
        for name in graph.tasks[position].inputs:
            last.setdefault(name, position)
    return {
        name: Record(size_bytes(graph.tensors[name]), position, last.get(name, position))
        for position, task in enumerate(graph.tasks)
        for name in task.outputs
    }
