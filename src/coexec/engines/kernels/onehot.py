"""OneHot: one work item for each element, which tests whether its index selects it."""

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source
from coexec.engines.kernels.elements import each_scalar

__all__ = ["KERNELS"]


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """Indices out of range select no element. Negative indices count from the end."""
    op = node.operator
    source = Source("onehot", context.arch)
    source.read("indices", context.operand(op.inputs[0]))
    source.read("values", context.operand(op.inputs[2]))
    y = context.value(node.output)
    source.write("y", y)
    axis = op.int("axis", -1) % len(y.shape)
    coordinates = [f"p{a}" for a in range(len(y.shape)) if a != axis]
    lines = [f"const long index = GET_indices(AT_indices({', '.join(coordinates)}));"]
    condition = f"index == p{axis} || index + {y.shape[axis]} == p{axis}"
    return [each_scalar(source, y, lines, f"GET_values({condition} ? 1 : 0)")]


KERNELS = {"OneHot": Kernel(launches)}
