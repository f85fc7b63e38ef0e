"""OneHot: one work item for each element, which looks whether its index is the one meant."""

from collections.abc import Mapping

from coexec.engines.opencl.kernels.base import Context, KernelLaunch, Node, Source
from coexec.engines.opencl.kernels.elements import each_scalar
from coexec.engines.opencl.kernels.operands import declare
from coexec.ir.graph import Operator, Tensor

__all__ = ["launches", "why_not"]


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    """Nothing but types, which are checked for all; the depth follows from the output's shape."""
    return None


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """Indices out of range, in both directions, mean no element; negative ones the last ones."""
    op = node.operator
    source = Source("onehot", context.arch)
    declare(source, context, "indices", op.inputs[0])
    declare(source, context, "values", op.inputs[2])
    y = context.value(node.output)
    source.write("y", y)
    axis = op.int("axis", -1) % len(y.shape)
    coordinates = [f"p{a}" for a in range(len(y.shape)) if a != axis]
    lines = [f"const long index = GET_indices(AT_indices({', '.join(coordinates)}));"]
    meant = f"index == p{axis} || index + {y.shape[axis]} == p{axis}"
    return [each_scalar(source, y, lines, f"GET_values({meant} ? 1 : 0)")]
