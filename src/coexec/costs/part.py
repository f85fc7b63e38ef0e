"""A part of a task, as operators over tensors of its own size: what predictors are asked about."""

from collections.abc import Mapping
from dataclasses import replace

from coexec.ir.graph import Graph, Operator, Task, Tensor
from coexec.ir.receptive import operator_regions
from coexec.ir.region import Region
from coexec.ir.rules import OperatorRegion

__all__ = ["part_of_task"]


def part_of_task(
    graph: Graph, task: Task, region: Region
) -> tuple[tuple[Operator, ...], Mapping[str, Tensor]]:
    """The operators that compute ``region`` of the main output, and their tensors by name.

    Padding is what is left of it at the tensor's own borders, weights are those that are read.

    Raises:
        PlanError: ``region`` is empty, lies outside or cuts an axis that must be whole.
    """
    if region == graph.output_of(task).whole:
        return task.operators, graph.tensors
    # Outputs that nobody reads are no tensors of the graph.
    names = (name for op in task.operators for name in (*op.inputs, *op.outputs))
    tensors = {name: graph.tensors[name] for name in names if name in graph.tensors}
    operators = []
    for op, cut in zip(task.operators, operator_regions(graph, task, region), strict=True):
        for name, read in zip(op.inputs, cut.inputs, strict=True):
            if name and read is not None:
                tensors[name] = replace(tensors[name], shape=read.shape)
        tensors[op.outputs[0]] = replace(tensors[op.outputs[0]], shape=cut.computes.shape)
        operators.append(_cut(op, cut))
    return tuple(operators), tensors


def _cut(op: Operator, cut: OperatorRegion) -> Operator:
    changed = {**op.attributes, **cut.attributes}
    attributes = {name: value for name, value in changed.items() if value is not None}
    return replace(op, attributes=attributes, constants={**op.constants, **cut.constants})
