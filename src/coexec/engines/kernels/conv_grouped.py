"""Convolution in groups on CPU cores, for any number of channels in a group.

A vector of output channels reads all channels of the groups to which its lanes belong. If these are
several groups, a lane gets zeros in place of the channels of other groups, so that their NaN and
infinity do not reach it. With groups of four channels, a vector of eight is then half used, which
is many times faster than computing scalars.

A work item computes rows of one block of output channels. The sums of a tile of neighbouring pixels
are kept in registers, as in `conv_cpu`. Weights are stored as [block][ky][channel][kx][lane].
"""

from dataclasses import dataclass

import numpy as np

from coexec.arrays import Array
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import (
    Context,
    KernelLaunch,
    Node,
    Source,
    Value,
    ceil_div,
    indented,
)
from coexec.engines.kernels.conv_shape import ConvShape, packed_bias, padded_copy
from coexec.engines.kernels.epilogue import Epilogue
from coexec.engines.kernels.touches import along, of_image

_MOST_PIXELS = 12


@dataclass(frozen=True, slots=True)
class _Reads:
    """The input channels that a block of output channels reads."""

    first: int
    count: int

    @staticmethod
    def of(shape: ConvShape, block: int) -> "tuple[_Reads, ...]":
        """The input channels of each block of ``block`` output channels."""
        group_outputs = shape.out_channels // shape.groups
        reads = []
        for start in range(0, shape.out_channels, block):
            last = min(start + block, shape.out_channels) - 1
            groups = range(start // group_outputs, last // group_outputs + 1)
            first = groups[0] * shape.in_channels
            reads.append(_Reads(first, len(groups) * shape.in_channels))
        return tuple(reads)


def launches(node: Node, context: Context, shape: ConvShape) -> list[KernelLaunch]:
    """The launches. If there is padding, the input is copied with zeros left and right first."""
    op = node.operator
    x, y = context.value(op.inputs[0]), context.value(node.output)
    reads = _Reads.of(shape, context.arch.block)
    kernels: list[KernelLaunch] = []
    if shape.left or shape.right > 0:
        copy, x, shape = padded_copy(context, x, shape, rows=False)
        kernels.append(copy)
    source = Source("conv_grouped", context.arch, sized=True, alone=True)
    source.read("x", x)
    source.constant("w", _packed(context.constants[op.inputs[1]], reads, y, shape))
    source.constant("bias", packed_bias(node, context, 0, y.slices))
    source.constant("reads", np.array(_table(reads, shape), np.int32), vector=1)
    shared = any(each.count > shape.in_channels for each in reads)
    if shared:
        source.constant("groups", _groups(shape, y))
    epilogue = Epilogue(source, context, node, node.epilogue)
    source.write("y", y)
    rows = max(1, ceil_div(shape.out_h, 4 * context.arch.compute_units))
    source.add(_text(source, shape, x, rows, shared, epilogue, op.outputs[0]))
    grid = (ceil_div(shape.out_h, rows), y.slices, shape.batch)
    samples = along(2, shape.batch)
    touches = {
        "x": of_image(x, shape.rows_read(0, grid[0], rows), samples=samples),
        "y": of_image(y, along(0, grid[0], rows), along(1, y.slices), samples),
    }
    return [*kernels, source.finish(grid, (1, 1, 1), touches=touches, macs=shape.macs)]


def steps(arch: Architecture, shape: ConvShape) -> dict[str, float]:
    """Terms of the kernel's workload."""
    reads = sum(each.count for each in _Reads.of(shape, arch.block))
    pixels = _pixels(arch, shape)
    tiles = ceil_div(shape.out_w, pixels)
    rows = shape.out_h if shape.pointwise else 1  # `ConvShape` counts those as one
    taps = shape.batch * rows * shape.rows_inside * shape.kernel_w * reads
    return {"products": float(taps * tiles * pixels), "vectors": float(taps * tiles)}


def _pixels(arch: Architecture, shape: ConvShape) -> int:
    """Pixels of the tiles of a row. The last tile overlaps the previous one."""
    most = min(_MOST_PIXELS, max(1, arch.registers - 3))
    return ceil_div(shape.out_w, ceil_div(shape.out_w, most))


def _table(reads: tuple[_Reads, ...], shape: ConvShape) -> list[int]:
    """For each block: its first input channel, the number of these, and its first weight."""
    taps, start, table = shape.kernel_h * shape.kernel_w, 0, []
    for each in reads:
        table += [each.first, each.count, start]
        start += each.count * taps
    return table


def _groups(shape: ConvShape, y: Value) -> Array:
    """Number of each output channel's group, counted from the first group of its block."""
    group_outputs = shape.out_channels // shape.groups
    groups = (np.arange(y.slices * y.block) // group_outputs).reshape(y.slices, y.block)
    return np.asarray(groups - groups[:, :1], np.int32)


def _packed(weights: Array, reads: tuple[_Reads, ...], y: Value, shape: ConvShape) -> Array:
    group_outputs, parts = shape.out_channels // shape.groups, []
    for block, each in enumerate(reads):
        part = np.zeros((each.count, y.block, shape.kernel_h, shape.kernel_w), weights.dtype)
        first = block * y.block
        for channel in range(first, min(first + y.block, shape.out_channels)):
            start = channel // group_outputs * shape.in_channels - each.first
            part[start : start + shape.in_channels, channel - first] = weights[channel]
        parts.append(part.transpose(2, 0, 3, 1).reshape(-1))
    return np.concatenate(parts)


def _text(
    source: Source,
    shape: ConvShape,
    x: Value,
    rows: int,
    shared: bool,
    epilogue: Epilogue,
    head: str,
) -> str:
    """The body of the kernel. ``shared``: some blocks have channels of several groups."""
    size, vector, b = source.size, source.arch.vector, source.arch.block
    pixels, apart = _pixels(source.arch, shape), x.block or 1
    step = shape.stride_w * apart
    kernel_h, kernel_w = size("kernel_h", shape.kernel_h), size("kernel_w", shape.kernel_w)
    rows_each, out_h = size("rows_each", rows), size("out_h", shape.out_h)
    inner = size("inner", shape.in_channels)

    def taken(pixel: int) -> str:
        value = f"GET_x(at + {pixel * step})"
        return f"as_float{b}(as_int{b}(({vector})({value})) & own)" if shared else value

    lines = [
        "const int s = item_1, n = item_2;",
        "const int first = GET_reads(s * 3), count = GET_reads(s * 3 + 1);",
        "const int first_w = GET_reads(s * 3 + 2);",
        f"const int last_row = min((item_0 + 1) * {rows_each}, {out_h});",
        f"const int last_px = {size('out_w', shape.out_w)} - {pixels};",
        f"for (int row = item_0 * {rows_each}; row < last_row; row++)",
        f"for (int left = 0; left < last_px + {pixels}; left += {pixels}) {{",
        "  const int px = min(left, last_px);",
        *(f"  {vector} a{p} = LOAD_bias(s);" for p in range(pixels)),
        f"  for (int ky = 0; ky < {kernel_h}; ky++) {{",
        f"    const int iy = row * {size('stride_h', shape.stride_h)} - {size('top', shape.top)}"
        f" + ky * {size('dilation_h', shape.dilation_h)};",
        f"    if (iy < 0 || iy >= {size('in_h', shape.in_h)}) continue;",
        f"    int wi = first_w + ky * count * {kernel_w};",
        f"    for (int group = 0; group * {inner} < count; group++) {{",
        *([f"    const int{b} own = LOAD_groups(s) == (int{b})(group);"] if shared else []),
        f"    for (int c = group * {inner}; c < (group + 1) * {inner}; c++) {{",
        f"      int at = AT_x(n, first + c, iy, 0) + px * {step}, kx = 0;",
        "      do {",
        f"        const {vector} f = LOAD_w(wi);",
        *(f"        a{p} += f * {taken(p)};" for p in range(pixels)),
        f"        at += {size('dilation_w', shape.dilation_w)} * {apart}; wi++;",
        f"      }} while (++kx < {kernel_w});",
        "    }",
        "    }",
        "  }",
    ]
    for p in range(pixels):
        stored, result = epilogue.apply(f"a{p}", head, ["n", "s", "row", f"px + {p}"], f"_{p}")
        lines += indented(stored)
        lines.append(f"  STORE_y(VEC_y(n, s, row, px + {p}), {result});")
    return "\n".join(indented([*lines, "}"]))
