"""Convolution on GPUs with fast local memory: an implicit matrix product in tiles.

Rows are output pixels, columns are output channels, and the inner axis is (ky, kx, input block,
lane). A group of work items copies a tile of inputs and a tile of weights to local memory while it
multiplies the previous tiles. Each work item keeps a square of sums in registers. Inputs outside of
the image are zero. If a layer has too few tiles to fill the processor, several parts of a group, or
several groups, share the inner axis, and their sums are added.

The scheme is implicit GEMM as in cuDNN (Chetlur et al., arXiv:1410.0759).
"""

from dataclasses import dataclass, replace

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
from coexec.engines.kernels.conv_shape import ConvShape, in_turns, packed_bias
from coexec.engines.kernels.epilogue import Epilogue

_DEPTH = 16
"""Scalars of a tile along the inner axis: four blocks of four lanes."""


@dataclass(frozen=True, slots=True)
class TileShape:
    """Division of the work. A work item sums 4 * ``rows`` pixels times 4 * ``columns`` channels."""

    items_x: int
    items_y: int
    rows: int
    columns: int
    parts: int = 1
    """Parts of a group. Each has ``items_x * items_y`` work items and every ``parts``-th tile."""
    splits: int = 1
    """Groups that share the inner axis; a separate kernel adds their sums."""

    @property
    def pixels(self) -> int:
        return self.items_x * 4 * self.rows

    @property
    def channels(self) -> int:
        return self.items_y * 4 * self.columns

    @property
    def items(self) -> int:
        return self.items_x * self.items_y

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory: two tiles for each part, and memory for adding the parts' sums."""
        tiles = 2 * self.parts * _DEPTH * (self.pixels + self.channels) * 4
        return tiles + self.parts // 2 * self.items * 16

    def groups(self, shape: ConvShape) -> int:
        pixels = shape.batch * shape.out_h * shape.out_w
        return ceil_div(pixels, self.pixels) * ceil_div(shape.out_channels, self.channels)

    def inner_tiles(self, shape: ConvShape) -> int:
        """Tiles along the inner axis that a part of a group multiplies, one after the other."""
        return ceil_div(_inner(shape), _DEPTH * self.parts * self.splits)


_TILE_SHAPES = (
    TileShape(16, 8, 1, 2),
    TileShape(8, 8, 1, 2, 2),
    TileShape(8, 8, 1, 1, 4),
    TileShape(4, 8, 1, 1, 8),
)
"""From large tiles, which load the least for each sum, to small tiles, which give more groups."""

_LARGE_TILE_SHAPES = (TileShape(16, 16, 2, 1), TileShape(16, 16, 2, 2))


def fits(shape: ConvShape, x: Value) -> bool:
    """Whether the kernel supports a convolution: blocks of four lanes, and one group."""
    return x.block == 4 and shape.groups == 1


def tile_shapes(shape: ConvShape, arch: Architecture) -> list[TileShape]:
    """Candidates, the most promising first; none if no group fits this processor.

    By rule, the first is the largest tile that gives every compute unit two groups: one group
    computes while the other waits. If no tile does, it is a small one, with the inner axis split.
    On an H200, tiles of 128 pixels and more are slower than more groups of half the size, so they
    are for measured tuning only.
    """
    units = arch.compute_units
    allowed = [
        t
        for t in (*_TILE_SHAPES, *_LARGE_TILE_SHAPES)
        if t.items * t.parts <= arch.max_group and t.local_bytes <= arch.local_bytes
    ]
    if not allowed:
        return []
    usual = [t for t in allowed if t in _TILE_SHAPES] or allowed
    few = -1 if shape.out_h * shape.out_w <= 64 else max(-2, -len(usual))
    best = next((t for t in usual if t.groups(shape) >= 2 * units), usual[few])
    depth = ceil_div(_inner(shape), _DEPTH * best.parts)
    units_per_group = units // max(1, best.groups(shape))
    splits = max(1, min(units_per_group, depth // 8, 16))
    first = replace(best, splits=splits)
    return [first, *(t for t in allowed if t != first)]


def steps(arch: Architecture, shape: ConvShape, tile_shape: TileShape) -> dict[str, float]:
    """Terms of the kernel's workload: launches, and tiles in turns."""
    groups = tile_shape.groups(shape) * tile_shape.splits
    launches = 2.0 if tile_shape.splits > 1 else 1.0
    return {"launches": launches, **in_turns(arch, tile_shape.inner_tiles(shape), groups)}


def _inner(shape: ConvShape) -> int:
    return shape.kernel_h * shape.kernel_w * ceil_div(shape.in_channels, 4) * 4


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
    partial = context.temporary((tile_shape.splits, y.slices, tile.all_pixels, 4))
    source.write("y", partial)
    at = f"((split * {y.slices} + block) * {tile.all_pixels} + m)"
    source.add(tile.text([f"((__global float4*)y)[{at}] = total;"]))
    kernels.append(source.finish(tile.grid, tile.group))
    kernels.append(_sum_launch(node, context, shape, partial, y, bias, tile_shape.splits))
    return kernels


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
        f"  const int m = get_global_id(0), block = get_global_id(1);\n"
        f"  const int n = m / {plane}, oy = m % {plane} / {shape.out_w}, ox = m % {shape.out_w};\n"
        f"  float4 sum = LOAD_bias(block);\n"
        f"  for (int i = 0; i < {splits}; i++)\n"
        f"    sum += ((__global const float4*)p)[(i * {y.slices} + block) * {pixels} + m];"
    )
    lines, result = epilogue.apply("sum", node.operator.outputs[0], ["n", "block", "oy", "ox"])
    source.lines(lines)
    source.add(f"  STORE_y(VEC_y(n, block, oy, ox), {result});")
    return source.finish((pixels, y.slices))


def _packed(weights: Array, tile: "_TiledConv") -> Array:
    """The weights as [inner axis][output channel], filled up to whole tiles with zeros."""
    shape = tile.shape
    outs, ins = weights.shape[:2]
    full = np.zeros((shape.kernel_h, shape.kernel_w, tile.in_blocks * 4, tile.columns), np.float32)
    full[:, :, :ins, :outs] = weights.transpose(2, 3, 1, 0)
    flat = full.reshape(-1, tile.columns)
    rows = tile.steps * tile.tile_shape.parts * tile.tile_shape.splits * _DEPTH
    return np.concatenate([flat, np.zeros((rows - len(flat), tile.columns), np.float32)])


class _TiledConv:
    """The text of the kernel for one convolution."""

    def __init__(self, shape: ConvShape, tile_shape: TileShape, x: Value, y: Value) -> None:
        self.shape = shape
        self.tile_shape = tile_shape
        self.in_blocks = x.slices
        self._rest = shape.in_channels % 4
        self._out_blocks = y.slices
        self.all_pixels = shape.batch * shape.out_h * shape.out_w
        self.columns = ceil_div(y.slices * 4, tile_shape.channels) * tile_shape.channels
        self.steps = tile_shape.inner_tiles(shape)
        self._blocks = _inner(shape) // 4
        self.group = (tile_shape.items, tile_shape.parts, 1)
        self.grid = (
            ceil_div(self.all_pixels, tile_shape.pixels) * tile_shape.items,
            (self.columns // tile_shape.channels) * tile_shape.parts,
            tile_shape.splits,
        )

    def text(self, store: list[str]) -> str:
        """The body; ``store`` is for ``total``, four channels (``block``) of pixel ``m``."""
        t = self.tile_shape
        return "\n".join(
            [
                "  const int item = get_local_id(0), part = get_local_id(1);",
                f"  const int tx = item % {t.items_x}, ty = item / {t.items_x};",
                f"  const int first = get_group_id(0) * {t.pixels};",
                f"  const int column = get_group_id(1) * {t.channels}, split = get_group_id(2);",
                f"  __local float xs[2][{t.parts}][{_DEPTH}][{t.pixels}];",
                f"  __local float4 ws[2][{t.parts}][{_DEPTH}][{t.channels // 4}];",
                *self._loaders(),
                *(f"  float4 a{r}_{c} = (float4)(0.0f);" for r, c in self._sums()),
                f"  int tile = split * {self.steps * t.parts} + part;",
                *self._load("tile"),
                f"  for (int step = 0; step < {self.steps}; step++) {{",
                "    const int now = step & 1;",
                *self._keep(),
                "    barrier(CLK_LOCAL_MEM_FENCE);",
                f"    tile += {t.parts};",
                f"    if (step + 1 < {self.steps}) {{",
                *self._load("tile"),
                "    }",
                "    #pragma unroll",
                f"    for (int k = 0; k < {_DEPTH}; k++) {{",
                *self._multiply(),
                "    }",
                "  }",
                *self._add_parts(),
                *self._finish(store),
            ]
        )

    def _sums(self) -> list[tuple[int, int]]:
        t = self.tile_shape
        return [(r, c) for r in range(4 * t.rows) for c in range(t.columns)]

    @property
    def _x_loads(self) -> int:
        return ceil_div(_DEPTH // 4 * self.tile_shape.pixels, self.tile_shape.items)

    @property
    def _w_loads(self) -> int:
        return ceil_div(_DEPTH * self.tile_shape.channels // 4, self.tile_shape.items)

    def _loaders(self) -> list[str]:
        """Lines that declare the vectors of inputs and weights that an item loads of each tile."""
        s, t = self.shape, self.tile_shape
        plane = s.out_h * s.out_w
        text = []
        for i in range(self._x_loads):
            text += [
                f"  const int xv{i} = item + {i * t.items}, xp{i} = xv{i} % {t.pixels}, "
                f"xq{i} = xv{i} / {t.pixels};",
                f"  const int m{i} = first + xp{i};",
                f"  const int n{i} = m{i} / {plane};",
                f"  const int y{i} = m{i} % {plane} / {s.out_w} * {s.stride_h} - {s.top};",
                f"  const int x{i} = m{i} % {s.out_w} * {s.stride_w} - {s.left};",
                f"  float4 fx{i};",
            ]
        text += [f"  float4 fw{i};" for i in range(self._w_loads)]
        return text

    def _load(self, tile: str) -> list[str]:
        s, t = self.shape, self.tile_shape
        text = []
        for i in range(self._x_loads):
            text += [
                f"    {{ const int q = {tile} * {_DEPTH // 4} + xq{i};",
                f"      const int tap = q / {self.in_blocks}, s = q % {self.in_blocks};",
                f"      const int iy = y{i} + tap / {s.kernel_w} * {s.dilation_h};",
                f"      const int ix = x{i} + tap % {s.kernel_w} * {s.dilation_w};",
                f"      fx{i} = (float4)(0.0f);",
                f"      if (q < {self._blocks} && m{i} < {self.all_pixels}"
                f" && iy >= 0 && iy < {s.in_h} && ix >= 0 && ix < {s.in_w})",
                f"        fx{i} = LOAD_x(VEC_x(n{i}, s, iy, ix));",
            ]
            if self._rest:
                # Lanes past the last channel may be NaN or infinity, and 0 times that is not 0.
                lanes = "yzw"[self._rest - 1 :]
                zeros = f"(float{len(lanes)})(0.0f)" if len(lanes) > 1 else "0.0f"
                text.append(f"      if (s == {self.in_blocks - 1}) fx{i}.{lanes} = {zeros};")
            text.append("    }")
        for i in range(self._w_loads):
            vectors = t.channels // 4
            text.append(
                f"    {{ const int v = item + {i * t.items};"
                f" fw{i} = LOAD_w(({tile} * {_DEPTH} + v / {vectors}) * {self.columns // 4}"
                f" + column / 4 + v % {vectors}); }}"
            )
        return text

    def _keep(self) -> list[str]:
        """Lines that store loaded vectors in local memory; some items of large groups have none."""
        t = self.tile_shape
        text = []
        for i in range(self._x_loads):
            guard = f"if (xq{i} < {_DEPTH // 4}) " if self._spare(_DEPTH // 4 * t.pixels) else ""
            lanes = "".join(
                f" xs[now][part][xq{i} * 4 + {lane}][xp{i}] = fx{i}.{axis};"
                for lane, axis in enumerate("xyzw")
            )
            text.append(f"    {guard}{{{lanes} }}")
        for i in range(self._w_loads):
            vectors = t.channels // 4
            spare = self._spare(_DEPTH * vectors)
            guard = f"if (item + {i * t.items} < {_DEPTH * vectors}) " if spare else ""
            at = f"[(item + {i * t.items}) / {vectors}][(item + {i * t.items}) % {vectors}]"
            text.append(f"    {guard}ws[now][part]{at} = fw{i};")
        return text

    def _spare(self, vectors: int) -> bool:
        return vectors % self.tile_shape.items != 0

    def _multiply(self) -> list[str]:
        t = self.tile_shape
        text = []
        for c in range(t.columns):
            text.append(f"      const float4 w{c} = ws[now][part][k][{c * t.items_y} + ty];")
        for g in range(t.rows):
            at = f"&xs[now][part][k][{g * t.items_x * 4} + tx * 4]"
            text.append(f"      const float4 p{g} = *(__local const float4*)({at});")
        for r, c in self._sums():
            text.append(f"      a{r}_{c} += w{c} * p{r // 4}.{'xyzw'[r % 4]};")
        return text

    def _add_parts(self) -> list[str]:
        """Lines that add the sums of all parts of the group in local memory."""
        t = self.tile_shape
        if t.parts == 1:
            return []
        text = [f"  __local float4 shared[{t.parts // 2}][{t.items}];"]
        half = t.parts // 2
        while half:
            for r, c in self._sums():
                text += [
                    "  barrier(CLK_LOCAL_MEM_FENCE);",
                    f"  if (part >= {half} && part < {2 * half})"
                    f" shared[part - {half}][item] = a{r}_{c};",
                    "  barrier(CLK_LOCAL_MEM_FENCE);",
                    f"  if (part < {half}) a{r}_{c} += shared[part][item];",
                ]
            half //= 2
        return [*text, "  if (part > 0) return;"]

    def _finish(self, store: list[str]) -> list[str]:
        s, t = self.shape, self.tile_shape
        plane = s.out_h * s.out_w
        text = []
        for r in range(4 * t.rows):
            at = f"{r // 4 * t.items_x * 4} + tx * 4 + {r % 4}"
            text += [
                f"  {{ const int m = first + {at};",
                f"    if (m < {self.all_pixels}) {{",
                f"    const int n = m / {plane}, oy = m % {plane} / {s.out_w}, ox = m % {s.out_w};",
            ]
            for c in range(t.columns):
                text += [
                    f"    {{ const int block = column / 4 + {c * t.items_y} + ty;",
                    f"      if (block < {self._out_blocks}) {{",
                    f"        const float4 total = a{r}_{c};",
                    *indented(store, 4),
                    "      }",
                    "    }",
                ]
            text += ["    }", "  }"]
        return text
