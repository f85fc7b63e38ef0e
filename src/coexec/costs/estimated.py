"""A rough cost of tasks that cannot be measured, from what they compute and move."""

from coexec.ir.graph import Graph, Task

__all__ = ["estimated_s"]

_MACS_PER_CORE_S = 10e9
_BYTES_PER_S = 10e9
"""A core of a desktop or phone processor of the last ten years reaches a third to three times of
both; plans need the ratio of tasks to each other."""


def estimated_s(graph: Graph, task: Task, cores: int) -> float:
    """Seconds of ``task`` on ``cores`` cores: computing or moving, whichever takes longer."""
    names = (*task.inputs, *task.weights, *task.outputs)
    moved_bytes = sum(graph.tensors[name].size_bytes for name in names)
    return max(task.macs / (_MACS_PER_CORE_S * max(1, cores)), moved_bytes / _BYTES_PER_S)
