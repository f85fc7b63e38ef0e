"""Convolution where one thread owns a core with wide vectors: PoCL.

A tile of neighbouring pixels times up to four channel blocks is held in vector registers; one
scalar of the input is broadcast against one vector of weights at a time. Weights lie in the order
in which they are read: [group of blocks][input block][ky][kx][channel][block of the group][lane].
Rows of input blocks are taken in chunks whose weights stay in the nearest cache; between two chunks
the partial sums wait in the output.

This is the scheme of direct convolution in oneDNN and in ONNX Runtime's MLAS (Georganas et al.,
"Anatomy of High-Performance Deep Learning Convolutions on SIMD Architectures", arXiv:1808.05567).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from coexec.devices.opencl.architecture import Architecture
from coexec.devices.opencl.kernels.base import Context, Launch, Node, Source, Value, ceil_div
from coexec.devices.opencl.kernels.chain import Chain
from coexec.devices.opencl.kernels.conv_shape import ConvShape, packed_bias, padded_copy
from coexec.frontend.module import Array

__all__ = ["launches", "seconds"]

_NEAR_BYTES = 24 * 1024
"""Weights of a chunk: half of the first cache of most cores, the rest is for the input."""
_FAR_BYTES = 2**20
"""An input that is larger does not stay in the second cache from one group to the next."""


def launches(node: Node, context: Context, shape: ConvShape) -> list[Launch]:
    """Zeros are copied to the left and right of the input first, where there is padding."""
    x = context.value(node.operator.inputs[0])
    found: list[Launch] = []
    given = shape
    if shape.left or shape.right:
        copy, x, shape = padded_copy(context, x, shape, rows=False)
        found.append(copy)
    arch = context.arch
    blocks = ceil_div(shape.out_channels, arch.block)
    parts = ceil_div(blocks, _blocks_together(arch, shape, blocks))
    width = ceil_div(blocks, parts)
    wide = blocks - parts * (width - 1)
    for first, groups, size in ((0, wide, width), (wide * width, parts - wide, width - 1)):
        if groups and size:
            kernel = _Kernel(node, context, shape, given, x, first, groups, size)
            found.append(kernel.launch())
    return found


def seconds(shape: ConvShape) -> float:
    """A rough time, to compare with that of `conv_winograd.seconds`."""
    weights = shape.in_channels * shape.out_channels * shape.kernel_h * shape.kernel_w * 4
    return 2 * shape.macs / 140e9 + weights / 16e9


def _blocks_together(arch: Architecture, shape: ConvShape, blocks: int) -> int:
    """How many channel blocks a tile should hold, by the multiply-adds that it makes a cycle.

    A step of a tile is as slow as its multiply-adds (two a cycle), its loads (two a cycle), or its
    weights' way from the second cache (about half a vector a cycle); all cores of the last decade
    are near this.
    """

    def rate(width: int) -> float:
        pixels = shape.row_pixels / _Row.of(arch, shape, width).tiles
        cycles = max(pixels * width / 2, (pixels + width) / 2, 2 * width) + 1
        return pixels * width / cycles

    most = 4 if arch.registers >= 32 else 2
    return max(range(1, min(most, blocks) + 1), key=rate)


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the output in tiles that differ by one pixel at most."""

    pixels: int
    """Of the larger tiles, which come first."""
    larger: int
    """How many there are."""
    tiles: int

    @staticmethod
    def of(arch: Architecture, shape: ConvShape, width: int) -> "_Row":
        """Accumulators, one set of weights and the broadcast scalar share the registers."""
        most = min(12, max(1, (arch.registers - width - 2) // width))
        tiles = ceil_div(shape.row_pixels, most)
        pixels = ceil_div(shape.row_pixels, tiles)
        return _Row(pixels, shape.row_pixels - tiles * (pixels - 1), tiles)

    def runs(self, end: int) -> Iterator[tuple[int, int]]:
        """Pixels of a tile, and where tiles of that size end."""
        yield self.pixels, self.larger * self.pixels
        if self.pixels > 1:
            yield self.pixels - 1, end


class _Kernel:
    """The kernel for the channel blocks from ``first`` on, in groups of ``size`` blocks."""

    def __init__(
        self, node: Node, context: Context, shape: ConvShape, given: ConvShape, x: Value,
        first: int, groups: int, size: int,
    ) -> None:  # fmt: skip
        """``given`` is the convolution before the padding of columns was copied."""
        self._node, self._arch, self._shape, self._given, self._x = (
            node, context.arch, shape, given, x)  # fmt: skip
        self._context = context
        self._first, self._groups, self._size = first, groups, size
        self._row = _Row.of(self._arch, shape, size)
        b = self._arch.block
        # A block of input channels at a time, or all of a row-major image.
        self._depth = b if x.block else shape.in_channels
        self._in_blocks = ceil_div(shape.in_channels, self._depth)
        self._steps = self._in_blocks * shape.kernel_h
        near = max(1, _NEAR_BYTES // (shape.kernel_w * self._depth * size * b * 4))
        # In an output of 16 bits partial sums would be rounded again and again.
        chunks = 1 if self._arch.half else ceil_div(self._steps, near)
        self._chunk = ceil_div(self._steps, chunks)

    def launch(self) -> Launch:
        """Work items split the groups, then the rows, until every core has some."""
        shape, units = self._shape, self._arch.compute_units
        far = self._x.size_bytes > _FAR_BYTES and self._chunk < self._steps
        parts = min(self._groups, units) if far else self._groups
        each = ceil_div(self._groups, parts)
        wanted = 1 if units == 1 else ceil_div(4 * units, parts * shape.batch)
        rows = ceil_div(shape.rows, min(shape.rows, wanted))
        source = self._source = Source("conv_cpu", self._arch, sized=True, alone=True)
        source.read("x", self._x)
        source.constant("w", self._packed())
        blocks = self._groups * self._size
        source.constant("bias", packed_bias(self._node, self._context, self._first, blocks))
        self._chain = Chain(source, self._context, self._node, self._node.chain)
        source.write("y", self._context.value(self._node.output))
        size = source.size
        groups_each, rows_each = size("groups_each", each), size("rows_each", rows)
        source.lines("\n".join([
            f"  const int first_group = item_0 * {groups_each}, n = item_2;",
            f"  const int last_group = min(first_group + {groups_each}, "
            f"{size('groups', self._groups)});",
            f"  const int first_row = item_1 * {rows_each};",
            f"  const int last_row = min(first_row + {rows_each}, {size('rows', shape.rows)});",
            *self._loops(far),
        ]))  # fmt: skip
        bands = ceil_div(shape.rows, rows)
        return source.launch((ceil_div(self._groups, each), bands, shape.batch), (1, 1, 1))

    def _packed(self) -> Array:
        """The weights as the module's docstring says, zero where there is none."""
        weights = self._context.constant(self._node.operator.inputs[1])
        assert weights is not None
        shape, b = self._shape, self._arch.block
        lanes = self._groups * self._size * b
        rows = weights[self._first * b : self._first * b + lanes]
        kernel = (shape.kernel_h, shape.kernel_w)
        full = np.zeros((lanes, self._in_blocks * self._depth, *kernel), np.float32)
        full[: rows.shape[0], : shape.in_channels] = rows
        split = full.reshape(self._groups, self._size, b, self._in_blocks, self._depth, *kernel)
        return np.ascontiguousarray(split.transpose(0, 3, 5, 6, 4, 1, 2))

    def _loops(self, far: bool) -> list[str]:
        """Groups outside keep a small input in the second cache; chunks outside read a large one
        once, as all groups use a chunk of it before the next one comes."""
        size = self._source.size
        steps, chunk = size("steps", self._steps), size("chunk", self._chunk)
        text = [
            f"const int outside = {size('chunks_outside', far)}, group_count = last_group - first_group;",
            f"const int chunks = ({steps} + {chunk} - 1) / {chunk};",
            "for (int pass = 0; pass < group_count * chunks; pass++) {",
            "const int group = first_group + (outside ? pass % group_count : pass / chunks);",
            f"const int from = (outside ? pass / group_count : pass % chunks) * {chunk};",
            "__global const float* before = from == 0 ? bias : y;",
            "const int pixel_step = from == 0 ? 0 : 1, block_step = from == 0 ? 1 : y_h * y_w;",
            f"const int to = min(from + {chunk}, {steps});",
            f"const int block = {size('first_block', self._first)} + group * {self._size};",
            f"const int first_i = from / kernel_h, first_ky = from % kernel_h;",
            f"const long first_w = (group * steps + from) * row_vectors;",
            "for (int row = first_row; row < last_row; row++) {",
            "  int px = 0;",
        ]
        for pixels, end in self._row.runs(self._shape.row_pixels):
            text.append(f"  for (; px < {size(f'end_{pixels}', end)}; px += {pixels}) {{")
            text += [f"    {line}" for line in self._tile(pixels)]
            text.append("  }")
        return [f"  {line}" for line in [*text, "}", "}"]]

    def _tile(self, pixels: int) -> list[str]:
        vector = self._arch.vector
        sums = [(p, o) for o in range(self._size) for p in range(pixels)]
        partial = [f"STORE_y({self._at(p, o)}, a{p}_{o});" for p, o in sums]
        return [
            f"const int start = from == 0 ? group * {self._size} : {self._at(0, 0)};",
            *(f"{vector} a{p}_{o} = ((__global const {vector}*)before)[start + {p} * pixel_step + {o} * block_step];" for p, o in sums),
            *self._sum(pixels),
            f"if (to == {self._source.size('steps', self._steps)}) {{", *self._finish(sums),
            "} else {", *partial, "}",
        ]  # fmt: skip

    def _sum(self, pixels: int) -> list[str]:
        """Add a chunk to the sums of a tile. Two channels in a step, where there are no odd ones."""
        s, x, size = self._shape, self._x, self._source.size
        in_h, in_w, kernel_h = (
            size(k, v) for k, v in (("in_h", s.in_h), ("in_w", s.in_w), ("kernel_h", s.kernel_h))
        )
        row_vectors = size("row_vectors", s.kernel_w * self._depth * self._size)
        rest = s.in_channels - (self._in_blocks - 1) * self._depth
        step = 2 if rest % 2 == 0 and self._depth % 2 == 0 else 1
        if not x.block and self._depth <= 4:
            step = self._depth
        # A block of channels lies at each pixel, or all channels one plane after the other.
        lanes, across, before = (
            (self._depth, "1", "n * x_slices + i")
            if x.block
            else (1, size("plane", s.in_h * s.in_w), f"n * {size('depth', self._depth)}")
        )
        return [
            "int i = first_i, ky = first_ky;",
            "long row_w = first_w;",
            f"for (int j = from; j < to; j++, row_w += {row_vectors}) {{",
            f"  const int iy = row * {size('stride_h', s.stride_h)} - {size('top', s.top)}"
            f" + ky * {size('dilation_h', s.dilation_h)};",
            f"  const int plane_y = ({before}) * {in_h} + iy;",
            f"  const int steps_c = i == {size('in_blocks', self._in_blocks)} - 1 ? "
            f"{size('steps_last', rest // step)} : {size('steps_full', self._depth // step)};",
            f"  if (++ky == {kernel_h}) {{ ky = 0; i++; }}",
            f"  if (iy < 0 || iy >= {in_h}) continue;",
            f"  long pixel = ((long)plane_y * {in_w} + px * {s.stride_w}) * {lanes}, tap = row_w;",
            "  int kx = 0;",
            "  do {",
            f"    {self._unless_padding(pixels)}",
            "    long at = pixel, wi = tap;",
            "    int c = 0;",
            "    do {",
            *(f"      {line}" for k in range(step) for line in self._step(pixels, k, lanes, across)),
            f"      at += {step} * {across}; wi += {step * self._size};",
            "    } while (++c < steps_c); }",
            f"    pixel += {size('dilation_w', s.dilation_w)} * {lanes};",
            f"    tap += {size('tap_vectors', self._depth * self._size)};",
            f"  }} while (++kx < {size('kernel_w', s.kernel_w)});",
            "}",
        ]

    def _step(self, pixels: int, number: int, lanes: int, across: str) -> list[str]:
        """One channel of the input times its weights."""
        size, vector = self._size, self._arch.vector
        first = number * size
        loads = [f"const {vector} w{o} = LOAD_w(wi + {first + o});" for o in range(size)]
        uses = []
        for p in range(pixels):
            sums = "".join(f" a{p}_{o} += w{o} * f;" for o in range(size))
            place = f"at + {number} * {across} + {p * self._shape.stride_w * lanes}"
            uses.append(f"{{ const float f = GET_x({place});{sums} }}")
        return ["{", *loads, *uses, "}"]

    def _unless_padding(self, pixels: int) -> str:
        """The start of a block that is left out where a tap of a tile reads nothing but padding.

        With a large dilation that is so for many taps.
        """
        left = self._given.left
        if left <= pixels:
            return "{"
        size, last = self._source.size, (pixels - 1) * self._shape.stride_w
        begin, end = size("left", left), size("right", left + self._given.in_w)
        ix = f"px * {self._shape.stride_w} + kx * {size('dilation_w', self._shape.dilation_w)}"
        return f"if ({ix} + {last} >= {begin} && {ix} < {end}) {{"

    def _finish(self, sums: list[tuple[int, int]]) -> list[str]:
        lines: list[str] = []
        for p, o in sums:
            position = ["n", f"block + {o}", "row", f"px + {p}"]
            head = self._node.operator.outputs[0]
            chained, result = self._chain.apply(f"a{p}_{o}", head, position, f"_{p}_{o}")
            lines += [*chained, f"STORE_y({self._at(p, o)}, {result});"]
        return lines

    def _at(self, p: int, o: int) -> str:
        return f"VEC_y(n, block + {o}, row, px + {p})"
