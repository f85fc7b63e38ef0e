"""Rough seconds of tasks that cannot be measured, from their computation and moved bytes."""

from typing import NamedTuple

from coexec.graph.graph import Graph, Task

_MACS_PER_CORE_S = 10e9
_BYTES_PER_S = 10e9
"""A core of a desktop or phone processor of the last ten years reaches a third to three times of
both values. Plans need only the ratio of tasks to each other."""
_OPERATOR_S = 5e-6
"""Least seconds of an operator inside an opaque task: most of these operators work on tensors of a
few elements, so calling the kernel takes most of the time."""


class Work(NamedTuple):
    """Amount of computation and of moved data of a task."""

    macs: int = 0
    """Multiply-accumulates."""
    moved_bytes: int = 0
    """Bytes of all tensors that the task reads and writes, each tensor counted once."""

    def rough_s(self, cores: int = 1) -> float:
        """Seconds on ``cores`` cores: computing or moving, whichever takes longer."""
        computing_s = self.macs / (_MACS_PER_CORE_S * max(1, cores))
        return max(computing_s, self.moved_bytes / _BYTES_PER_S)


def work_of(graph: Graph, task: Task) -> Work:
    """Work of ``task``. In an opaque task, inner tensors of known size count as moved, too."""
    names = {*task.inputs, *task.weights, *task.outputs}
    if task.opaque:
        names.update(name for op in task.operators for name in op.outputs if name in graph.tensors)
    return Work(task.macs, sum(graph.tensors[name].size_bytes for name in names))


def estimated_s(graph: Graph, task: Task, cores: int) -> float:
    """Seconds of ``task`` on ``cores`` cores; for an opaque task, starting its operators is
    included."""
    working_s = work_of(graph, task).rough_s(cores)
    return working_s + (_OPERATOR_S * len(task.operators) if task.opaque else 0.0)
