"""Convolution on GPUs whose local memory is no advantage: phones and integrated graphics.

A work item computes two neighbouring pixels times two blocks of four output channels. Neighbouring
work items use the same weights at the same time, so weights come from the cache for constants. This
is the scheme of TFLite's GPU delegate, Lee et al., arXiv:1907.01989.
"""

import math

import numpy as np

from coexec.arrays import Array, aligned
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import (
    Context,
    Grid,
    KernelLaunch,
    Node,
    Source,
    Value,
    ceil_div,
    indented,
)
from coexec.engines.kernels.conv_shape import ConvShape, in_turns, packed_bias
from coexec.engines.kernels.epilogue import Epilogue

_PIXELS = 2
_BLOCKS = 2
_GROUP = 128
"""Approximate number of work items in a group: the rule for work groups gives 64 to 256."""


def launches(node: Node, context: Context, shape: ConvShape) -> list[KernelLaunch]:
    x, y = context.value(node.operator.inputs[0]), context.value(node.output)
    weights = context.constants[node.operator.inputs[1]]
    pairs = _pairs(shape)
    source = Source("conv_direct", context.arch)
    source.read("x", x)
    source.constant("w", _packed(weights, x, pairs))
    source.constant("bias", packed_bias(node, context, 0, pairs * _BLOCKS))
    epilogue = Epilogue(source, context, node, node.epilogue)
    source.write("y", y)
    pixels, blocks = range(_PIXELS), range(_BLOCKS)
    lines = [
        f"const int first = get_global_id(0) * {_PIXELS}, oy = get_global_id(1);",
        f"const int pair = get_global_id(2) % {pairs}, n = get_global_id(2) / {pairs};",
    ]
    for o in blocks:
        lines += [f"float4 a{p}_{o} = LOAD_bias(pair * {_BLOCKS} + {o});" for p in pixels]
    lines += _sum(shape, x)
    for p in pixels:
        lines.append(f"if (first + {p} < {shape.out_w}) {{")
        for o in blocks:
            block = f"pair * {_BLOCKS} + {o}"
            position = ["n", block, "oy", f"first + {p}"]
            applied, result = epilogue.apply(
                f"a{p}_{o}", node.operator.outputs[0], position, f"_{p}_{o}"
            )
            lines += [
                f"  if ({block} < {y.slices}) {{",
                *indented(applied, 2),
                f"    STORE_y(VEC_y({', '.join(position)}), {result});",
                "  }",
            ]
        lines.append("}")
    source.lines(lines)
    return [source.finish(_grid(shape), convolution=shape.traits("convolution"))]


def steps(arch: Architecture, shape: ConvShape) -> dict[str, float]:
    """Terms of the kernel's workload: blocks of input under a filter, in turns.

    This is CoDL's form (Jia et al., MobiSys 2022): whole groups, one after the other on each unit.
    """
    groups = ceil_div(math.prod(_grid(shape)), _GROUP)
    blocks = ceil_div(shape.in_channels, 4) * shape.kernel_h * shape.kernel_w
    return {"launches": 1.0, **in_turns(arch, blocks, groups)}


def _pairs(shape: ConvShape) -> int:
    return ceil_div(shape.out_channels, 4 * _BLOCKS)


def _grid(shape: ConvShape) -> Grid:
    return ceil_div(shape.out_w, _PIXELS), shape.out_h, _pairs(shape) * shape.batch


def _packed(weights: Array, x: Value, pairs: int) -> Array:
    """The weights as [pair of blocks][ky][kx][input block][lane][block of the pair][lane]."""
    outs, ins, height, width = weights.shape
    full = np.zeros((pairs * _BLOCKS * 4, x.slices * 4, height, width), np.float32)
    full[:outs, :ins] = weights
    split = full.reshape(pairs, _BLOCKS, 4, x.slices, 4, height, width)
    return aligned(split.transpose(0, 5, 6, 3, 4, 1, 2))


def _sum(c: ConvShape, x: Value) -> list[str]:
    per_tap = x.slices * 4 * _BLOCKS
    taps = c.kernel_h * c.kernel_w
    lines = [
        f"for (int ky = 0; ky < {c.kernel_h}; ky++) {{",
        f"  const int iy = oy * {c.stride_h} - {c.top} + ky * {c.dilation_h};",
        f"  if (iy < 0 || iy >= {c.in_h}) continue;",
        f"  for (int kx = 0; kx < {c.kernel_w}; kx++) {{",
        f"    int wi = (pair * {taps} + ky * {c.kernel_w} + kx) * {per_tap};",
    ]
    for p in range(_PIXELS):
        lines += [
            f"    const int x{p} = (first + {p}) * {c.stride_w} - {c.left} + kx * {c.dilation_w};",
            f"    const int in{p} = x{p} >= 0 && x{p} < {c.in_w};",
        ]
    remainder = c.in_channels % 4
    lines.append(f"    for (int s = 0; s < {x.slices}; s++, wi += {4 * _BLOCKS}) {{")
    for p in range(_PIXELS):
        lines.append(f"      float4 i{p} = (float4)(0.0f);")
        lines.append(f"      if (in{p}) i{p} = LOAD_x(VEC_x(n, s, iy, x{p}));")
        if remainder:  # lanes past the last channel may be infinite, and 0 times that is not 0
            lanes = "yzw"[remainder - 1 :]
            cleared = " = ".join(f"i{p}.{lane}" for lane in lanes)
            lines.append(f"      if (s == {x.slices - 1}) {cleared} = 0.0f;")
    for lane, axis in enumerate("xyzw"):
        for o in range(_BLOCKS):
            lines.append(f"      {{ const float4 f = LOAD_w(wi + {lane * _BLOCKS + o});")
            lines += [f"        a{p}_{o} += f * i{p}.{axis};" for p in range(_PIXELS)]
            lines.append("      }")
    return [*lines, "    }", "  }", "}"]
