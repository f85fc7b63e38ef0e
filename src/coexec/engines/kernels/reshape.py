"""Reshape and similar operators where layouts differ; others need no kernel, see `aliasing`."""

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source, row_major
from coexec.engines.kernels.elements import each_scalar
from coexec.engines.kernels.positions import split_lines

__all__ = ["KERNELS"]


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """One work item for each scalar, whose position in the order of ONNX gives its source."""
    source = Source("reshape", context.arch)
    x = source.read("x", context.operand(node.operator.inputs[0]))
    y = context.value(node.output)
    source.write("y", y)
    source.define(row_major("order", y.shape))
    flat = f"AT_order({', '.join(f'p{axis}' for axis in range(len(y.shape)))})"
    element = ", ".join(f"q{axis}" for axis in range(len(x.shape)))
    lines = [split_lines(flat, x.shape, "q")]
    return [each_scalar(source, y, lines, f"GET_x(AT_x({element}))")]


KERNELS = dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), Kernel(launches))
