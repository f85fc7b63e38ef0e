"""Depthwise convolution: each channel has a filter of its own.

Sums do not mix channels, so a vector of input is multiplied by a vector of weights. On CPU cores, a
work item computes rows of one block of channels. Inside of the image it keeps the sums of a tile of
neighbouring pixels in registers, and loads each input once for all taps of a row that need it. At
the borders, and everywhere on GPUs, one pixel is computed at a time.
"""

import numpy as np

from coexec.arrays import Array, aligned
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
from coexec.engines.kernels.conv_shape import ConvShape, packed_bias
from coexec.engines.kernels.epilogue import Epilogue
from coexec.engines.kernels.touches import along, of_image


def fits(shape: ConvShape, x: Value) -> bool:
    """Whether there is one filter a channel, and channels are in blocks."""
    return bool(x.block) and shape.in_channels == 1 and shape.groups == shape.out_channels


def launches(node: Node, context: Context, shape: ConvShape) -> list[KernelLaunch]:
    x, y = context.value(node.operator.inputs[0]), context.value(node.output)
    on_cores = context.arch.family == "cpu"
    source = Source("conv_depthwise", context.arch, sized=on_cores, alone=on_cores)
    source.read("x", x)
    source.constant("w", _packed(context.constants[node.operator.inputs[1]], y))
    source.constant("bias", packed_bias(node, context, 0, y.slices))
    epilogue = Epilogue(source, context, node, node.epilogue)
    source.write("y", y)
    lines = _Lines(node, context, shape, epilogue, source)
    if on_cores:
        rows = max(1, ceil_div(shape.out_h, 4 * context.arch.compute_units))
        source.add(lines.rows(rows))
        grid = (ceil_div(shape.out_h, rows), y.slices, shape.batch)
        planes, samples = along(1, y.slices), along(2, shape.batch)
        touches = {
            "x": of_image(x, shape.rows_read(0, grid[0], rows), planes, samples),
            "y": of_image(y, along(0, grid[0], rows), planes, samples),
        }
        return [source.finish(grid, (1, 1, 1), touches=touches, macs=shape.macs)]
    # Neighbours among the work items are neighbours in memory.
    across = x.last or y.last
    if across:
        place = f"ox = get_global_id(0) / {y.slices}, s = get_global_id(0) % {y.slices}"
        grid = (shape.out_w * y.slices, shape.out_h, shape.batch)
    else:
        place = f"ox = get_global_id(0), s = get_global_id(2) % {y.slices}"
        grid = (shape.out_w, shape.out_h, y.slices * shape.batch)
    image = "get_global_id(2)" if across else f"get_global_id(2) / {y.slices}"
    source.add(f"  const int {place};\n  const int row = get_global_id(1), n = {image};")
    source.add(lines.pixel())
    launch = source.finish(grid, convolution=shape.traits("depthwise"))
    return [launch]


def steps(arch: Architecture, shape: ConvShape, y: Value) -> dict[str, float]:
    """Terms of the kernel's workload. On GPUs all pixels count alike."""
    inside = _inside(shape) if arch.family == "cpu" else (0, 0)
    tiled, alone = _tiled(_most_pixels(arch, shape), inside[1] - inside[0])
    alone += shape.out_w - (inside[1] - inside[0])
    lines = shape.batch * y.slices
    pixels = sum(size * count for size, count in tiled)
    loads = sum(
        count * min(size * shape.kernel_w, (size - 1) * shape.stride_w + shape.kernel_w)
        for size, count in tiled
    )
    return {
        "products": float(lines * shape.rows_inside * pixels * shape.kernel_w),
        "loads": float(lines * shape.rows_inside * (loads + shape.kernel_w * len(tiled))),
        "alone": float(lines * shape.rows_inside * alone * shape.kernel_w),
        "tiles": float(lines * shape.out_h * (sum(count for _, count in tiled) + alone)),
    }


def _inside(shape: ConvShape) -> tuple[int, int]:
    """The first output column whose taps all lie inside of the image, and the column behind the
    last such one."""
    extent = (shape.kernel_w - 1) * shape.dilation_w + 1
    first = min(shape.out_w, ceil_div(max(shape.left, 0), shape.stride_w))
    end = (shape.in_w + shape.left - extent) // shape.stride_w + 1
    return first, max(first, min(shape.out_w, end))


def _most_pixels(arch: Architecture, shape: ConvShape) -> int:
    """Most pixels in a tile: registers hold sums, the weights of a row and the current input."""
    return max(1, min(8, arch.registers - shape.kernel_w - 2))


def _tiled(most: int, room: int) -> tuple[list[tuple[int, int]], int]:
    """Pixels of a tile and the number of such tiles in ``room`` columns; and columns without a
    tile.

    The last tile of a size may overlap the previous one.
    """
    for pixels in (most, most // 2):
        if 1 < pixels <= room:
            return [(pixels, ceil_div(room, pixels))], 0
    return [], room


def _packed(weights: Array, y: Value) -> Array:
    """The weights as [block][ky][kx][lane]."""
    channels, _, height, width = weights.shape
    full = np.zeros((y.slices * y.block, height, width), weights.dtype)
    full[:channels] = weights[:, 0]
    split = full.reshape(y.slices, y.block, height, width)
    return aligned(split.transpose(0, 2, 3, 1))


class _Lines:
    """The text for one convolution."""

    def __init__(
        self, node: Node, context: Context, shape: ConvShape, epilogue: Epilogue, source: Source
    ) -> None:
        self._head = node.operator.outputs[0]
        self._shape = shape
        self._epilogue = epilogue
        self._vector = context.arch.vector
        self._pixels = _most_pixels(context.arch, shape)
        self._size = source.size
        stride, top, dilation = (
            source.size("stride_h", shape.stride_h),
            source.size("top", shape.top),
            source.size("dilation_h", shape.dilation_h),
        )
        self._row = [
            f"    const int iy = row * {stride} - {top} + ky * {dilation};",
            f"    if (iy < 0 || iy >= {source.size('in_h', shape.in_h)}) continue;",
        ]
        self._left = source.size("left", shape.left)
        self._weights = f"s * {shape.kernel_h * shape.kernel_w} + ky * {shape.kernel_w}"

    def pixel(self) -> str:
        """Lines for pixel (row, ox) of block s, with a test whether each tap is in the image."""
        c = self._shape
        return "\n".join(
            [
                f"  {self._vector} a = LOAD_bias(s);",
                f"  for (int ky = 0; ky < {c.kernel_h}; ky++) {{",
                *self._row,
                f"    for (int kx = 0; kx < {c.kernel_w}; kx++) {{",
                f"      const int ix = ox * {c.stride_w} - {self._left} + kx * {c.dilation_w};",
                f"      if (ix < 0 || ix >= {self._size('in_w', c.in_w)}) continue;",
                f"      a += LOAD_x(VEC_x(n, s, iy, ix)) * LOAD_w({self._weights} + kx);",
                "    }",
                "  }",
                *self._finish("a", "ox"),
            ]
        )

    def rows(self, rows: int) -> str:
        """Lines for rows of block s, tile by tile where all taps lie inside of the image."""
        c, size = self._shape, self._size
        first, last = _inside(c)
        rows_each, out_h = size("rows_each", rows), size("out_h", c.out_h)
        inside, end = size("inside", first), size("inside_end", last)
        text = [
            f"  const int first_row = item_0 * {rows_each}, s = item_1, n = item_2;",
            f"  for (int row = first_row; row < min(first_row + {rows_each}, {out_h}); row++) {{",
            f"    for (int ox = 0; ox < {size('out_w', c.out_w)};) {{",
            f"      const int room = ox < {inside} || ox >= {end} ? 0 : {end} - {inside};",
        ]
        for pixels in (self._pixels, self._pixels // 2):
            if pixels > 1:  # the last tile may overlap the previous one
                text += [
                    f"      if (room >= {pixels}) {{",
                    f"        ox = min(ox, {end} - {pixels});",
                    *indented(self._tile(pixels), 3),
                    f"        ox += {pixels};",
                    "        continue;",
                    "      }",
                ]
        text += indented(self.pixel().splitlines(), 2)
        return "\n".join([*text, "      ox++;", "    }", "  }"])

    def _tile(self, pixels: int) -> list[str]:
        """Lines for the pixels from ox on, all of whose taps lie in columns of the image."""
        c, v = self._shape, self._vector
        text = [f"  {v} a{p} = LOAD_bias(s);" for p in range(pixels)]
        text += [
            f"  for (int ky = 0; ky < {c.kernel_h}; ky++) {{",
            *self._row,
            f"    const int at = VEC_x(n, s, iy, ox * {c.stride_w} - {self._left});",
        ]
        text += [f"    const {v} w{k} = LOAD_w({self._weights} + {k});" for k in range(c.kernel_w)]
        for offset, uses in self._uses(pixels).items():
            text.append(f"    {{ const {v} i = LOAD_x(at + {offset});")
            text += [f"      a{p} += i * w{k};" for p, k in uses]
            text.append("    }")
        text.append("  }")
        for p in range(pixels):
            text += self._finish(f"a{p}", f"ox + {p}", f"_{p}")
        return text

    def _uses(self, pixels: int) -> dict[int, list[tuple[int, int]]]:
        """Pixels of the tile and taps that use an input, by position of the input in its row."""
        c = self._shape
        uses: dict[int, list[tuple[int, int]]] = {}
        for p in range(pixels):
            for k in range(c.kernel_w):
                uses.setdefault(p * c.stride_w + k * c.dilation_w, []).append((p, k))
        return dict(sorted(uses.items()))

    def _finish(self, name: str, ox: str, tag: str = "") -> list[str]:
        lines, result = self._epilogue.apply(name, self._head, ["n", "s", "row", ox], tag)
        return indented((*lines, f"STORE_y(VEC_y(n, s, row, {ox}), {result});"))
