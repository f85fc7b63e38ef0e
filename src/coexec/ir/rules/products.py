"""Matrix products and look-ups: Gemm, MatMul, Gather."""

from coexec.ir.graph import Operator
from coexec.ir.rules.base import (
    Links,
    Rule,
    Tensors,
    broadcast_link,
    linked,
    normalized,
    output_shape,
)

__all__ = ["RULES"]


def _gemm(op: Operator, tensors: Tensors) -> Links | None:
    """Rows come from A, columns from B, both from the broadcast C."""
    links = [{0: 1 if op.int("transA", 0) else 0}, {1: 0 if op.int("transB", 0) else 1}]
    if len(op.inputs) > 2:
        shape = tensors[op.inputs[2]].shape if op.inputs[2] else ()
        bias = broadcast_link(shape, output_shape(op, tensors))
        if bias is None or "broadcast" in op.attributes:
            return None
        links.append(bias)
    return links


def _matmul(op: Operator, tensors: Tensors) -> Links | None:
    """Rows come from A, columns from B; a vector has only the axis that is summed over."""
    a, b = (tensors[n].shape for n in op.inputs)
    rank = len(output_shape(op, tensors))
    batch = output_shape(op, tensors)[: rank - (len(a) > 1) - (len(b) > 1)]
    link_a, link_b = (broadcast_link(shape[:-2], batch) for shape in (a, b))
    if link_a is None or link_b is None:
        return None
    if len(a) > 1:
        link_a[len(batch)] = len(a) - 2
    if len(b) > 1:
        link_b[rank - 1] = len(b) - 1
    return [link_a, link_b]


def _gather(op: Operator, tensors: Tensors) -> Links:
    """Output axes: those of the data before ``axis``, those of the indices, the data's others."""
    data, indices = (tensors[n].shape for n in op.inputs)
    axis = normalized(op.int("axis", 0), len(data))
    shift = len(indices) - 1
    from_data = {i if i < axis else i + shift: i for i in range(len(data)) if i != axis}
    return [from_data, {axis + i: i for i in range(len(indices))}]


RULES: dict[str, Rule] = {
    "Gather": linked(_gather),
    "Gemm": linked(_gemm),
    "MatMul": linked(_matmul),
}
