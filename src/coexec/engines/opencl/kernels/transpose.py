"""Transpose: one work item for each element or, if channels stay in place, for a vector of them."""

from collections.abc import Mapping

from coexec.engines.opencl.kernels.base import Context, KernelLaunch, Node, Source
from coexec.engines.opencl.kernels.moving import moved
from coexec.engines.opencl.kernels.operands import declare
from coexec.ir.graph import Operator, Tensor

__all__ = ["launches", "permutation", "why_not"]


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    """Nothing but types, which are checked for all."""
    return None


def permutation(op: Operator, rank: int) -> tuple[int, ...]:
    """For each axis of the output the one of the input that it is."""
    return op.ints("perm", range(rank - 1, -1, -1))


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    source = Source("transpose", context.arch)
    x = declare(source, context, "x", node.operator.inputs[0])
    y = context.value(node.output)
    order = permutation(node.operator, len(y.shape))
    coordinates = [f"p{order.index(axis)}" for axis in range(len(order))]
    residue = 0 if len(order) == 4 and order[1] == 1 else None
    return [moved(source, x, y, coordinates, residue=residue)]
