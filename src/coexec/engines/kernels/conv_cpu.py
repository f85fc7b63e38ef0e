"""Convolution on CPU cores: one thread per core, with wide vectors.

The sums of a tile, which are neighbouring pixels times up to four channel blocks, are kept in
vector registers. One scalar of the input is multiplied with one vector of weights at a time.
Weights are stored in the order in which they are read:
[group of blocks][input block][ky][kx][channel][block of the group][lane]. Those of a group stay in
the second-level cache, from which a tile reads them at a fraction of its rate.

This is the scheme of direct convolution in oneDNN and in ONNX Runtime's MLAS (Georganas et al.,
"Anatomy of High-Performance Deep Learning Convolutions on SIMD Architectures", arXiv:1808.05567).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from coexec.arrays import Array
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import (
    Context,
    Grid,
    KernelLaunch,
    Node,
    Source,
    Value,
    ceil_div,
)
from coexec.engines.kernels.conv_cpu_text import Form, text
from coexec.engines.kernels.conv_shape import (
    ConvShape,
    packed_bias,
    padded_copy,
    tile_cycles,
    without_columns,
)
from coexec.engines.kernels.epilogue import Epilogue
from coexec.engines.kernels.pairs import in_pairs, pairs
from coexec.engines.kernels.touches import Along, Touch, along, of_image

_MANY_REGISTERS = 32
"""Vector registers from which a tile has so many sums that its weights may come from any cache."""
_FEW_PLANES = 4
"""Largest number of planes of a row-major image that one step processes."""
_FAR_BYTES = 2**19
"""Bytes: a larger input does not stay in the second-level cache from one group to the next."""
_BAND_BYTES = 2**17
"""Bytes of such an input that stay in that cache beside the weights of all groups."""
_CHUNK = 128
"""Input channels times taps that are added up together where registers are few."""
_KEPT_PIXELS = 4096
"""Largest number of pixels of a work item whose sums wait for the next chunk."""
_BANDS = 4
"""Bands of rows for each core, from which tiles for teams are made."""


def launches(node: Node, context: Context, shape: ConvShape) -> list[KernelLaunch]:
    """The launches. If there is padding, the input is copied with zeros left and right first."""
    x = context.value(node.operator.inputs[0])
    kernels: list[KernelLaunch] = []
    unpadded = shape
    if shape.left or shape.right > 0:
        copy, x, shape = padded_copy(context, x, shape, rows=False)
        kernels.append(copy)
    for part in _parts(context.arch, shape):
        kernels.append(_DirectConv(node, context, shape, unpadded, x, *part).launch())
    return kernels


def steps(arch: Architecture, shape: ConvShape, x: Value) -> dict[str, float]:
    """Terms of the kernels' workload: counts of the loops of `conv_cpu_text`."""
    copied = 0.0
    if shape.left or shape.right > 0:
        shape = without_columns(shape)
        channels = x.slices * x.block if x.block else shape.in_channels
        copied = 4.0 * shape.batch * channels * shape.in_h * shape.in_w
    parts = _parts(arch, shape)
    taps = shape.rows_inside * shape.kernel_w
    total = {
        "launches": len(parts) + (copied > 0),
        "copied": copied,
        "cycles": 0.0,
        "products": 0.0,
        "scalars": 0.0,
        "vectors": 0.0,
        "loops": 0.0,
        "tiles": 0.0,
        "lines": 0.0,
        "again": 0.0,
        "streamed": 0.0,
    }
    read_w = min(shape.in_w, shape.out_w * shape.kernel_w)
    for _, groups, size in parts:
        inner, row = _Inner.of(arch, shape, x), _RowTiles.of(arch, shape, size)
        passes = shape.batch * groups
        rows = passes * taps * shape.in_channels
        total["cycles"] += rows * sum(tile_cycles(tile, size) * count for tile, count in row.counts)
        total["products"] += rows * shape.row_pixels * size
        total["scalars"] += rows * shape.row_pixels
        total["vectors"] += rows * row.tiles * size
        total["loops"] += passes * taps * inner.blocks * row.tiles
        total["tiles"] += passes * shape.rows * row.tiles
        total["lines"] += passes * shape.rows_inside * read_w * inner.blocks
        split = _Split.of(arch, shape, x, groups, size)
        image = 4.0 * shape.batch * shape.in_channels * shape.in_h * shape.in_w
        total["again"] += split.reads * image
        weights = 4.0 * shape.in_channels * shape.kernel_h * shape.kernel_w * size * arch.block
        total["streamed"] += split.bands * groups * weights
    return total


def _parts(arch: Architecture, shape: ConvShape) -> list[tuple[int, int, int]]:
    """For each kernel: the first channel block, the number of groups, and the blocks of a group."""
    blocks = ceil_div(shape.out_channels, arch.block)
    parts = ceil_div(blocks, _blocks_together(arch, shape, blocks))
    width = ceil_div(blocks, parts)
    wide = blocks - parts * (width - 1)
    candidates = ((0, wide, width), (wide * width, parts - wide, width - 1))
    return [(first, groups, size) for first, groups, size in candidates if groups and size]


def seconds(shape: ConvShape, paired: bool = False) -> float:
    """A rough time in seconds, for comparison with `conv_winograd.seconds`.

    ``paired``: products are of two channels at once, in 16 bits.
    """
    weights = shape.in_channels * shape.out_channels * shape.kernel_h * shape.kernel_w * 4
    return (2 * shape.macs / 140e9 + weights / 16e9) / (2.0 if paired else 1.0)


def _blocks_together(arch: Architecture, shape: ConvShape, blocks: int) -> int:
    """Number of channel blocks in a tile that gives the most multiply-adds a cycle."""

    def rate(width: int) -> float:
        pixels = shape.row_pixels / _RowTiles.of(arch, shape, width).tiles
        return pixels * width / tile_cycles(pixels, width)

    most = 4 if arch.registers >= _MANY_REGISTERS else 2
    return max(range(1, min(most, blocks) + 1), key=rate)


class _Inner(NamedTuple):
    """The input channels in the order in which they are multiplied."""

    depth: int
    """Channels of an input block: a block of channels, or all of a row-major image."""
    blocks: int
    last: int
    """Channels of the last input block."""

    @staticmethod
    def of(arch: Architecture, shape: ConvShape, x: Value) -> "_Inner":
        depth = arch.block if x.block else shape.in_channels
        blocks = ceil_div(shape.in_channels, depth)
        return _Inner(depth, blocks, shape.in_channels - (blocks - 1) * depth)


@dataclass(frozen=True, slots=True)
class _RowTiles:
    """Division of an output row into tiles that differ by one pixel at most."""

    pixels: int
    """Pixels of the larger tiles, which come first."""
    larger: int
    """Number of larger tiles."""
    tiles: int
    full: bool
    """Whether the larger tiles have all pixels that the registers hold."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Tile sizes in pixels for which the kernel has code. Rows of full tiles are common. So
        they all share a kernel with rows that end in smaller tiles."""
        smaller = self.pixels - 1 if self.full or self.larger < self.tiles else 0
        return (self.pixels, smaller) if smaller else (self.pixels,)

    @property
    def counts(self) -> tuple[tuple[int, int], ...]:
        """Pixels of a tile, and the number of such tiles in a row."""
        return (self.pixels, self.larger), (self.pixels - 1, self.tiles - self.larger)

    @staticmethod
    def of(arch: Architecture, shape: ConvShape, width: int) -> "_RowTiles":
        """The tiles of a row. Registers hold the sums, one set of weights, one scalar, and one
        number that compilers keep for the end of a tile."""
        most = min(12, max(1, (arch.registers - width - 2) // width))
        tiles = ceil_div(shape.row_pixels, most)
        pixels = ceil_div(shape.row_pixels, tiles)
        return _RowTiles(pixels, shape.row_pixels - tiles * (pixels - 1), tiles, pixels == most)


class _Split(NamedTuple):
    """The work of one work item."""

    groups: int
    rows: int
    tiles: int
    """Tiles of each row."""
    across: int
    """Work items that share a row."""
    bands: int
    """Work items that share a group."""
    reads: int
    """How often the whole input is read."""

    @staticmethod
    def of(arch: Architecture, shape: ConvShape, x: Value, groups: int, size: int) -> "_Split":
        """Divide the groups and, if there are several cores, the rows among work items.

        A filter of one tap computes so little with each pixel that reading a large input again for
        each group would take longer. So all groups share a band of the input that stays in the
        cache.
        """
        units, row = arch.compute_units, _RowTiles.of(arch, shape, size)
        far = x.size_bytes > _FAR_BYTES
        bands_wanted = 1 if units == 1 else ceil_div(_BANDS * units, shape.batch)
        one_tap = shape.kernel_h * shape.kernel_w == 1
        if one_tap and shape.rows == 1 and (far or units > 1):
            return _Split._of_pixels(shape, row, groups, bands_wanted, far)
        if one_tap and far:
            return _Split._of_rows(shape, row, groups, bands_wanted)
        if arch.registers < _MANY_REGISTERS:
            bands_wanted = max(bands_wanted, ceil_div(shape.rows * shape.row_pixels, _KEPT_PIXELS))
        bands, rows = _shared_out(shape.rows, bands_wanted)
        return _Split(1, rows, row.tiles, 1, bands, groups)

    @staticmethod
    def _of_rows(shape: ConvShape, row: _RowTiles, groups: int, least: int) -> "_Split":
        band_count = ceil_div(shape.rows, max(1, _near_pixels(shape) // shape.in_w))
        bands, rows = _shared_out(shape.rows, max(band_count, least))
        return _Split(groups, rows, row.tiles, 1, bands, 1)

    @staticmethod
    def _of_pixels(
        shape: ConvShape, row: _RowTiles, groups: int, least: int, far: bool
    ) -> "_Split":
        """A band is some tiles of the only row; its groups are separate work items if the input is
        small."""
        band_count = ceil_div(row.tiles, max(1, _near_pixels(shape) // row.pixels)) if far else 1
        bands, tiles = _shared_out(row.tiles, max(band_count, least))
        return _Split(groups if far else 1, 1, tiles, bands, bands, 1 if far else groups)


def _near_pixels(shape: ConvShape) -> int:
    """Pixels of the input that stay in the second-level cache beside weights."""
    return _BAND_BYTES // (4 * shape.in_channels)


def _shared_out(count: int, parts: int) -> tuple[int, int]:
    """Number of parts, at most ``parts``, and the size of a part; the last one may be smaller."""
    size = ceil_div(count, min(count, parts))
    return ceil_div(count, size), size


class _DirectConv:
    """The kernel for the channel blocks from ``first`` on, in groups of ``size`` blocks."""

    def __init__(
        self,
        node: Node,
        context: Context,
        shape: ConvShape,
        original_shape: ConvShape,
        x: Value,
        first: int,
        groups: int,
        size: int,
    ) -> None:
        """``original_shape`` is the convolution before the padding of columns was copied."""
        self._node, self._arch, self._shape, self._original_shape, self._x = (
            node,
            context.arch,
            shape,
            original_shape,
            x,
        )
        self._context = context
        self._first, self._groups, self._size = first, groups, size
        self._row = _RowTiles.of(self._arch, shape, size)
        self._inner = _Inner.of(self._arch, shape, x)
        # Lanes behind an odd last channel have any values, also NaN, and would be in a pair.
        self._paired = x.half and bool(x.block) and self._inner.last % 2 == 0
        self._few_registers = self._arch.registers < _MANY_REGISTERS
        blocks, taps = self._inner.blocks, shape.kernel_h * shape.kernel_w
        most = max(1, _CHUNK // (self._inner.depth * taps)) if self._few_registers else blocks
        _, self._blocks_each = _shared_out(blocks, ceil_div(blocks, most))

    def launch(self) -> KernelLaunch:
        shape = self._shape
        split = _Split.of(self._arch, shape, self._x, self._groups, self._size)
        source = Source("conv_cpu", self._arch, sized=True, alone=True)
        source.read("x", self._x)
        weights = self._packed(self._context.constants[self._node.operator.inputs[1]])
        if not self._paired:
            source.constant("w", weights)
        else:
            source.constant("w", in_pairs(weights, 4), half=True)
            for name in ("x", "w"):
                source.define(pairs(name, self._arch.block))
        blocks = self._groups * self._size
        bias = packed_bias(self._node, self._context, self._first, blocks)
        source.constant("bias", bias, half=False)
        epilogue = Epilogue(source, self._context, self._node, self._node.epilogue)
        source.write("y", self._context.value(self._node.output))
        form = self._form()
        self._declare_sizes(source, form)
        source.sizes(
            groups_each=split.groups,
            rows_each=split.rows,
            tiles_each=split.tiles,
            across=split.across,
        )
        if form.chunked:
            source.sizes(blocks_each=self._blocks_each)
            pixels = split.rows * split.tiles * self._row.pixels
            source.thread_memory(4 * pixels * self._size * self._arch.block)
        head = self._node.operator.outputs[0]
        source.lines(text(form, partial(_finish, epilogue, head)))
        grid = (ceil_div(self._groups, split.groups), split.bands, shape.batch)
        share = self._groups * self._size / ceil_div(shape.out_channels, self._arch.block)
        macs = round(shape.macs * share)
        return source.finish(grid, (1, 1, 1), touches=self._touches(split, grid), macs=macs)

    def _touches(self, split: _Split, grid: Grid) -> dict[str, Touch]:
        """A work item computes some rows of some groups of blocks; or some pixels, where all pixels
        form one row."""
        shape, y = self._shape, self._context.value(self._node.output)
        samples = along(2, shape.batch)
        blocks = split.groups * self._size
        planes = along(0, grid[0], blocks, self._first)
        if shape.pointwise and split.across > 1:
            row = self._row
            tiles = [min(i * split.tiles, row.tiles) for i in range(split.across + 1)]
            ends = [row.pixels * tile - max(tile - row.larger, 0) for tile in tiles]
            written: Along | None = Along(1, ends[:-1], ends[1:])
            read = written
        else:
            written = along(1, grid[1], split.rows) if shape.rows > 1 else None
            read = shape.rows_read(1, grid[1], split.rows) if shape.rows > 1 else None
        return {
            "x": of_image(self._x, read, samples=samples, pixels=shape.pointwise),
            "y": of_image(y, written, planes, samples, pixels=shape.pointwise),
        }

    def _form(self) -> Form:
        """The form of the kernel. A step has all channels of a few planes, or two channels if their
        number is even."""
        depth = self._inner.depth
        step = 2 if self._inner.last % 2 == 0 and depth % 2 == 0 else 1
        if not self._x.block and depth <= _FEW_PLANES:
            step = depth
        return Form(
            vector=self._arch.vector,
            pixels=self._row.sizes,
            blocks=self._size,
            stride=self._shape.stride_w,
            lanes=depth if self._x.block else 1,
            step=step,
            paired=self._paired,
            skips=self._original_shape.left > self._row.pixels,
            held=self._few_registers,
            chunked=self._blocks_each < self._inner.blocks,
        )

    def _declare_sizes(self, source: Source, form: Form) -> None:
        shape = self._shape
        tap_vectors = self._inner.depth * self._size // form.taken
        source.sizes(
            groups=self._groups,
            first_block=self._first,
            rows=shape.rows,
            larger=self._row.larger,
            tiles=self._row.tiles,
            steps=self._inner.blocks * shape.kernel_h,
            in_blocks=self._inner.blocks,
            steps_full=self._inner.depth // form.step,
            steps_last=self._inner.last // form.step,
            in_channels=shape.in_channels,
            in_h=shape.in_h,
            in_w=shape.in_w,
            plane=shape.in_h * shape.in_w,
            top=shape.top,
            stride_h=shape.stride_h,
            dilation_h=shape.dilation_h,
            dilation_w=shape.dilation_w,
            kernel_h=shape.kernel_h,
            kernel_w=shape.kernel_w,
            tap_vectors=tap_vectors,
            row_vectors=tap_vectors * shape.kernel_w,
            image_left=self._original_shape.left,
            image_right=self._original_shape.left + self._original_shape.in_w,
        )

    def _packed(self, weights: Array) -> Array:
        """The weights in the order of the module's docstring, with zeros where there are none."""
        shape, inner, b = self._shape, self._inner, self._arch.block
        lanes = self._groups * self._size * b
        rows = weights[self._first * b : self._first * b + lanes]
        kernel = (shape.kernel_h, shape.kernel_w)
        full = np.zeros((lanes, inner.blocks * inner.depth, *kernel), weights.dtype)
        full[: rows.shape[0], : shape.in_channels] = rows
        split = full.reshape(self._groups, self._size, b, inner.blocks, inner.depth, *kernel)
        return split.transpose(0, 3, 5, 6, 4, 1, 2)


def _finish(
    epilogue: Epilogue, head: str, value: str, position: Sequence[str], tag: str
) -> list[str]:
    """Lines that apply the epilogue to a finished sum and store the result."""
    lines, result = epilogue.apply(value, head, position, tag)
    return [*lines, f"STORE_y(VEC_y({', '.join(position)}), {result});"]
