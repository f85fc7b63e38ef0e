"""A part of a task, as operators over tensors of its own size: what predictors are asked about."""

from collections.abc import Mapping
from dataclasses import replace

from coexec.ir.graph import Operator, Tensor
from coexec.ir.parts import TaskParts
from coexec.ir.region import Region
from coexec.ir.rules import OperatorRegion

__all__ = ["part_of_task"]


def part_of_task(
    parts: TaskParts, region: Region
) -> tuple[tuple[Operator, ...], Mapping[str, Tensor]] | None:
    """The operators that compute ``region`` of the main output, and their tensors by name; None if
    it is empty or cannot be computed by itself.

    Padding is what is left of it at the tensor's own borders, weights are those that are read.
    """
    task, known = parts.task, parts.graph.tensors
    if region == parts.whole:
        return task.operators, known
    field = parts.receptive_field(region)
    if field is None or not field.operators:
        return None
    # Outputs that nobody reads are no tensors of the graph.
    names = (name for op in task.operators for name in (*op.inputs, *op.outputs))
    tensors = {name: known[name] for name in names if name in known}
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
