"""Convolution on GPUs with fast local memory: a product of matrices in tiles (`tiles`).

Rows are output pixels, columns are output channels, and the inner axis is (ky, kx, input block,
lane). Inputs outside of the image are zero.
"""

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
    in_half,
)
from coexec.engines.kernels.conv_shape import ConvShape, in_turns, packed_bias
from coexec.engines.kernels.epilogue import Epilogue
from coexec.engines.kernels.tile_shapes import Sizes, TileShape, tile_shapes
from coexec.engines.kernels.tiles import Tiled


def fits(shape: ConvShape, x: Value) -> bool:
    """Whether the kernel supports a convolution: blocks of four lanes, and one group."""
    return x.block == 4 and shape.groups == 1


def sizes_of(shape: ConvShape) -> Sizes:
    """The convolution as a product of matrices."""
    inner = shape.kernel_h * shape.kernel_w * ceil_div(shape.in_channels, 4) * 4
    return Sizes(shape.batch * shape.out_h * shape.out_w, shape.out_channels, inner)


def tiles_for(shape: ConvShape, arch: Architecture) -> list[TileShape]:
    """Candidates, the most promising first; none if no group fits this processor."""
    size = shape.batch * shape.in_channels * shape.in_h * shape.in_w
    copies = arch.unit == "fp16" and in_half(arch, "float32", size) and shape.in_channels % 4 == 0
    return tile_shapes(sizes_of(shape), arch, copies)


def steps(arch: Architecture, shape: ConvShape, tile_shape: TileShape) -> dict[str, float]:
    """Terms of the kernel's workload: launches, and tiles in turns."""
    sizes = sizes_of(shape)
    groups = tile_shape.groups(sizes) * tile_shape.splits
    launches = 2.0 if tile_shape.splits > 1 else 1.0
    return {"launches": launches, **in_turns(arch, tile_shape.inner_tiles(sizes), groups)}


def launches(
    node: Node, context: Context, shape: ConvShape, tile_shape: TileShape
) -> list[KernelLaunch]:
    x, y = context.value(node.operator.inputs[0]), context.value(node.output)
    weights = context.constants[node.operator.inputs[1]]
    tile = _TiledConv(shape, tile_shape, x, y)
    bias = packed_bias(node, context, 0, y.slices)
    source = Source("conv_tiled", context.arch)
    source.read("x", x)
    source.constant("w", _packed(weights, tile))
    kernels: list[KernelLaunch] = []
    if tile_shape.splits == 1:
        source.constant("bias", bias)
        epilogue = Epilogue(source, context, node, node.epilogue)
        source.write("y", y)
        position = ["n", "block", "oy", "ox"]
        lines, result = epilogue.apply("sum", node.operator.outputs[0], position)
        store = [
            "const float4 sum = total + LOAD_bias(block);",
            *lines,
            f"STORE_y(VEC_y(n, block, oy, ox), {result});",
        ]
        source.add(tile.text(store))
        kernels.append(source.finish(tile.grid, tile.group))
        return kernels
    partial = context.temporary((tile_shape.splits, y.slices, tile.sizes.rows, 4))
    source.write("y", partial)
    at = _partial_place("split", y, tile.sizes.rows)
    source.add(tile.text([f"((__global float4*)y)[{at}] = total;"]))
    kernels.append(source.finish(tile.grid, tile.group))
    kernels.append(_sum_launch(node, context, shape, partial, y, bias, tile_shape.splits))
    return kernels


def _partial_place(split: str, y: Value, rows: int) -> str:
    """The position of a vector of sums among those of all groups that share an inner axis."""
    if y.last:
        return f"(({split} * {rows} + m) * {y.slices} + block)"
    return f"(({split} * {y.slices} + block) * {rows} + m)"


def _sum_launch(
    node: Node,
    context: Context,
    shape: ConvShape,
    partial: Value,
    y: Value,
    bias: Array,
    splits: int,
) -> KernelLaunch:
    """The kernel that adds the sums of the splits and the bias, and applies the epilogue."""
    source = Source("conv_sum", context.arch)
    source.read("p", partial)
    source.constant("bias", bias)
    epilogue = Epilogue(source, context, node, node.epilogue)
    source.write("y", y)
    plane = shape.out_h * shape.out_w
    pixels = shape.batch * plane
    source.add(
        f"  const int m = get_global_id({int(y.last)}), block = get_global_id({int(not y.last)});\n"
        f"  const int n = m / {plane}, oy = m % {plane} / {shape.out_w}, ox = m % {shape.out_w};\n"
        f"  float4 sum = LOAD_bias(block);\n"
        f"  for (int i = 0; i < {splits}; i++)\n"
        f"    sum += ((__global const float4*)p)[{_partial_place('i', y, pixels)}];"
    )
    lines, result = epilogue.apply("sum", node.operator.outputs[0], ["n", "block", "oy", "ox"])
    source.lines(lines)
    source.add(f"  STORE_y(VEC_y(n, block, oy, ox), {result});")
    return source.finish((y.slices, pixels) if y.last else (pixels, y.slices))


def _packed(weights: Array, tile: "_TiledConv") -> Array:
    """The weights as [inner axis][output channel], packed."""
    shape = tile.shape
    outs, ins = weights.shape[:2]
    full = np.zeros((shape.kernel_h, shape.kernel_w, tile.in_blocks * 4, outs), np.float32)
    full[:, :, :ins] = weights.transpose(2, 3, 1, 0)
    return tile.packed_right(full.reshape(-1, outs))


class _TiledConv(Tiled):
    """The text of the kernel for one convolution."""

    def __init__(self, shape: ConvShape, tile_shape: TileShape, x: Value, y: Value) -> None:
        super().__init__(sizes_of(shape), tile_shape)
        self.shape = shape
        self.in_blocks = x.slices
        self.in_rows = x.last
        self.raw_left = x.half and tile_shape.unit == "fp16"
        self._rest = shape.in_channels % 4

    def row_lines(self, number: int) -> list[str]:
        s, m = self.shape, f"m{number}"
        plane = s.out_h * s.out_w
        return [
            f"const int n{number} = {m} / {plane};",
            f"const int y{number} = {m} % {plane} / {s.out_w} * {s.stride_h} - {s.top};",
            f"const int x{number} = {m} % {s.out_w} * {s.stride_w} - {s.left};",
        ]

    def left_place(self, number: int) -> tuple[list[str], str, str]:
        i, s, blocks = number, self.shape, self.in_blocks
        # Where a tile has one tap, all its vectors share the position.
        vectors = self.tile_shape.depth // 4
        first = f"tile * {vectors}" if blocks % vectors == 0 else "q"
        inside = self.bounds
        if s.padded or s.kernel_h * s.kernel_w > 1:
            inside.append(f"iy >= 0 && iy < {s.in_h} && ix >= 0 && ix < {s.in_w}")
        lines = [
            f"const int tap = {first} / {blocks}, s = q - tap * {blocks};",
            f"const int iy = y{i} + tap / {s.kernel_w} * {s.dilation_h};",
            f"const int ix = x{i} + tap % {s.kernel_w} * {s.dilation_w};",
        ]
        return lines, " && ".join(inside) or "1", f"VEC_x(n{i}, s, iy, ix)"

    def load_row(self, number: int) -> list[str]:
        lines = super().load_row(number)
        if self._rest:
            # Lanes past the last channel may be NaN or infinity, and 0 times that is not 0.
            cleared = " = ".join(f"fx{number}.{lane}" for lane in "yzw"[self._rest - 1 :])
            lines.append(f"if (s == {self.in_blocks - 1}) {cleared} = 0.0f;")
        return lines

    def place_lines(self) -> str:
        s = self.shape
        plane = s.out_h * s.out_w
        return f"const int n = m / {plane}, oy = m % {plane} / {s.out_w}, ox = m % {s.out_w};"
