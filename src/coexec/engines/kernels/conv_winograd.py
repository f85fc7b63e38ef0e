"""Convolution 3x3 with stride 1 by Winograd's minimal filtering, on CPU cores.

Tiles of (m + 2)^2 input pixels become m^2 output pixels with (m + 2)^2 multiplications per pair of
channels in place of 9 m^2: 4 times fewer with m = 4, 2.25 times with m = 2. There are three steps:
a transform of the input tiles; a matrix product for each of the (m + 2)^2 positions, with tiles as
rows and channels as columns; a transform of the result.

A work item processes bands of tiles, so that the data between the three steps stays in the caches
of its core. Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", arXiv:1509.09308.
"""

from dataclasses import dataclass

import numpy as np

from coexec.arrays import Array, aligned
from coexec.costs.workloads import beyond
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import Context, KernelLaunch, Node, Source, Value, ceil_div
from coexec.engines.kernels.conv_shape import ConvShape, packed_bias, tile_cycles
from coexec.engines.kernels.conv_winograd_text import ROWS, Matrix, products_of, text
from coexec.engines.kernels.epilogue import Epilogue

__all__ = ["fits", "launches", "seconds", "steps"]

_FILTER: dict[int, Matrix] = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: ((1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6), (1 / 24, -1 / 12, 1 / 6), (0, 0, 1)),
}  # fmt: skip
"""The transform G of the paper, for m = 2 and m = 4."""

_NEAR_BYTES = 2**20
"""Approximate size of a core's second-level cache."""
_BAND_BYTES = _NEAR_BYTES // 2
"""Bytes of that cache that a band may fill. If a band fills all of it, those of its pages that fall
on the same places evict each other, and how many do so changes from run to run: the median layer
takes 2 % longer, a tenth of the layers at least 12 % (two cores of Zen 5, a megabyte each)."""
_WAY_BYTES, _LINE_BYTES, _WAYS = 4096, 64, 8
"""First-level cache: bytes of a way, bytes of a line, number of ways. 8 to 12 lines with a distance
of 4 KiB stay in it together."""
_LEAST_TILES = 48
"""Least tiles in a band: with fewer, the transformed weights would be read too often."""


@dataclass(frozen=True, slots=True)
class _Geometry:
    """Division of a convolution into tiles, bands of tiles, and work items."""

    m: int
    tiles_h: int
    tiles_w: int
    band: int
    """Tiles of a band."""
    bands: int
    items: int
    """Number of work items; each processes every ``items``-th band."""
    blocks: int
    """Channel blocks in a matrix product."""
    groups: int
    in_vectors: int
    in_channels: int

    @property
    def size(self) -> int:
        """Edge of an input tile in pixels, overlap included."""
        return self.m + 2

    @property
    def lines(self) -> int:
        """Tiles for which a band has memory: a product writes at least five."""
        return max(self.band, ROWS - 1)

    @property
    def tiles(self) -> int:
        return self.tiles_h * self.tiles_w


def fits(shape: ConvShape, x: Value, arch: Architecture) -> bool:
    """Whether the method can compute this convolution."""
    same = (shape.kernel_h, shape.kernel_w, shape.stride_h, shape.stride_w) == (3, 3, 1, 1)
    plain = (shape.dilation_h, shape.dilation_w, shape.groups) == (1, 1, 1)
    return same and plain and bool(x.block) and not arch.half


def seconds(shape: ConvShape, m: int) -> float:
    """A rough time in seconds on a core with 100 GFLOP/s and 16 GB/s behind its second-level cache.

    Only good for comparing tile sizes and the direct method (`conv_cpu.seconds`).
    """
    tiles = shape.batch * ceil_div(shape.out_h, m) * ceil_div(shape.out_w, m)
    positions = (m + 2) ** 2
    channels = shape.in_channels + shape.out_channels
    flops = 2 * positions * tiles * shape.in_channels * shape.out_channels
    flops += tiles * channels * positions * 4 * (m + 2)  # the transforms
    weights = positions * shape.in_channels * shape.out_channels * 4
    traffic_bytes = 4 * positions * tiles * channels
    bands = max(1, tiles // max(_LEAST_TILES, _BAND_BYTES // (4 * positions * channels)))
    far = weights * bands if weights > _NEAR_BYTES else 0
    return flops / 100e9 + (far + 0.5 * traffic_bytes) / 16e9


def launches(node: Node, context: Context, shape: ConvShape, m: int) -> list[KernelLaunch]:
    """One kernel: a work item runs all three steps of a band."""
    x, y = context.value(node.operator.inputs[0]), context.value(node.output)
    weights = context.constants[node.operator.inputs[1]]
    geometry = _geometry(context.arch, shape, m, x, y)
    b = context.arch.block
    positions = geometry.size**2
    source = Source("conv_winograd", context.arch, sized=True, alone=True)
    source.read("x", x)
    source.constant("u", _packed(weights, geometry, b))
    bias = packed_bias(node, context, 0, geometry.groups * geometry.blocks)
    source.constant("bias", bias)
    epilogue = Epilogue(source, context, node, node.epilogue)
    v_items = positions * geometry.lines * geometry.in_vectors * b
    m_items = positions * geometry.lines * geometry.blocks * geometry.groups * b
    scratch = context.temporary((geometry.items * (v_items + m_items),))
    source.write("scratch", scratch)
    source.write("y", y)
    source.sizes(
        item_floats=v_items + m_items,
        input_floats=v_items,
        bands=geometry.bands,
        lines=geometry.lines,
        band_tiles=geometry.band,
        tiles=geometry.tiles,
        tiles_w=geometry.tiles_w,
        items=geometry.items,
        in_vectors=geometry.in_vectors,
        groups=geometry.groups,
        batch=shape.batch,
        top=shape.top,
        left=shape.left,
    )
    position = ["n", "s", "oy", "ox"]
    applied, result = epilogue.apply("a", node.operator.outputs[0], position)
    finish = [*applied, f"STORE_y(VEC_y({', '.join(position)}), {result});"]
    source.add(text(m, geometry.blocks, context.arch.vector, b, finish))
    return [source.finish((geometry.items,), (1, 1, 1))]


def steps(arch: Architecture, shape: ConvShape, x: Value, y: Value, m: int) -> dict[str, float]:
    """Terms of the kernel's workload: counts of the loops of `conv_winograd_text`."""
    g = _geometry(arch, shape, m, x, y)
    positions = g.size**2
    depth = g.in_vectors * arch.block
    times = positions * shape.batch * g.groups
    cycles = ends = 0.0
    for band in range(g.bands):
        count = min(g.band, g.tiles - band * g.band)
        for rows, parts in products_of(count):
            cycles += times * parts * depth * max(rows * g.blocks / 2, 4.0)
            ends += times * parts
    inside = _inside(shape, g)
    tiles = shape.batch * g.tiles * positions
    read, written = g.in_vectors, g.groups * g.blocks
    crowded = sum(n * _crowded(g.lines * n * arch.block * 4, positions) for n in (read, written))
    band_bytes = 4.0 * positions * g.band * (read + written) * arch.block
    sums_bytes = 4.0 * positions * g.band * written * arch.block
    weights = 4.0 * positions * depth * written * arch.block
    bands = shape.batch * g.bands
    return {
        "cycles": cycles,
        "ends": ends,
        "inside": float(shape.batch * inside * positions * read),
        "checked": float(shape.batch * (g.tiles - inside) * positions * read),
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

    def along(tiles: int, before: int, size: int) -> int:
        first = ceil_div(before, g.m)
        last = (size + before - g.size) // g.m
        return max(0, min(last, tiles - 1) - first + 1)

    return along(g.tiles_h, shape.top, shape.in_h) * along(g.tiles_w, shape.left, shape.in_w)


def _crowded(apart_bytes: int, positions: int) -> float:
    """Fraction of a tile's positions that evict each other from the first-level cache, as their
    distance is a multiple of a large power of two."""
    places = {k * apart_bytes % _WAY_BYTES // _LINE_BYTES for k in range(positions)}
    return max(0.0, 1.0 - _WAYS * len(places) / positions)


def _geometry(arch: Architecture, shape: ConvShape, m: int, x: Value, y: Value) -> _Geometry:
    tiles_h, tiles_w = ceil_div(shape.out_h, m), ceil_div(shape.out_w, m)
    tiles = tiles_h * tiles_w
    near = _BAND_BYTES // (4 * (m + 2) ** 2 * (shape.in_channels + shape.out_channels))
    units = arch.compute_units
    band = min(max(near, _LEAST_TILES), ceil_div(tiles * shape.batch, units), tiles)
    bands = ceil_div(tiles, band)
    band = ceil_div(tiles, bands)
    most = 4 if arch.registers >= 32 else 2
    blocks = min(range(most, 0, -1), key=lambda n: ceil_div(y.slices, n) * tile_cycles(ROWS, n))
    return _Geometry(
        m,
        tiles_h,
        tiles_w,
        band,
        bands,
        min(bands * shape.batch, units),
        blocks,
        ceil_div(y.slices, blocks),
        x.slices,
        shape.in_channels,
    )


def _packed(weights: Array, geometry: _Geometry, b: int) -> Array:
    """G w G^T as [position][group][input channel][block of the group][lane]."""
    g = np.array(_FILTER[geometry.m], np.float64)
    outs, ins = weights.shape[:2]
    columns = geometry.groups * geometry.blocks * b
    filters = np.einsum("ik,ockl,jl->ijco", g, weights.astype(np.float64), g, optimize=True)
    full = np.zeros((geometry.size**2, geometry.in_vectors * b, columns), np.float32)
    full[:, :ins, :outs] = filters.reshape(geometry.size**2, ins, outs)
    split = full.reshape(*full.shape[:2], geometry.groups, geometry.blocks * b)
    return aligned(split.transpose(0, 2, 1, 3))
