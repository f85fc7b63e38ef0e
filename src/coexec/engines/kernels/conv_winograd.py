"""Convolution with stride 1 by Winograd's minimal filtering, on CPU cores.

With a filter of 3x3, tiles of 6x6 input pixels become 4x4 output pixels with 36 multiplications for
a pair of channels in place of 144. Filters of 5x5 work alike, and those of one row or column, where
a tile is a part of a row or column. There are three steps: a transform of the input tiles; a matrix
product for each position of a tile, with tiles as rows and channels as columns; a transform of the
result.

A work item processes a band of tiles, so that the data between the three steps stays in the caches
of its core. Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", arXiv:1509.09308.
"""

from dataclasses import dataclass

import numpy as np

from coexec.arrays import Array, aligned_zeros
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import (
    Context,
    KernelLaunch,
    Node,
    Source,
    Value,
    ceil_div,
)
from coexec.engines.kernels.conv_shape import ConvShape, packed_bias, tile_cycles
from coexec.engines.kernels.conv_winograd_text import (
    ROWS,
    WinogradTile,
    entering,
    leaving,
    multiplying,
    products_of,
    text,
)
from coexec.engines.kernels.epilogue import Epilogue
from coexec.engines.kernels.touches import Along, Touch, along, of_image
from coexec.engines.kernels.winograd_transforms import LARGEST, Filtering, filtering

_MOST_OUTPUTS, _MOST_INPUTS, _MOST_IN_LINE = 5, 8, LARGEST
"""Largest edges of a tile in output and input pixels, and the latter where the filter has one row
or column. The errors of both axes multiply. In relation to the largest sum of 128 channels they are
2e-6 with 4 x 4 outputs of 3x3 taps, 4e-6 with 5 x 5 and with 4 x 1 of 7x1; those of the direct
method are 1e-6. With 6 x 6, which take 2 % less time in yolov2 and vgg16, they are 1e-5, and with 9
x 9 inputs more than 1e-4."""


def tiles_for(shape: ConvShape, x: Value) -> list[WinogradTile]:
    """The tiles with which this method can compute a convolution; none if it cannot."""
    return tiles_of(shape) if x.block else []


def tiles_of(shape: ConvShape) -> list[WinogradTile]:
    """The tiles with which this method can compute a convolution of blocks; none if it cannot.

    They have equal edges: others take up to 5 % less time for some sizes, but layers then share
    fewer kernels.
    """
    plain = (shape.stride_h, shape.stride_w, shape.dilation_h, shape.dilation_w, shape.groups)
    taps = shape.kernel_h, shape.kernel_w
    if plain != (1, 1, 1, 1, 1) or taps == (1, 1):
        return []
    largest = _MOST_IN_LINE if 1 in taps else _MOST_INPUTS
    return [
        WinogradTile(*(filtering(m if r > 1 else 1, r) for r in taps))
        for m in range(2, min(_MOST_OUTPUTS, largest + 1 - max(taps)) + 1)
    ]


_NEAR_BYTES = 2**20
"""Approximate size of a core's second-level cache."""
_BAND_BYTES = _NEAR_BYTES // 2
"""Bytes of that cache that a band may fill. If a band fills all of it, those of its pages that fall
on the same places evict each other, and how many do so changes from run to run: the median layer
takes 2 % longer, a tenth of the layers at least 12 % (two cores of Zen 5, a megabyte each)."""
_WAY_BYTES, _LINE_BYTES, _WAYS = 4096, 64, 8
"""First-level cache: bytes of a way, bytes of a line, number of ways. 8 to 12 lines with a distance
of 4 KiB stay in it together."""
_PACKED_ITEMS = 2**17
"""Transformed weights that are made at a time."""
_LEAST_TILES = 48
"""Least tiles in a band: with fewer, the transformed weights would be read too often."""


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Division of a convolution into tiles, bands of tiles, and work items."""

    tile: WinogradTile
    tiles_h: int
    tiles_w: int
    band: int
    """Tiles of a band."""
    bands: int
    blocks: int
    """Channel blocks in a matrix product."""
    groups: int
    in_vectors: int
    in_channels: int

    @property
    def lines(self) -> int:
        """Tiles for which a band has memory: a product writes at least five."""
        return max(self.band, ROWS - 1)

    @property
    def tiles(self) -> int:
        return self.tiles_h * self.tiles_w


def seconds(shape: ConvShape, tile: WinogradTile, units: int = 1) -> float:
    """A rough time in seconds on ``units`` cores with 140 GFLOP/s and 23 GB/s behind its
    second-level cache.

    Only good for comparing tile sizes and the direct method (`conv_cpu.seconds`): of 17 sizes with
    2 to 7 tiles each it chooses the best or one that takes up to 7 % longer (one core of Zen 5).
    """
    if units > 1:
        return min(_seconds_of_bands(shape, tile, units), _seconds_apart(shape, tile, units))
    tiles, positions = tile.count(shape), tile.positions
    channels = shape.in_channels + shape.out_channels
    flops = 2 * positions * tiles * shape.in_channels * shape.out_channels
    flops += tiles * channels * positions * 2 * tile.adds
    weights = positions * shape.in_channels * shape.out_channels * 4
    traffic_bytes = 4 * positions * tiles * channels
    bands = max(1, tiles // max(_LEAST_TILES, _BAND_BYTES // (4 * positions * channels)))
    far = weights * bands if weights > _NEAR_BYTES else 0
    return flops / 140e9 + (far + 0.5 * traffic_bytes) / 23e9


def _seconds_of_bands(shape: ConvShape, tile: WinogradTile, units: int) -> float:
    """As `seconds`, of several cores that compute bands of tiles: each reads all weights."""
    positions, channels = tile.positions, shape.in_channels + shape.out_channels
    band, bands = _bands(shape, tile, units)
    turns = ceil_div(bands * shape.batch, units)
    products = positions * shape.in_channels * shape.out_channels
    flops = 2 * _lines(band) * products + band * channels * positions * 2 * tile.adds
    reads = turns if 4 * products > _NEAR_BYTES else 1
    return turns * flops / _TEAM_FLOPS + reads * 4 * products / _WEIGHTS_BYTES


def _seconds_apart(shape: ConvShape, tile: WinogradTile, units: int) -> float:
    """As `seconds`, of several cores that run the steps one after the other."""
    positions, channels = tile.positions, shape.in_channels + shape.out_channels
    tiles = tile.count(shape)
    products = positions * shape.in_channels * shape.out_channels
    flops = 2 * _lines(tiles) * products + tiles * channels * positions * 2 * tile.adds
    moved_bytes = 4 * products + 2 * 4 * positions * tiles * channels
    return (flops / _TEAM_FLOPS + moved_bytes / _TEAM_BYTES) / units + 2 * _BARRIER_S


def _bands(shape: ConvShape, tile: WinogradTile, units: int) -> tuple[int, int]:
    """Tiles of a band, and bands of a sample: as many for each core, if a quarter more tiles than a
    band should have allow that."""
    tiles = tile.count(shape)
    of_core = min(ceil_div(tiles, units), tiles // shape.batch)
    channels = shape.in_channels + shape.out_channels
    most = max(_BAND_BYTES // (4 * tile.positions * channels), _LEAST_TILES)
    if units > 1:
        most += most // 4
    bands = ceil_div(tiles // shape.batch, ceil_div(of_core, ceil_div(of_core, most)))
    return ceil_div(tiles // shape.batch, bands), bands


def _lines(count: int) -> int:
    """Lines that products of ``count`` tiles compute."""
    return sum(rows * products for rows, products in products_of(count))


_TEAM_FLOPS, _TEAM_BYTES, _WEIGHTS_BYTES = 140e9, 22e9, 14e9
"""A second's work of a core in a team, in proportion to `conv_cpu.seconds`; scalars between steps,
and weights that are new to its cache."""
_BARRIER_S = 7e-6
"""Seconds that cores lose where a step waits for all of the step before."""


def launches(
    node: Node, context: Context, shape: ConvShape, tile: WinogradTile
) -> list[KernelLaunch]:
    """One kernel, of which a work item runs all three steps of a band; or, on several cores, a
    kernel for each step, where that is faster: bands of few tiles read all weights for each."""
    units = context.arch.compute_units
    x, y = context.value(node.operator.inputs[0]), context.value(node.output)
    geometry = _geometry(context.arch, shape, tile, x, y)
    if units > 1 and _seconds_apart(shape, tile, units) < _seconds_of_bands(shape, tile, units):
        return _apart(node, context, shape, geometry, x, y)
    b = context.arch.block
    positions = tile.positions
    source = Source("conv_winograd", context.arch, sized=True, alone=True)
    source.read("x", x)
    weights = context.constants[node.operator.inputs[1]]
    source.constant("u", _packed(weights, geometry, b), half=False)
    finish = _declare(source, node, context, geometry)
    v_items = positions * geometry.lines * geometry.in_vectors * b
    m_items = positions * geometry.lines * geometry.blocks * geometry.groups * b
    source.thread_memory(4 * (v_items + m_items))
    source.write("y", y)
    source.sizes(
        input_floats=v_items,
        lines=geometry.lines,
        band_tiles=geometry.band,
        tiles=geometry.tiles,
        tiles_w=geometry.tiles_w,
        in_vectors=geometry.in_vectors,
        in_channels=geometry.in_channels,
        groups=geometry.groups,
        top=shape.top,
        left=shape.left,
    )
    source.add(text(tile, geometry.blocks, context.arch.vector, b, finish))
    touches = _touches(shape, geometry, x, y)
    grid = geometry.bands, shape.batch
    return [source.finish(grid, (1, 1, 1), touches=touches, macs=tile.macs(shape))]


def _apart(
    node: Node, context: Context, shape: ConvShape, g: _Geometry, x: Value, y: Value
) -> list[KernelLaunch]:
    """A kernel for each step: the transforms compute rows of tiles of a block of channels, the
    products a group of blocks at a position."""
    arch, v = context.arch, context.arch.vector
    positions, tiles = g.tile.positions, shape.batch * g.tiles
    lines = max(tiles, ROWS - 1)
    names = ("v", "sums")
    inputs, sums = (
        context.temporary((positions, lines, vectors * arch.block))
        for vectors in (g.in_vectors, g.groups * g.blocks)
    )
    row_of_tiles = [
        "const int n = item_2, first = item_1 * tiles_w, count = tiles_w;",
        "const int line = n * tiles + first;",
    ]
    sizes = {"lines": lines, "tiles": g.tiles, "tiles_w": g.tiles_w, "in_vectors": g.in_vectors}
    by_row, samples = along(1, g.tiles_h, g.tile.h.m), along(2, shape.batch)
    enter, multiply, leave = (
        Source(f"winograd_{step}", arch, sized=True, alone=True)
        for step in ("enter", "multiply", "leave")
    )
    enter.read("x", x)
    enter.write("v", inputs)
    enter.sizes(**sizes, top=shape.top, left=shape.left)
    enter.lines(row_of_tiles)
    enter.add(entering(g.tile, v, ("item_0", "item_0 + 1")))
    read = along(1, g.tiles_h, g.tile.h.m, -shape.top, g.tile.h.size)
    entered = {"x": of_image(x, read, along(0, g.in_vectors), samples)}
    multiply.read("v", inputs)
    weights = _packed(context.constants[node.operator.inputs[1]], g, arch.block)
    multiply.constant("u", weights, half=False)
    multiply.write("sums", sums)
    multiply.sizes(lines=lines, count=tiles, in_vectors=g.in_vectors)
    multiply.sizes(groups=g.groups, in_channels=g.in_channels)
    multiply.add(f"  __global {v}* p = (__global {v}*)sums;")
    multiply.add(
        multiplying(g.blocks, v, arch.block, ("item_1", "item_1 + 1"), ("item_0", "item_0 + 1"))
    )
    plane = along(1, positions)
    multiplied = {
        name: Touch((1, positions, lines, value.shape[2]), planes=plane)
        for name, value in zip(names, (inputs, sums), strict=True)
    }
    leave.read("sums", sums)
    finish = _declare(leave, node, context, g)
    leave.write("y", y)
    leave.sizes(**sizes, groups=g.groups)
    leave.lines(row_of_tiles)
    leave.add(f"  __global const {v}* p = (__global const {v}*)sums;")
    leave.add(leaving(g.tile, g.blocks, v, finish, ("item_0", "item_0 + 1")))
    left = {"y": of_image(y, by_row, along(0, y.slices), samples)}
    one = (1, 1, 1)
    return [
        enter.finish((g.in_vectors, g.tiles_h, shape.batch), one, touches=entered),
        multiply.finish((g.groups, positions), one, touches=multiplied, macs=g.tile.macs(shape)),
        leave.finish((y.slices, g.tiles_h, shape.batch), one, touches=left),
    ]


def _declare(source: Source, node: Node, context: Context, geometry: _Geometry) -> list[str]:
    """Declare bias and epilogue. Returns the lines that store a finished sum."""
    bias = packed_bias(node, context, 0, geometry.groups * geometry.blocks)
    source.constant("bias", bias)
    epilogue = Epilogue(source, context, node, node.epilogue)
    position = ["n", "s", "oy", "ox"]
    applied, result = epilogue.apply("a", node.operator.outputs[0], position)
    return [*applied, f"STORE_y(VEC_y({', '.join(position)}), {result});"]


def _touches(shape: ConvShape, g: _Geometry, x: Value, y: Value) -> dict[str, Touch]:
    """A work item reads and writes the rows of its band."""
    h = g.tile.h
    first = [band * g.band // g.tiles_w * h.m for band in range(g.bands)]
    last = [(min((b + 1) * g.band, g.tiles) - 1) // g.tiles_w * h.m for b in range(g.bands)]
    read = Along(0, [row - shape.top for row in first], [row - shape.top + h.size for row in last])
    written = Along(0, first, [row + h.m for row in last])
    samples = along(1, shape.batch)
    return {
        "x": of_image(x, read, samples=samples),
        "y": of_image(y, written, samples=samples),
    }


def beyond(size_bytes: float, cache_bytes: int) -> float:
    """Share of ``size_bytes`` that does not stay in a cache: all of it from twice the cache's size
    on."""
    return min(1.0, max(0.0, size_bytes / cache_bytes - 1.0))


def steps(
    arch: Architecture, shape: ConvShape, x: Value, y: Value, tile: WinogradTile
) -> dict[str, float]:
    """Terms of the kernel's workload: counts of the loops of `conv_winograd_text`."""
    g = _geometry(arch, shape, tile, x, y)
    positions = tile.positions
    depth = g.in_vectors * arch.block
    times = positions * shape.batch * g.groups
    cycles = ends = 0.0
    for band in range(g.bands):
        count = min(g.band, g.tiles - band * g.band)
        for rows, parts in products_of(count):
            cycles += times * parts * shape.in_channels * max(rows * g.blocks / 2, 4.0)
            ends += times * parts
    inside = _inside(shape, g)
    moved = positions * tile.adds
    tiles = shape.batch * g.tiles * moved
    read, written = g.in_vectors, g.groups * g.blocks
    crowded = sum(n * _crowded(g.lines * n * arch.block * 4, positions) for n in (read, written))
    band_bytes = 4.0 * positions * g.band * (read + written) * arch.block
    sums_bytes = 4.0 * positions * g.band * written * arch.block
    weights = 4.0 * positions * depth * written * arch.block
    bands = shape.batch * g.bands
    return {
        "cycles": cycles,
        "ends": ends,
        "inside": float(shape.batch * inside * moved * read),
        "checked": float(shape.batch * (g.tiles - inside) * moved * read),
        "collected": float(tiles * y.slices),
        "crowded": tiles * crowded,
        "transformed": weights,
        "again": weights * (bands - 1),
        "streamed": bands * weights * beyond(weights, _NEAR_BYTES),
        "spilled": bands * band_bytes * beyond(band_bytes, _NEAR_BYTES),
        "sums spilled": bands * sums_bytes * beyond(sums_bytes, _BAND_BYTES),
    }


def _inside(shape: ConvShape, g: _Geometry) -> int:
    """Number of tiles that read no padding."""

    def along(of: Filtering, tiles: int, before: int, size: int) -> int:
        first = ceil_div(before, of.m)
        last = (size + before - of.size) // of.m
        return max(0, min(last, tiles - 1) - first + 1)

    rows = along(g.tile.h, g.tiles_h, shape.top, shape.in_h)
    return rows * along(g.tile.w, g.tiles_w, shape.left, shape.in_w)


def _crowded(apart_bytes: int, positions: int) -> float:
    """Fraction of a tile's positions that evict each other from the first-level cache, as their
    distance is a multiple of a large power of two."""
    places = {k * apart_bytes % _WAY_BYTES // _LINE_BYTES for k in range(positions)}
    return max(0.0, 1.0 - _WAYS * len(places) / positions)


def _geometry(
    arch: Architecture, shape: ConvShape, tile: WinogradTile, x: Value, y: Value
) -> _Geometry:
    tiles_h, tiles_w = ceil_div(shape.out_h, tile.h.m), ceil_div(shape.out_w, tile.w.m)
    band, bands = _bands(shape, tile, arch.compute_units)
    most = 4 if arch.registers >= 32 else 2
    blocks = min(range(most, 0, -1), key=lambda n: ceil_div(y.slices, n) * tile_cycles(ROWS, n))
    return _Geometry(
        tile,
        tiles_h,
        tiles_w,
        band,
        bands,
        blocks,
        ceil_div(y.slices, blocks),
        x.slices,
        shape.in_channels,
    )


def _packed(weights: Array, geometry: _Geometry, b: int) -> Array:
    """G w G^T as [position][group][input channel][block of the group][lane].

    Some input channels at a time, whose numbers stay in a cache.
    """
    tile, lanes = geometry.tile, geometry.blocks * b
    outs, ins = weights.shape[:2]
    g = np.kron(*(np.array(along.filter, np.float64) for along in (tile.h, tile.w)))
    packed = aligned_zeros((tile.positions, geometry.groups, geometry.in_vectors * b, lanes))
    taps = weights.reshape(outs, ins, -1).transpose(2, 1, 0)
    whole = outs // lanes
    step = max(1, _PACKED_ITEMS // (tile.positions * outs))
    for first in range(0, ins, step):
        part = taps[:, first : first + step].astype(np.float64)
        filters = (g @ part.reshape(len(taps), -1)).reshape(len(g), -1, outs)
        end = first + filters.shape[1]
        groups = filters[..., : whole * lanes].reshape(*filters.shape[:2], whole, lanes)
        packed[:, :whole, first:end] = groups.transpose(0, 2, 1, 3)
        packed[:, whole:, first:end, : outs % lanes] = filters[:, None, :, whole * lanes :]
    return packed
