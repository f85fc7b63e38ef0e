"""A part of a task as operators over tensors of its own size, the form that predictors take."""

from collections.abc import Mapping
from dataclasses import replace

from coexec.graph.graph import Operator, Tensor
from coexec.graph.region import Region
from coexec.graph.rules import OperatorRegion
from coexec.graph.task_samples import TaskParts

__all__ = ["part_of_task"]


def part_of_task(
    parts: TaskParts, region: Region
) -> tuple[tuple[Operator, ...], Mapping[str, Tensor]] | None:
    """The operators that compute ``region`` of the main output, and their tensors by name; None if
    the region is empty or cannot be computed by itself.

    Only the padding at the tensor's own borders is left, and only the weights that the region
    reads.
    """
    task, graph_tensors = parts.task, parts.graph.tensors
    if region == parts.whole:
        return task.operators, graph_tensors
    field = parts.receptive_field(region)
    if field is None or not field.operators:
        return None
    # Outputs without a reader are no tensors of the graph.
    names = (name for op in task.operators for name in (*op.inputs, *op.outputs))
    tensors = {name: graph_tensors[name] for name in names if name in graph_tensors}
    operators = []
    for op, cut in zip(task.operators, field.operators, strict=True):
        for name, read in zip(op.inputs, cut.inputs, strict=True):
            if name and read is not None:
                tensors[name] = _resized(tensors[name], read.shape)
        tensors[op.outputs[0]] = _resized(tensors[op.outputs[0]], cut.computes.shape)
        operators.append(_cut(op, cut))
    return tuple(operators), tensors


def _resized(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    return tensor if tensor.shape == shape else replace(tensor, shape=shape)


def _cut(op: Operator, cut: OperatorRegion) -> Operator:
    changed = {**op.attributes, **cut.attributes}
    attributes = {name: value for name, value in changed.items() if value is not None}
    return replace(op, attributes=attributes, constants={**op.constants, **cut.constants})
