"""Convolution of a blocked image to so few channels that the result is row-major.

Vectors consist of input channels here. A work item sums products of vectors for a few neighbouring
pixels times all output channels, and adds up the lanes at the end.
"""

import numpy as np

from coexec.arrays import Array, aligned
from coexec.engines.kernels.base import (
    Context,
    KernelLaunch,
    Node,
    Source,
    Value,
    ceil_div,
    indented,
)
from coexec.engines.kernels.conv_shape import ConvShape, padded_copy
from coexec.engines.kernels.epilogue import Output
from coexec.engines.kernels.row_kernel import across_lanes, total
from coexec.graph.graph import Operator


def fits(op: Operator, context: Context) -> bool:
    """Whether there are two axes, one group and constant weights, from blocks to row-major."""
    x, y = context.value(op.inputs[0]), context.value(op.outputs[0])
    constant = [n in context.constants for n in op.inputs if n]
    few = y.shape[1] <= context.arch.block
    fitting = few and constant == [False] + [True] * (len(constant) - 1)
    return fitting and bool(x.block) and not y.block and op.int("group", 1) == 1


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """The launches. If there is padding, the first one copies the input with padding around it."""
    x = context.value(node.operator.inputs[0])
    shape = ConvShape.of(node.operator, context.tensors)
    kernels = []
    if shape.padded:
        copy, x, shape = padded_copy(context, x, shape)
        kernels.append(copy)
    return [*kernels, _launch(node, context, x, shape)]


def _launch(node: Node, context: Context, x: Value, shape: ConvShape) -> KernelLaunch:
    weights = context.constants[node.operator.inputs[1]]
    bias = context.constant(node.operator.inputs[2]) if node.operator.inputs[2:] else None
    channels = range(shape.out_channels)
    most = max(1, context.arch.registers // 2 // len(channels))
    pixels = range(min(most, 6, shape.out_w))
    source = Source("conv_few", context.arch)
    source.read("x", x)
    source.constant("w", _packed(weights, x))
    source.constant("bias", np.zeros(len(channels), np.float32) if bias is None else bias, vector=1)
    output = Output(source, context, node, scalar=True)
    vector = context.arch.vector
    lines = [
        f"const int first = get_global_id(0) * {len(pixels)};",
        "const int oy = get_global_id(1), n = get_global_id(2);",
        *(f"{vector} a{c}_{p} = ({vector})(0.0f);" for c in channels for p in pixels),
        *_sums(shape, x, len(pixels), vector),
    ]
    for c in channels:
        for p in pixels:
            tag = f"{c}_{p}"
            lines += across_lanes(f"all{tag}", f"a{tag}", total(""), context.arch.block)
            stored = output.store(f"all{tag} + GET_bias({c})", ["n", str(c), "oy", f"first + {p}"])
            lines += [f"if (first + {p} < {shape.out_w}) {{", *(f"  {s}" for s in stored), "}"]
    source.lines(lines)
    return source.finish((ceil_div(shape.out_w, len(pixels)), shape.out_h, shape.batch))


def _sums(shape: ConvShape, x: Value, pixels: int, vector: str) -> list[str]:
    """Lines that add the products of all taps. Lanes past the last channel count as zeros."""
    remainder = shape.in_channels % x.block
    lanes = ", ".join("-1" if lane < remainder else "0" for lane in range(x.block))
    full = f"s < {x.slices - 1} ? v : SELECT((int{x.block})({lanes}), v, ({vector})(0.0f))"
    columns = [
        f"min(first + {p}, {shape.out_w - 1}) * {shape.stride_w} + kx * {shape.dilation_w}"
        for p in range(pixels)
    ]
    inner = [f"const {vector} w{c} = LOAD_w(wi + {c});" for c in range(shape.out_channels)]
    for p, column in enumerate(columns):
        inner += [
            f"{{ {vector} v = LOAD_x(VEC_x(n, s, iy, {column}));",
            *([f"  v = {full};"] if remainder else []),
            *(f"  a{c}_{p} += w{c} * v;" for c in range(shape.out_channels)),
            "}",
        ]
    return [
        "int wi = 0;",
        f"for (int ky = 0; ky < {shape.kernel_h}; ky++) {{",
        f"  const int iy = oy * {shape.stride_h} + ky * {shape.dilation_h};",
        f"  for (int kx = 0; kx < {shape.kernel_w}; kx++)",
        f"  for (int s = 0; s < {x.slices}; s++, wi += {shape.out_channels}) {{",
        *indented(inner, 2),
        "  }",
        "}",
    ]


def _packed(weights: Array, x: Value) -> Array:
    """The weights as [ky][kx][block of input channels][output channel][lane], padded with zeros."""
    outputs, inputs, kernel_h, kernel_w = weights.shape
    full = np.zeros((outputs, x.slices * x.block, kernel_h, kernel_w), weights.dtype)
    full[:, :inputs] = weights
    split = full.reshape(outputs, x.slices, x.block, kernel_h, kernel_w)
    return aligned(split.transpose(3, 4, 1, 0, 2))
