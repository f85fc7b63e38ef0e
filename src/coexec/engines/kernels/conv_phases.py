"""Convolution of an image of few channels with stride 2, as one of four phases with stride 1.

It is for CPU cores and the first layer of a network. A phase has each second row and column of the
image, from an even or an odd one on. The filter reads one phase with each second row and column of
its own. So four times as many channels are convolved with filters of half the edge, and Winograd's
method computes them: 7x7 with stride 2 becomes 4x4 with a third of the products.
"""

from dataclasses import replace

import numpy as np

from coexec.arrays import Array
from coexec.engines.kernels.base import (
    Context,
    KernelLaunch,
    Node,
    Source,
    Value,
    ceil_div,
    in_half,
)
from coexec.engines.kernels.conv_shape import ConvShape
from coexec.engines.kernels.touches import along, of_image
from coexec.graph.graph import Scalars, Tensor

_MOST_CHANNELS = 4


def fits(shape: ConvShape, x: Value) -> bool:
    """Whether the image lies row-major, with few channels, and the stride is 2."""
    strides = shape.stride_h, shape.stride_w, shape.dilation_h, shape.dilation_w, shape.groups
    few = not x.block and shape.in_channels <= _MOST_CHANNELS
    return strides == (2, 2, 1, 1, 1) and few


def phases(shape: ConvShape) -> ConvShape:
    """The convolution of the phases, which include the padding."""
    kernel_h, kernel_w = ceil_div(shape.kernel_h, 2), ceil_div(shape.kernel_w, 2)
    return replace(
        shape,
        in_channels=4 * shape.in_channels,
        in_h=shape.out_h + kernel_h - 1,
        in_w=shape.out_w + kernel_w - 1,
        kernel_h=kernel_h,
        kernel_w=kernel_w,
        stride_h=1,
        stride_w=1,
        top=0,
        left=0,
        bottom=0,
        right=0,
    )


def over_phases(
    node: Node, context: Context, shape: ConvShape
) -> tuple[KernelLaunch, Node, Context]:
    """The launch that makes the phases, and the node that convolves them, in its context."""
    op, inner = node.operator, phases(shape)
    size = (shape.batch, inner.in_channels, inner.in_h, inner.in_w)
    half = in_half(context.arch, "float32", int(np.prod(size)))
    made = context.temporary(size, context.arch.block, half)
    weights = _weights(context.constants[op.inputs[1]], inner)
    tensors = {
        made.name: Tensor(made.name, made.shape, "float32"),
        op.inputs[1]: replace(context.tensors[op.inputs[1]], shape=weights.shape),
    }
    inside = replace(
        context,
        tensors={**context.tensors, **tensors},
        constants={**context.constants, op.inputs[1]: weights},
        blocks={**context.blocks, made.name: made.block},
    )
    attributes: dict[str, Scalars] = {"strides": (1, 1), "pads": (0, 0, 0, 0)}
    convolution = replace(op, inputs=(made.name, *op.inputs[1:]), attributes=attributes)
    launch = _split(context, context.value(op.inputs[0]), made, shape)
    return launch, Node(convolution, node.epilogue), inside


def _weights(weights: Array, inner: ConvShape) -> Array:
    """The filters by phase: of a row's parity, a column's parity, and a channel."""
    outs, channels, height, width = weights.shape
    whole = np.zeros((outs, channels, 2 * inner.kernel_h, 2 * inner.kernel_w), weights.dtype)
    whole[..., :height, :width] = weights
    apart = whole.reshape(outs, channels, inner.kernel_h, 2, inner.kernel_w, 2)
    moved: Array = apart.transpose(0, 3, 5, 1, 2, 4)
    return moved.reshape(outs, 4 * channels, inner.kernel_h, inner.kernel_w)


def _split(context: Context, x: Value, made: Value, shape: ConvShape) -> KernelLaunch:
    """The kernel that copies an image into its phases; a work item makes a row of all of them."""
    source = Source("conv_phases", context.arch, sized=True, alone=True)
    source.read("x", x)
    source.write("y", made)
    channels, columns = shape.in_channels, made.shape[3]
    source.sizes(columns=columns, top=shape.top, left=shape.left)
    lines = [
        "const int oy = item_0, n = item_1, upper = 2 * oy - top;",
        *(f"const int in{a} = upper + {a} >= 0 && upper + {a} < x_2;" for a in range(2)),
        *(
            f"const int from{a}_{c} = AT_x(n, {c}, (in{a} ? upper + {a} : 0), 0) - left;"
            for a in range(2)
            for c in range(channels)
        ),
        "for (int px = 0; px < columns; px++) {",
    ]
    inside, checked = [], []
    for k in range(ceil_div(4 * channels, made.block) * made.block):
        a, b, c = k // (2 * channels), k // channels % 2, k % channels
        slot = f"VEC_y(n, {k // made.block}, oy, px) * {made.block} + {k % made.block}"
        value, is_inside = f"GET_x(from{a}_{c} + ix + {b})", f"in{a} && ix + {b} - left >= 0"
        if k >= 4 * channels:
            inside.append(f"PUT_y({slot}, 0.0f);")
            checked.append(inside[-1])
        else:
            inside.append(f"PUT_y({slot}, {value});")
            within = f"{is_inside} && ix + {b} - left < x_3"
            checked.append(f"PUT_y({slot}, {within} ? {value} : 0.0f);")
    lines += [
        "  const int ix = 2 * px;",
        "  if (in0 && in1 && ix - left >= 0 && ix + 1 - left < x_3) {",
        *(f"    {line}" for line in inside),
        "  } else {",
        *(f"    {line}" for line in checked),
        "  }",
        "}",
    ]
    source.lines(lines)
    samples = along(1, shape.batch)
    touches = {
        "x": of_image(x, along(0, made.shape[2], 2, -shape.top, 2), samples=samples),
        "y": of_image(made, along(0, made.shape[2]), samples=samples),
    }
    return source.finish((made.shape[2], shape.batch), (1, 1, 1), touches=touches)
