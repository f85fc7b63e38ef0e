"""Convolution where one thread owns a core with wide vectors: PoCL.

A tile of neighbouring pixels times up to four channel blocks is held in vector registers; one
scalar of the input is broadcast against one vector of weights at a time. Weights lie in the order
in which they are read: [group of blocks][input block][ky][kx][channel][block of the group][lane].
Rows of input blocks are taken in chunks whose weights stay in the nearest cache; between two chunks
the partial sums wait in the output.

This is the scheme of direct convolution in oneDNN and in ONNX Runtime's MLAS (Georganas et al.,
"Anatomy of High-Performance Deep Learning Convolutions on SIMD Architectures", arXiv:1808.05567).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from coexec.arrays import Array
from coexec.engines.opencl.architecture import Architecture
from coexec.engines.opencl.kernels.base import Context, KernelLaunch, Node, Source, Value, ceil_div
from coexec.engines.opencl.kernels.conv_cpu_text import Form, text
from coexec.engines.opencl.kernels.conv_shape import (
    ConvShape,
    packed_bias,
    padded_copy,
    tile_cycles,
    without_columns,
)
from coexec.engines.opencl.kernels.epilogue import Epilogue
from coexec.engines.opencl.kernels.packing import Packed

__all__ = ["launches", "seconds", "steps"]

_NEAR_BYTES = 24 * 1024
"""Weights of a chunk: half of the first cache of most cores, the rest is for the input."""
_FEW_PLANES = 4
"""Of a row-major image that are taken in one step."""
_FAR_BYTES = 2**19
"""An input that is larger does not stay in the second cache from one group to the next."""
_BAND_BYTES = 2**17
"""Of such an input, what stays there beside the weights of all groups."""
_STREAMS = 8
"""Rows of an input that are read in turn: of as many, processors fetch in advance what follows."""


def launches(node: Node, context: Context, shape: ConvShape) -> list[KernelLaunch]:
    """Zeros are copied to the left and right of the input first, where there is padding."""
    x = context.value(node.operator.inputs[0])
    found: list[KernelLaunch] = []
    given = shape
    if shape.left or shape.right > 0:
        copy, x, shape = padded_copy(context, x, shape, rows=False)
        found.append(copy)
    for part in _parts(context.arch, shape):
        found += _DirectConv(node, context, shape, given, x, *part).launches()
    return found


def steps(arch: Architecture, shape: ConvShape, x: Value) -> dict[str, float]:
    """What the kernels do, as terms of a workload: the loops of `conv_cpu_text`, counted."""
    copied = 0.0
    if shape.left or shape.right > 0:
        shape = without_columns(shape)
        channels = x.slices * x.block if x.block else shape.in_channels
        copied = 4.0 * shape.batch * channels * shape.in_h * shape.in_w
    parts = _parts(arch, shape)
    taps, pixels = shape.rows_inside * shape.kernel_w, shape.out_h * shape.out_w
    total = {"launches": len(parts) + (copied > 0), "copied": copied, "cycles": 0.0,
             "products": 0.0, "scalars": 0.0, "vectors": 0.0, "loops": 0.0, "tiles": 0.0,
             "partial": 0.0, "lines": 0.0, "again": 0.0, "streamed": 0.0}  # fmt: skip
    read_w = min(shape.in_w, shape.out_w * shape.kernel_w)
    for _, groups, size in parts:
        chunks, row = _Chunks.of(arch, shape, x, size), _RowTiles.of(arch, shape, size)
        passes = shape.batch * groups
        rows = passes * taps * shape.in_channels
        total["cycles"] += rows * sum(tile_cycles(tile, size) * count for tile, count in row.counts)
        total["products"] += rows * shape.row_pixels * size
        total["scalars"] += rows * shape.row_pixels
        total["vectors"] += rows * row.tiles * size
        total["loops"] += passes * taps * chunks.in_blocks * row.tiles
        total["tiles"] += passes * chunks.count * shape.rows * row.tiles
        total["partial"] += 4.0 * passes * (chunks.count - 1) * pixels * size * arch.block
        total["lines"] += passes * shape.rows_inside * read_w * chunks.in_blocks
        split = _Split.of(arch, shape, x, groups, size)
        image = 4.0 * shape.batch * shape.in_channels * shape.in_h * shape.in_w
        total["again"] += split.reads * image
        weights = 4.0 * shape.in_channels * shape.kernel_h * shape.kernel_w * size * arch.block
        total["streamed"] += split.bands * groups * weights
    return total


def _parts(arch: Architecture, shape: ConvShape) -> list[tuple[int, int, int]]:
    """One kernel each: the first channel block, groups of blocks, and blocks of a group."""
    blocks = ceil_div(shape.out_channels, arch.block)
    parts = ceil_div(blocks, _blocks_together(arch, shape, blocks))
    width = ceil_div(blocks, parts)
    wide = blocks - parts * (width - 1)
    found = ((0, wide, width), (wide * width, parts - wide, width - 1))
    return [(first, groups, size) for first, groups, size in found if groups and size]


def seconds(shape: ConvShape) -> float:
    """A rough time, to compare with that of `conv_winograd.seconds`."""
    weights = shape.in_channels * shape.out_channels * shape.kernel_h * shape.kernel_w * 4
    return 2 * shape.macs / 140e9 + weights / 16e9


def _blocks_together(arch: Architecture, shape: ConvShape, blocks: int) -> int:
    """How many channel blocks a tile should hold, by the multiply-adds that it makes a cycle."""

    def rate(width: int) -> float:
        pixels = shape.row_pixels / _RowTiles.of(arch, shape, width).tiles
        return pixels * width / tile_cycles(pixels, width)

    most = 4 if arch.registers >= 32 else 2
    return max(range(1, min(most, blocks) + 1), key=rate)


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Input channels and rows of the filter, in chunks whose weights stay near."""

    depth: int
    """A block of input channels at a time, or all of a row-major image."""
    in_blocks: int
    rest: int
    """Channels of the last block."""
    steps: int
    """Rows of the filter, over all blocks of input channels."""
    chunk: int
    """Steps of a chunk."""

    @property
    def count(self) -> int:
        return ceil_div(self.steps, self.chunk)

    @staticmethod
    def of(arch: Architecture, shape: ConvShape, x: Value, size: int) -> "_Chunks":
        """``size``: channel blocks of a tile."""
        depth = arch.block if x.block else shape.in_channels
        in_blocks = ceil_div(shape.in_channels, depth)
        steps = in_blocks * shape.kernel_h
        near = max(1, _NEAR_BYTES // (shape.kernel_w * depth * size * arch.block * 4))
        if x.block:
            near = min(near, _STREAMS)
        # In an output of 16 bits partial sums would be rounded again and again.
        chunks = 1 if arch.half else ceil_div(steps, near)
        rest = shape.in_channels - (in_blocks - 1) * depth
        return _Chunks(depth, in_blocks, rest, steps, ceil_div(steps, chunks))


@dataclass(frozen=True, slots=True)
class _RowTiles:
    """A row of the output in tiles that differ by one pixel at most."""

    pixels: int
    """Of the larger tiles, which come first."""
    larger: int
    """How many there are."""
    tiles: int
    full: bool
    """Whether the larger tiles have all pixels that the registers hold."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Pixels of tiles that a kernel is written for. Rows of full tiles are common, so all of
        them share a kernel with those that end in smaller ones."""
        smaller = self.pixels - 1 if self.full or self.larger < self.tiles else 0
        return (self.pixels, smaller) if smaller else (self.pixels,)

    @property
    def counts(self) -> tuple[tuple[int, int], ...]:
        """Pixels of a tile, and how many such tiles there are in a row."""
        return (self.pixels, self.larger), (self.pixels - 1, self.tiles - self.larger)

    @staticmethod
    def of(arch: Architecture, shape: ConvShape, width: int) -> "_RowTiles":
        """Accumulators, one set of weights and the broadcast scalar share the registers."""
        most = min(12, max(1, (arch.registers - width - 2) // width))
        tiles = ceil_div(shape.row_pixels, most)
        pixels = ceil_div(shape.row_pixels, tiles)
        return _RowTiles(pixels, shape.row_pixels - tiles * (pixels - 1), tiles, pixels == most)


class _Split(NamedTuple):
    """What a work item does."""

    groups: int
    rows: int
    tiles: int
    """Of each row."""
    across: int
    """Work items that share a row."""
    bands: int
    """Work items that share a group."""
    chunks_outside: bool
    reads: int
    """How often all of the input is read."""

    @staticmethod
    def of(arch: Architecture, shape: ConvShape, x: Value, groups: int, size: int) -> "_Split":
        """Work items split the groups, then the rows, until every core has some.

        With each pixel of a large input a filter of one tap computes so little that reading it
        again for each group would take longer. So all groups share a band of it that stays near.
        """
        units, row = arch.compute_units, _RowTiles.of(arch, shape, size)
        far = x.size_bytes > _FAR_BYTES
        wanted = 1 if units == 1 else 4 * units
        if far and shape.kernel_h * shape.kernel_w == 1:
            return _Split._in_bands(shape, row, groups, wanted)
        chunks = _Chunks.of(arch, shape, x, size)
        outside = far and chunks.chunk < chunks.steps
        parts = min(groups, units) if outside else groups
        bands, rows = _shared_out(shape.rows, ceil_div(wanted, parts * shape.batch))
        reads = chunks.count if outside else groups
        return _Split(ceil_div(groups, parts), rows, row.tiles, 1, bands, outside, reads)

    @staticmethod
    def _in_bands(shape: ConvShape, row: _RowTiles, groups: int, least: int) -> "_Split":
        near = _BAND_BYTES // (4 * shape.in_channels)  # pixels
        if shape.rows > 1:
            wanted = ceil_div(shape.rows, max(1, near // shape.in_w))
            bands, rows = _shared_out(shape.rows, max(wanted, least))
            return _Split(groups, rows, row.tiles, 1, bands, False, 1)
        wanted = ceil_div(row.tiles, max(1, near // row.pixels))
        bands, tiles = _shared_out(row.tiles, max(wanted, least))
        return _Split(groups, 1, tiles, bands, bands, False, 1)


def _shared_out(count: int, parts: int) -> tuple[int, int]:
    """At most ``parts`` parts, and how many each of them has; the last one may have fewer."""
    each = ceil_div(count, min(count, parts))
    return ceil_div(count, each), each


class _DirectConv:
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
        self._row = _RowTiles.of(self._arch, shape, size)
        self._chunks = _Chunks.of(self._arch, shape, x, size)

    def launches(self) -> list[KernelLaunch]:
        shape = self._shape
        split = _Split.of(self._arch, shape, self._x, self._groups, self._size)
        source = Source("conv_cpu", self._arch, sized=True, alone=True)
        source.read("x", self._x)
        weights = Packed(self._context, self._node.operator.inputs[1], self._pack)
        weights.declare(source, "w")
        blocks = self._groups * self._size
        bias = packed_bias(self._node, self._context, self._first, blocks)
        bias.declare(source, "bias")
        epilogue = Epilogue(source, self._context, self._node, self._node.epilogue)
        source.write("y", self._context.value(self._node.output))
        form = self._form()
        self._declare_sizes(source, form)
        source.sizes(
            groups_each=split.groups, rows_each=split.rows, tiles_each=split.tiles,
            across=split.across, chunks_outside=split.chunks_outside,
        )  # fmt: skip
        head = self._node.operator.outputs[0]
        source.lines(
            "\n".join(f"  {line}" for line in text(form, partial(_finish, epilogue, head)))
        )
        grid = (ceil_div(self._groups, split.groups), split.bands, shape.batch)
        return [*weights.launches, *bias.launches, source.finish(grid, (1, 1, 1))]

    def _form(self) -> Form:
        """Two channels in a step, or all of a few planes, so that there is no odd one."""
        depth = self._chunks.depth
        step = 2 if self._chunks.rest % 2 == 0 and depth % 2 == 0 else 1
        if not self._x.block and depth <= _FEW_PLANES:
            step = depth
        return Form(
            vector=self._arch.vector, pixels=self._row.sizes, blocks=self._size,
            stride=self._shape.stride_w, lanes=depth if self._x.block else 1, step=step,
            skips=self._given.left > self._row.pixels, chunked=not self._arch.half,
        )  # fmt: skip

    def _declare_sizes(self, source: Source, form: Form) -> None:
        shape = self._shape
        tap_vectors = self._chunks.depth * self._size
        source.sizes(
            groups=self._groups, first_block=self._first, rows=shape.rows,
            larger=self._row.larger, tiles=self._row.tiles,
            steps=self._chunks.steps, chunk=self._chunks.chunk, in_blocks=self._chunks.in_blocks,
            steps_full=self._chunks.depth // form.step, steps_last=self._chunks.rest // form.step,
            in_channels=shape.in_channels, in_h=shape.in_h, in_w=shape.in_w,
            plane=shape.in_h * shape.in_w, top=shape.top, stride_h=shape.stride_h,
            dilation_h=shape.dilation_h, dilation_w=shape.dilation_w, kernel_h=shape.kernel_h,
            kernel_w=shape.kernel_w, tap_vectors=tap_vectors,
            row_vectors=tap_vectors * shape.kernel_w, image_left=self._given.left,
            image_right=self._given.left + self._given.in_w,
        )  # fmt: skip

    def _pack(self, weights: Array) -> Array:
        """The weights as the module's docstring says, zero where there is none."""
        shape, chunks, b = self._shape, self._chunks, self._arch.block
        lanes = self._groups * self._size * b
        rows = weights[self._first * b : self._first * b + lanes]
        kernel = (shape.kernel_h, shape.kernel_w)
        full = np.zeros((lanes, chunks.in_blocks * chunks.depth, *kernel), weights.dtype)
        full[: rows.shape[0], : shape.in_channels] = rows
        split = full.reshape(
            self._groups, self._size, b, self._chunks.in_blocks, self._chunks.depth, *kernel
        )
        return np.ascontiguousarray(split.transpose(0, 3, 5, 6, 4, 1, 2))


def _finish(
    epilogue: Epilogue, head: str, value: str, position: Sequence[str], tag: str
) -> list[str]:
    """Lines that store what the epilogue makes of a finished sum."""
    lines, result = epilogue.apply(value, head, position, tag)
    return [*lines, f"STORE_y(VEC_y({', '.join(position)}), {result});"]
