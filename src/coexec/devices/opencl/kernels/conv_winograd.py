"""Convolution 3x3 with stride 1 by Winograd's minimal filtering, where one thread owns a core.

Tiles of (m + 2)^2 input pixels become m^2 output pixels with (m + 2)^2 multiplications per pair of
channels in place of 9 m^2: 4 times fewer with m = 4, 2.25 times with m = 2. In between lies one
matrix product for each of the (m + 2)^2 positions, with tiles as rows and channels as columns.

A work item takes bands of tiles, so that what lies between the three steps stays in its core's
caches. Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", arXiv:1509.09308.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coexec.devices.opencl.kernels.base import Context, Launch, Node, Source, Value, ceil_div
from coexec.devices.opencl.kernels.chain import Chain
from coexec.devices.opencl.kernels.conv_shape import ConvShape, packed_bias
from coexec.frontend.module import Array

__all__ = ["fits", "launches", "seconds"]

Matrix = tuple[tuple[float, ...], ...]

_INPUT: dict[int, Matrix] = {
    2: ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    4: ((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0),
        (0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1)),
}  # fmt: skip
_FILTER: dict[int, Matrix] = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: ((1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6), (1 / 24, -1 / 12, 1 / 6), (0, 0, 1)),
}  # fmt: skip
_OUTPUT: dict[int, Matrix] = {
    2: ((1, 1, 1, 0), (0, 1, -1, -1)),
    4: ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
}
"""The transforms B^T, G and A^T of the paper, for m = 2 and m = 4."""

_NEAR_BYTES = 2**20
"""What a band may fill of the second cache."""
_LEAST_TILES = 48
"""Of a band: below, the transformed weights would be read again too often."""
_ROWS = 6
"""Tiles that are multiplied together, times up to four vectors of channels: 24 accumulators."""


@dataclass(frozen=True, slots=True)
class _Plan:
    m: int
    tiles_h: int
    tiles_w: int
    band: int
    """Tiles of a band."""
    bands: int
    items: int
    """Work items; each takes every so-many-th band."""
    blocks: int
    """Channel blocks of a matrix product."""
    groups: int
    in_vectors: int
    in_channels: int

    @property
    def size(self) -> int:
        """Of a tile's edge, overlap included."""
        return self.m + 2

    @property
    def lines(self) -> int:
        """Places for the tiles of a band: a product of fewer than it takes computes into them."""
        return max(self.band, _ROWS - 1)

    @property
    def tiles(self) -> int:
        return self.tiles_h * self.tiles_w


def fits(shape: ConvShape, x: Value, context: Context) -> bool:
    """Whether the method is for this convolution at all."""
    same = (shape.kernel_h, shape.kernel_w, shape.stride_h, shape.stride_w) == (3, 3, 1, 1)
    plain = (shape.dilation_h, shape.dilation_w, shape.groups) == (1, 1, 1)
    return same and plain and bool(x.block) and not context.arch.half


def seconds(shape: ConvShape, m: int) -> float:
    """A rough time on a core of 100 GFLOP/s and 16 GB/s behind its second cache.

    Only good for comparing tile sizes and the direct method: `direct_seconds`.
    """
    tiles = shape.batch * ceil_div(shape.out_h, m) * ceil_div(shape.out_w, m)
    positions = (m + 2) ** 2
    channels = shape.in_channels + shape.out_channels
    flops = 2 * positions * tiles * shape.in_channels * shape.out_channels
    flops += tiles * channels * positions * 4 * (m + 2)  # the transforms
    weights = positions * shape.in_channels * shape.out_channels * 4
    moved = 4 * positions * tiles * channels
    bands = max(1, tiles // max(_LEAST_TILES, _NEAR_BYTES // (4 * positions * channels)))
    far = weights * bands if weights > _NEAR_BYTES else 0
    return flops / 100e9 + (far + 0.5 * moved) / 16e9


def launches(node: Node, context: Context, shape: ConvShape, m: int) -> list[Launch]:
    """One kernel: the steps of a band follow each other in one work item."""
    x, y = context.value(node.operator.inputs[0]), context.value(node.output)
    weights = context.constant(node.operator.inputs[1])
    assert weights is not None
    plan = _plan(context, shape, m, x, y)
    b = context.arch.block
    positions = plan.size**2
    source = Source("conv_winograd", context.arch, sized=True, alone=True)
    source.read("x", x)
    source.constant("u", _packed(weights, plan, b))
    source.constant("bias", packed_bias(node, context, 0, plan.groups * plan.blocks))
    chain = Chain(source, context, node, node.chain)
    v_items = positions * plan.lines * plan.in_vectors * b
    m_items = positions * plan.lines * plan.blocks * plan.groups * b
    scratch = context.temporary((plan.items * (v_items + m_items),))
    source.write("scratch", scratch)
    source.write("y", y)
    v = context.arch.vector
    source.sizes(
        item_floats=v_items + m_items, input_floats=v_items, bands=plan.bands, lines=plan.lines,
        band_tiles=plan.band, tiles=plan.tiles, tiles_w=plan.tiles_w, items=plan.items,
        in_vectors=plan.in_vectors, groups=plan.groups, batch=shape.batch,
        top=shape.top, left=shape.left,
    )  # fmt: skip
    source.lines(
        f"  __global float* v = scratch + (long)item_0 * item_floats;\n"
        f"  __global {v}* p = (__global {v}*)(v + input_floats);\n"
        "  for (int band = item_0; band < bands * batch; band += items) {\n"
        "    const int n = band / bands, first = band % bands * band_tiles;\n"
        "    const int count = min(band_tiles, tiles - first);"
    )
    source.lines(_transform_input(plan, v))
    source.lines(_multiply(plan, v, b))
    source.lines(_transform_output(node, plan, chain, v))
    source.lines("  }")
    return [source.launch((plan.items,), (1, 1, 1))]


def _plan(context: Context, shape: ConvShape, m: int, x: Value, y: Value) -> _Plan:
    tiles_h, tiles_w = ceil_div(shape.out_h, m), ceil_div(shape.out_w, m)
    tiles = tiles_h * tiles_w
    near = _NEAR_BYTES // (4 * (m + 2) ** 2 * (shape.in_channels + shape.out_channels))
    units = context.arch.compute_units
    band = min(max(near, _LEAST_TILES), ceil_div(tiles * shape.batch, units), tiles)
    bands = ceil_div(tiles, band)
    band = ceil_div(tiles, bands)
    most = 4 if context.arch.registers >= 32 else 2
    blocks = min(range(most, 0, -1), key=lambda n: (ceil_div(y.slices, n) * n - y.slices) / n)
    return _Plan(m, tiles_h, tiles_w, band, bands, min(bands * shape.batch, units), blocks,
                 ceil_div(y.slices, blocks), x.slices, shape.in_channels)  # fmt: skip


def _packed(weights: Array, plan: _Plan, b: int) -> Array:
    """G w G^T as [position][group][input channel][block of the group][lane]."""
    g = np.array(_FILTER[plan.m], np.float64)
    outs, ins = weights.shape[:2]
    columns = plan.groups * plan.blocks * b
    moved = np.einsum("ik,ockl,jl->ijco", g, weights.astype(np.float64), g, optimize=True)
    full = np.zeros((plan.size**2, plan.in_vectors * b, columns), np.float32)
    full[:, :ins, :outs] = moved.reshape(plan.size**2, ins, outs)
    split = full.reshape(plan.size**2, plan.in_vectors * b, plan.groups, plan.blocks * b)
    return np.ascontiguousarray(split.transpose(0, 2, 1, 3))


def _combination(row: Sequence[float], name: str) -> str:
    """A sum of named terms with constant factors; ``name`` has a place for the index."""
    terms = []
    for k, factor in enumerate(row):
        if factor:
            sign = "-" if factor < 0 else "+"
            scale = "" if abs(factor) == 1 else f"{float(abs(factor))!r}f * "
            terms.append(f"{sign} {scale}{name.format(k=k)}")
    return " ".join(terms).removeprefix("+ ")


def _products(matrix: Matrix, source: str, target: str) -> list[str]:
    """``target = sum of matrix[i][k] * source[k]`` for each i; both have a place for the index."""
    return [
        f"{target.format(i=i)} = {_combination(row, source)};" for i, row in enumerate(matrix)
    ]


def _transform_input(plan: _Plan, v: str) -> str:
    """Each column of a tile while it is loaded, then each row while it is stored."""
    size, m = plan.size, plan.m
    names = ", ".join(f"d{i}" for i in range(size))
    inside = f"iy >= 0 && ix >= 0 && iy + {size} <= x_h && ix + {size} <= x_w"
    checked = f"ix + j >= 0 && ix + j < x_w && iy + {{i}} >= 0 && iy + {{i}} < x_h"
    return "\n".join([
        "    const long position = (long)lines * in_vectors;",
        "    for (int t = 0; t < count; t++) {",
        "      const int ty = (first + t) / tiles_w, tx = (first + t) % tiles_w;",
        f"      const int iy = ty * {m} - top, ix = tx * {m} - left, inside = {inside};",
        "      for (int s = 0; s < in_vectors; s++) {",
        f"        {v} e[{size * size}];",
        f"        __global {v}* to = (__global {v}*)v + t * in_vectors + s;",
        f"        for (int j = 0; j < {size}; j++) {{",
        f"          {v} {names};",
        "          const int at = VEC_x(n, s, iy, ix + j);",
        "          if (inside) {",
        *(f"            d{i} = LOAD_x(at + {i} * x_w);" for i in range(size)),
        "          } else {",
        *(f"            d{i} = zero; if ({checked.format(i=i)}) d{i} = LOAD_x(at + {i} * x_w);"
          for i in range(size)),
        "          }",
        *(f"          {line}" for line in _products(_INPUT[m], "d{k}", f"e[{{i}} * {size} + j]")),
        "        }",
        f"        for (int j = 0; j < {size}; j++) {{",
        *(f"          {line} to += position;"
          for line in _products(_INPUT[m], f"e[j * {size} + {{k}}]", "*to")),
        "        }",
        "      }",
        "    }",
    ])  # fmt: skip


def _multiply(plan: _Plan, v: str, b: int) -> str:
    """Products of six tiles, then of five, as many of each as make up the band.

    Where that does not come out even there are those of five only, and the last one overlaps.
    """
    text = [
        "    const int depth = in_vectors * " + f"{b};",
        f"    const int products = (count + {_ROWS - 1}) / {_ROWS};",
        f"    const int larger = max(0, count - {_ROWS - 1} * products);",
        f"    const int parts = larger ? products : (count + {_ROWS - 2}) / {_ROWS - 1};",
        f"    for (int k = 0; k < {plan.size**2}; k++) {{",
        "      for (int g = 0; g < groups; g++) {",
        "        int part = 0, t = 0;",
    ]
    for rows, last in ((_ROWS, "larger"), (_ROWS - 1, "parts")):
        text.append(f"        for (; part < {last}; part++, t += {rows}) {{")
        text += [f"          {line}" for line in _product(plan, rows, v)]
        text.append("        }")
    return "\n".join([*text, "      }", "    }"])


def _product(plan: _Plan, rows: int, v: str) -> list[str]:
    """One position of ``rows`` tiles, from the t-th on, times the weights of a group."""
    sums = [(r, o) for r in range(rows) for o in range(plan.blocks)]
    text = [
        f"const int line = k * lines + max(0, min(t, count - {rows}));",
        "__global const float* a = v + (long)line * depth;",
        f"long ui = ((long)k * groups + g) * depth * {plan.blocks};",
        *(f"{v} c{r}_{o} = ({v})(0.0f);" for r, o in sums),
        "int i = 0;",
        "do {",
    ]
    for step in range(2):
        text.append("  {")
        text += [f"  const {v} u{o} = LOAD_u(ui + {step * plan.blocks + o});"
                 for o in range(plan.blocks)]  # fmt: skip
        for r in range(rows):
            added = "".join(f" c{r}_{o} += u{o} * f;" for o in range(plan.blocks))
            text.append(f"  {{ const float f = a[i + {step} + {r} * depth];{added} }}")
        text.append("  }")
    text += [
        f"  i += 2; ui += {2 * plan.blocks};",
        "} while (i < depth);",
        f"__global {v}* to = p + ((long)line * groups + g) * {plan.blocks};",
        *(f"to[{r} * groups * {plan.blocks} + {o}] = c{r}_{o};" for r, o in sums),
    ]
    return text


def _transform_output(node: Node, plan: _Plan, chain: Chain, v: str) -> str:
    """Each column of a tile while it is loaded, then each row, which is stored."""
    size, m = plan.size, plan.m
    columns = _products(_OUTPUT[m], "d{k}", f"e[{{i}} * {size} + j]")
    rows = _products(_OUTPUT[m], f"e[j * {size} + {{k}}]", "out[{i}]")
    lines, result = chain.apply("a", node.operator.outputs[0], ["n", "s", "oy", "ox"])
    return "\n".join([
        f"    const int vectors = groups * {plan.blocks};",
        "    for (int t = 0; t < count; t++) {",
        "      const int ty = (first + t) / tiles_w, tx = (first + t) % tiles_w;",
        "      for (int s = 0; s < y_slices; s++) {",
        f"        {v} e[{m * size}], out[{m}];",
        f"        __global const {v}* from = p + (long)t * vectors + s;",
        "        const long across = (long)lines * vectors;",
        f"        for (int j = 0; j < {size}; j++, from += across) {{",
        *(f"          const {v} d{k} = from[{k * size} * across];" for k in range(size)),
        *(f"          {line}" for line in columns),
        "        }",
        f"        const {v} b = LOAD_bias(s);",
        f"        for (int j = 0; j < {m}; j++) {{",
        f"          const int oy = ty * {m} + j;",
        "          if (oy >= y_h) break;",
        *(f"          {line}" for line in rows),
        f"          for (int i = 0; i < {m}; i++) {{",
        f"            const int ox = tx * {m} + i;",
        "            if (ox >= y_w) break;",
        f"            const {v} a = out[i] + b;",
        *(f"            {line}" for line in lines),
        f"            STORE_y(VEC_y(n, s, oy, ox), {result});",
        "          }",
        "        }",
        "      }",
        "    }",
    ])  # fmt: skip
