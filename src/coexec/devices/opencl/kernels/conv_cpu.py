"""Convolution where one thread owns a core with wide vectors: PoCL.

A work item computes a band of output rows for a group of up to four channel blocks. Inside, a tile
of neighbouring pixels times the channel blocks is held in vector registers; one scalar of the
input is broadcast against one vector of weights at a time. Weights lie in the order in which
they are read: [group][input block][ky][kx][channel][block of the group][lane]. Input channels are
taken in chunks whose weights stay in the nearest cache.

This is the scheme of direct convolution in oneDNN and in ONNX Runtime's MLAS (Georganas et al.,
"Anatomy of High-Performance Deep Learning Convolutions on SIMD Architectures", arXiv:1808.05567).
"""

import math
from dataclasses import dataclass

import numpy as np

from coexec.devices.opencl.kernels.base import Context, Launch, Node, Source, Value, ceil_div
from coexec.devices.opencl.kernels.chain import Chain
from coexec.devices.opencl.kernels.conv_shape import ConvShape, packed_bias, padded_copy
from coexec.frontend.module import Array

__all__ = ["launches", "seconds"]

_NEAR_BYTES = 24 * 1024
"""Weights of a chunk: half of the first cache of most cores, the rest is for the input."""


@dataclass(frozen=True, slots=True)
class _Tiling:
    """How the output of one launch is cut up."""

    first_block: int
    groups: int
    blocks: int
    """Channel blocks of a work item."""
    pixels: int
    """The largest tile; others have one less."""
    large: int
    """How many tiles of a row have ``pixels``."""
    tiles: int
    chunk: int
    """Kernel rows of input blocks between two stores of partial sums."""
    bands: int
    rows: int
    """Rows of a band."""


def launches(node: Node, context: Context, shape: ConvShape) -> list[Launch]:
    """Padding is copied around the input first, where there is some on the left or right."""
    x = context.value(node.operator.inputs[0])
    found: list[Launch] = []
    if shape.padded:
        copy, x, shape = padded_copy(context, x, shape)
        found.append(copy)
    weights = context.constant(node.operator.inputs[1])
    assert weights is not None
    blocks = ceil_div(shape.out_channels, context.arch.block)
    parts = ceil_div(blocks, _blocks_together(context, shape, blocks))
    size = ceil_div(blocks, parts)
    larger = blocks - parts * (size - 1)
    runs = [(0, larger, size), (larger * size, parts - larger, size - 1)]
    for first, groups, width in runs:
        if groups and width:
            found.append(_launch(node, context, shape, x, weights, first, groups, width))
    return found


def seconds(shape: ConvShape) -> float:
    """A rough time, to compare with that of `conv_winograd.seconds`."""
    weights = shape.in_channels * shape.out_channels * shape.kernel_h * shape.kernel_w * 4
    return 2 * shape.macs / 140e9 + weights / 16e9


def _blocks_together(context: Context, shape: ConvShape, blocks: int) -> int:
    """How many channel blocks a tile should hold, by the multiply-adds that it makes a cycle.

    A step of a tile is as slow as its multiply-adds (two a cycle), its loads (two a cycle), or its
    weights' way from the second cache (about half a vector a cycle); all cores of the last decade
    are near this.
    """

    def rate(width: int) -> float:
        pixels = shape.row_pixels / _tile(context, shape, width)[2]
        cycles = max(pixels * width / 2, (pixels + width) / 2, 2 * width) + 1
        return pixels * width / cycles

    most = 4 if context.arch.registers >= 32 else 2
    return max(range(1, min(most, blocks) + 1), key=rate)


def _tile(context: Context, shape: ConvShape, width: int) -> tuple[int, int, int]:
    """Pixels of the largest tile, tiles that are as large, and all tiles of a row.

    Accumulators, one set of weights and the broadcast scalar share the registers.
    """
    most = min(12, max(1, (context.arch.registers - width - 2) // width))
    tiles = ceil_div(shape.row_pixels, most)
    pixels = ceil_div(shape.row_pixels, tiles)
    return pixels, shape.row_pixels - tiles * (pixels - 1), tiles


def _launch(
    node: Node,
    context: Context,
    shape: ConvShape,
    x: Value,
    weights: Array,
    first: int,
    groups: int,
    width: int,
) -> Launch:
    b = context.arch.block
    pixels, large, tiles = _tile(context, shape, width)
    source = Source("conv_cpu", context.arch)
    y = context.value(node.output)
    source.read("x", x)
    source.constant("w", _packed(weights, shape, x, first, groups, width, b))
    source.constant("bias", packed_bias(node, context, first, groups * width))
    chain = Chain(source, context, node, node.chain)
    source.write("y", y)
    step = _input_step(shape, x, b)
    in_blocks = ceil_div(shape.in_channels, step)
    steps = in_blocks * shape.kernel_h
    near = max(1, _NEAR_BYTES // (shape.kernel_w * step * width * b * 4))
    # Partial sums are stored in the output: in 16 bits that would round them again and again.
    chunks = 1 if context.arch.half else ceil_div(steps, near)
    chunk = ceil_div(steps, chunks)
    bands = min(shape.rows, max(1, ceil_div(4 * context.arch.compute_units, groups * shape.batch)))
    if context.arch.compute_units == 1:
        bands = 1
    tiling = _Tiling(first, groups, width, pixels, large, tiles, chunk, bands,
                     ceil_div(shape.rows, bands))  # fmt: skip
    source.lines(_body(node, shape, x, y, chain, tiling, in_blocks, step, b))
    return source.launch((groups, bands, shape.batch), (1, 1, 1))


def _input_step(shape: ConvShape, x: Value, block: int) -> int:
    """Input channels that are taken together: a block, or all of a row-major image."""
    return block if x.block else shape.in_channels


def _packed(
    weights: Array, shape: ConvShape, x: Value, first: int, groups: int, width: int, b: int
) -> Array:
    """[group][input block][ky][kx][channel][block of the group][lane], zero where there is none."""
    step = _input_step(shape, x, b)
    in_blocks = ceil_div(shape.in_channels, step)
    rows = weights[first * b : (first + groups * width) * b]
    full = np.zeros(
        (groups * width * b, in_blocks * step, shape.kernel_h, shape.kernel_w), np.float32
    )
    full[: rows.shape[0], : shape.in_channels] = rows
    split = full.reshape(groups, width, b, in_blocks, step, shape.kernel_h, shape.kernel_w)
    return np.ascontiguousarray(split.transpose(0, 3, 5, 6, 4, 1, 2))


def _body(
    node: Node,
    shape: ConvShape,
    x: Value,
    y: Value,
    chain: Chain,
    tiling: _Tiling,
    in_blocks: int,
    step: int,
    b: int,
) -> str:
    vector = "float" if b == 1 else f"float{b}"
    rest = shape.in_channels - (in_blocks - 1) * step
    steps = in_blocks * shape.kernel_h
    weights = math.prod((in_blocks, shape.kernel_h, shape.kernel_w, step, tiling.blocks))
    text = [
        "  const int group = get_global_id(0), n = get_global_id(2);",
        f"  const int first_row = get_global_id(1) * {tiling.rows};",
        f"  const int last_row = min(first_row + {tiling.rows}, {shape.rows});",
        f"  const int block = {tiling.first_block} + group * {tiling.blocks};",
        f"  for (int from = 0; from < {steps}; from += {tiling.chunk}) {{",
        f"    const int to = min(from + {tiling.chunk}, {steps});",
        "    for (int row = first_row; row < last_row; row++) {",
        "      int px = 0;",
    ]
    kinds = [(tiling.pixels, tiling.large * tiling.pixels)]
    if tiling.tiles > tiling.large:
        kinds.append((tiling.pixels - 1, shape.row_pixels))
    for pixels, stop in kinds:
        text.append(f"      for (; px < {stop}; px += {pixels}) {{")
        text += [
            "        " + line
            for line in _tile_lines(
                node, shape, x, chain, tiling, pixels, in_blocks, step, rest, weights, vector, b
            )
        ]
        text.append("      }")
    text += ["    }", "  }"]
    return "\n".join(text)


def _tile_lines(
    node: Node,
    shape: ConvShape,
    x: Value,
    chain: Chain,
    tiling: _Tiling,
    pixels: int,
    in_blocks: int,
    step: int,
    rest: int,
    weights: int,
    vector: str,
    b: int,
) -> list[str]:
    steps = in_blocks * shape.kernel_h
    several = steps > tiling.chunk
    taps = range(pixels), range(tiling.blocks)
    lines = []
    for p in taps[0]:
        for o in taps[1]:
            lines.append(f"{vector} a{p}_{o};")
    start = [
        f"a{p}_{o} = LOAD_bias(group * {tiling.blocks} + {o});" for o in taps[1] for p in taps[0]
    ]
    if several:
        again = [f"a{p}_{o} = LOAD_y({_at(shape, o, p)});" for o in taps[1] for p in taps[0]]
        lines += ["if (from == 0) {", *start, "} else {", *again, "}"]
    else:
        lines += start
    plane = shape.in_h * shape.in_w
    pixel_step = shape.stride_w * (b if x.block else 1)
    channel_step = 1 if x.block else plane
    row, column = shape.input_position("row", "px")
    channels = f"i == {in_blocks - 1} ? {rest} : {step}" if rest != step else str(step)
    lines += [
        "for (int j = from; j < to; j++) {",
        f"  const int i = j / {shape.kernel_h}, ky = j % {shape.kernel_h};",
        f"  const int channels = {channels};",
        f"  for (int kx = 0; kx < {shape.kernel_w}; kx++) {{",
    ]
    if x.block:
        base = (f"(((n * {x.slices} + i) * {shape.in_h} + {row} + ky * {shape.dilation_h})"
                f" * {shape.in_w} + {column} + kx * {shape.dilation_w}) * {b}")  # fmt: skip
    else:
        base = (f"((n * {shape.in_channels} * {shape.in_h} + {row} + ky * {shape.dilation_h})"
                f" * {shape.in_w} + {column} + kx * {shape.dilation_w})")  # fmt: skip
    per_tap = step * tiling.blocks
    lines += [
        f"    int at = {base};",
        f"    int wi = group * {weights} + ((i * {shape.kernel_h} + ky) * {shape.kernel_w} + kx)"
        f" * {per_tap};",
        "    #pragma unroll 2",
        f"    for (int c = 0; c < channels; c++, at += {channel_step}, wi += {tiling.blocks}) {{",
    ]
    for o in taps[1]:
        lines.append(f"      const {vector} w{o} = LOAD_w(wi + {o});")
    for p in taps[0]:
        lines.append(f"      {{ const float s = GET_x(at + {p * pixel_step});")
        lines += [f"        a{p}_{o} += w{o} * s;" for o in taps[1]]
        lines.append("      }")
    lines += ["    }", "  }", "}"]
    finish: list[str] = []
    for o in taps[1]:
        for p in taps[0]:
            oy, ox = shape.output_position("row", f"px + {p}")
            position = ["n", f"block + {o}", oy, ox]
            chained, result = chain.apply(
                f"a{p}_{o}", node.operator.outputs[0], position, f"_{p}_{o}"
            )
            finish += [*chained, f"STORE_y({_at(shape, o, p)}, {result});"]
    if several:
        partial = [f"STORE_y({_at(shape, o, p)}, a{p}_{o});" for o in taps[1] for p in taps[0]]
        lines += [f"if (to == {steps}) {{", *finish, "} else {", *partial, "}"]
    else:
        lines += finish
    return lines


def _at(shape: ConvShape, o: int, p: int) -> str:
    oy, ox = shape.output_position("row", f"px + {p}")
    return f"VEC_y(n, block + {o}, {oy}, {ox})"
