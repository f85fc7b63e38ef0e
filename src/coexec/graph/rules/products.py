"""Matrix products and look-ups: Gemm, MatMul, Gather."""

import math

from coexec.graph.graph import Operator
from coexec.graph.rules.base import (
    AxisMaps,
    OperatorRule,
    Tensors,
    broadcast_axes,
    cut_by_axes,
    normalized,
    output_shape,
)


def _gemm(op: Operator, tensors: Tensors) -> AxisMaps | None:
    """Rows come from A, columns from B, both from the broadcast C."""
    maps = [{0: 1 if op.int("transA", 0) else 0}, {1: 0 if op.int("transB", 0) else 1}]
    if len(op.inputs) > 2:
        shape = tensors[op.inputs[2]].shape if op.inputs[2] else ()
        bias = broadcast_axes(shape, output_shape(op, tensors))
        if bias is None or "broadcast" in op.attributes:
            return None
        maps.append(bias)
    return maps


def _matmul(op: Operator, tensors: Tensors) -> AxisMaps | None:
    """Rows come from A, columns from B; a vector has only the axis that is summed over."""
    a, b = (tensors[n].shape for n in op.inputs)
    rank = len(output_shape(op, tensors))
    batch = output_shape(op, tensors)[: rank - (len(a) > 1) - (len(b) > 1)]
    map_a, map_b = (broadcast_axes(shape[:-2], batch) for shape in (a, b))
    if map_a is None or map_b is None:
        return None
    if len(a) > 1:
        map_a[len(batch)] = len(a) - 2
    if len(b) > 1:
        map_b[rank - 1] = len(b) - 1
    return [map_a, map_b]


def gemm_macs(op: Operator, tensors: Tensors) -> int:
    shape = tensors[op.inputs[0]].shape
    inner = shape[0] if op.int("transA", 0) else shape[-1]
    return math.prod(output_shape(op, tensors)) * inner


def matmul_macs(op: Operator, tensors: Tensors) -> int:
    return math.prod(output_shape(op, tensors)) * tensors[op.inputs[0]].shape[-1]


def _gather(op: Operator, tensors: Tensors) -> AxisMaps:
    """Output axes: the data's axes before ``axis``, the axes of the indices, the data's other
    axes."""
    data, indices = (tensors[n].shape for n in op.inputs)
    axis = normalized(op.int("axis", 0), len(data))
    shift = len(indices) - 1
    from_data = {i if i < axis else i + shift: i for i in range(len(data)) if i != axis}
    return [from_data, {axis + i: i for i in range(len(indices))}]


RULES: dict[str, OperatorRule] = {
    "Gather": cut_by_axes(_gather, "all axes"),
    "Gemm": cut_by_axes(_gemm, "rows, columns", macs=gemm_macs),
    "MatMul": cut_by_axes(_matmul, "batch, rows, columns", macs=matmul_macs),
}
