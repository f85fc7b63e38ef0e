"""A rough cost of tasks that cannot be measured, from what they compute and move."""

from coexec.ir.graph import Graph, Task

__all__ = ["estimated_s"]

_MACS_PER_CORE_S = 10e9
_BYTES_PER_S = 10e9
"""A core of a desktop or phone processor of the last ten years reaches a third to three times of
both; plans need the ratio of tasks to each other."""
_OPERATOR_S = 5e-6
"""Least time of an operator inside of an opaque task: most of these work on tensors of some values,
and calling the kernel is what takes the time."""


def estimated_s(graph: Graph, task: Task, cores: int) -> float:
    """Seconds of ``task`` on ``cores`` cores: computing or moving, whichever takes longer.

    Of an opaque task also those of starting its operators; values inside whose size is known move.
    """
    names = {*task.inputs, *task.weights, *task.outputs}
    if task.opaque:
        names.update(name for op in task.operators for name in op.outputs if name in graph.tensors)
    moved_bytes = sum(graph.tensors[name].size_bytes for name in names)
    working_s = max(task.macs / (_MACS_PER_CORE_S * max(1, cores)), moved_bytes / _BYTES_PER_S)
    return working_s + (_OPERATOR_S * len(task.operators) if task.opaque else 0.0)
