"""Convolution of any kind, with a work item for each scalar of the result.

It is for convolutions that the fast variants do not support: one or three spatial axes, groups that
are not whole blocks of channels, weights that are computed.
"""

import math

from coexec.engines.kernels import conv_few
from coexec.engines.kernels.base import Context, KernelLaunch, Node, Source
from coexec.engines.kernels.output import Output
from coexec.engines.kernels.positions import at
from coexec.engines.kernels.window_loops import grid, output_coordinates, over_taps
from coexec.graph.rules.windows import windows

__all__ = ["launches"]


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """Neighbouring work items are neighbours along the last axis, and share weights."""
    op = node.operator
    if conv_few.fits(op, context):
        return conv_few.launches(node, context)
    weight = context.tensors[op.inputs[1]].shape
    slides = windows(op, context.tensors, weight[2:])
    assert slides is not None
    source = Source("conv_any", context.arch)
    for argument, name in zip(("x", "w", "bias"), op.inputs, strict=False):
        if name:
            source.read(argument, context.operand(name))
    output = Output(source, context, node, scalar=True)
    shape = output.value.shape
    per_group = weight[0] // op.int("group", 1)
    lines, (n, c) = output_coordinates(shape[2:], shape[:2])
    start = "GET_bias(AT_bias(channel))" if op.inputs[2:] and op.inputs[2] else "0.0f"
    axes = range(len(slides))
    element = at("x", [n, f"channel / {per_group} * {weight[1]} + c", *(f"i{a}" for a in axes)])
    factor = at("w", ["channel", "c", *(f"k{a}" for a in axes)])
    dilations = op.ints("dilations", (1,) * len(slides))
    take = f"acc += GET_x({element}) * GET_w({factor});"
    bounds, loops = over_taps(slides, dilations, [take])
    lines += [
        f"const int channel = {c};",
        f"float acc = {start};",
        *bounds,
        f"for (int c = 0; c < {weight[1]}; c++)",
        *loops,
    ]
    lines += output.store("acc", [n, "channel", *(f"o{a}" for a in axes)])
    source.lines(lines)
    return [source.finish(grid(shape[2:], math.prod(shape[:2])))]
