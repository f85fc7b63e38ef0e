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
    source = Source("conv_winograd", context.arch)
    source.read("x", x)
    source.constant("u", _packed(weights, plan, b))
    source.constant("bias", packed_bias(node, context, 0, plan.groups * plan.blocks))
    chain = Chain(source, context, node, node.chain)
    v_items = positions * plan.band * plan.in_vectors * b
    m_items = positions * plan.band * plan.blocks * plan.groups * b
    scratch = context.temporary((plan.items * (v_items + m_items),))
    source.write("scratch", scratch)
    source.write("y", y)
    v = context.arch.vector
    source.lines(
        f"  __global float* v = scratch + get_global_id(0) * {v_items + m_items};\n"
        f"  __global {v}* p = (__global {v}*)(v + {v_items});\n"
        f"  for (int band = get_global_id(0); band < {plan.bands * shape.batch};"
        f" band += {plan.items}) {{\n"
        f"    const int n = band / {plan.bands}, first = band % {plan.bands} * {plan.band};\n"
        f"    const int count = min({plan.band}, {plan.tiles} - first);"
    )
    source.lines(_transform_input(shape, plan, x, v))
    source.lines(_multiply(plan, v, b))
    source.lines(_transform_output(node, shape, plan, chain, y, v))
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


def _products(matrix: Matrix, source: str, target: str, stride: tuple[str, str]) -> list[str]:
    """``target[i] = sum of matrix[i][k] * source[k]`` along one axis of a square."""
    return [
        f"{target}[{stride[1].format(k=i)}] = {_combination(row, f'{source}[{stride[0]}]')};"
        for i, row in enumerate(matrix)
    ]


def _transform_input(shape: ConvShape, plan: _Plan, x: Value, v: str) -> str:
    size, m = plan.size, plan.m
    columns = _products(_INPUT[m], "d", "e", (f"{{k}} * {size} + j", f"{{k}} * {size} + j"))
    rows = [
        f"((__global {v}*)v)[((j * {size} + {i}) * {plan.band} + t) * {plan.in_vectors} + s] = "
        f"{_combination(row, f'e[j * {size} + {{k}}]')};"
        for i, row in enumerate(_INPUT[m])
    ]
    inside = f"iy >= 0 && ix >= 0 && iy + {size} <= {shape.in_h} && ix + {size} <= {shape.in_w}"
    return "\n".join([
        "    for (int t = 0; t < count; t++) {",
        f"      const int ty = (first + t) / {plan.tiles_w}, tx = (first + t) % {plan.tiles_w};",
        f"      const int iy = ty * {m} - {shape.top}, ix = tx * {m} - {shape.left};",
        f"      for (int s = 0; s < {plan.in_vectors}; s++) {{",
        f"        {v} d[{size * size}], e[{size * size}];",
        f"        if ({inside}) {{",
        f"          for (int i = 0; i < {size}; i++) for (int j = 0; j < {size}; j++)",
        f"            d[i * {size} + j] = LOAD_x(VEC_x(n, s, iy + i, ix + j));",
        "        } else {",
        f"          for (int i = 0; i < {size}; i++) for (int j = 0; j < {size}; j++) {{",
        f"            const int in = iy + i >= 0 && iy + i < {shape.in_h}"
        f" && ix + j >= 0 && ix + j < {shape.in_w};",
        f"            d[i * {size} + j] = ({v})(0.0f);",
        f"            if (in) d[i * {size} + j] = LOAD_x(VEC_x(n, s, iy + i, ix + j));",
        "          }",
        "        }",
        f"        for (int j = 0; j < {size}; j++) {{",
        *(f"          {line}" for line in columns),
        "        }",
        f"        for (int j = 0; j < {size}; j++) {{",
        *(f"          {line}" for line in rows),
        "        }",
        "      }",
        "    }",
    ])  # fmt: skip


def _multiply(plan: _Plan, v: str, b: int) -> str:
    depth = plan.in_vectors * b
    text = [
        f"    for (int k = 0; k < {plan.size**2}; k++) {{",
        f"      for (int g = 0; g < {plan.groups}; g++) {{",
        "        int t = 0;",
    ]
    for rows in range(_ROWS, 0, -1):
        repeat = f"for (; t + {rows} <= count; t += {rows})" if rows == _ROWS else (
            f"if (count - t == {rows})")  # fmt: skip
        text.append(f"        {repeat} {{")
        text.append(f"          __global const float* a = v + (k * {plan.band} + t) * {depth};")
        text.append(f"          int ui = (k * {plan.groups} + g) * {depth * plan.blocks};")
        for r in range(rows):
            text += [f"          {v} c{r}_{o} = ({v})(0.0f);" for o in range(plan.blocks)]
        text.append("          #pragma unroll 2")
        text.append(f"          for (int i = 0; i < {depth}; i++, ui += {plan.blocks}) {{")
        text += [f"            const {v} u{o} = LOAD_u(ui + {o});" for o in range(plan.blocks)]
        for r in range(rows):
            text.append(f"            {{ const float f = a[i + {r * depth}];")
            text += [f"              c{r}_{o} += u{o} * f;" for o in range(plan.blocks)]
            text.append("            }")
        text.append("          }")
        at = f"((k * {plan.band} + t + {{r}}) * {plan.groups} + g) * {plan.blocks} + {{o}}"
        for r in range(rows):
            text += [f"          p[{at.format(r=r, o=o)}] = c{r}_{o};" for o in range(plan.blocks)]
        text.append("        }")
    text += ["      }", "    }"]
    return "\n".join(text)


def _transform_output(
    node: Node, shape: ConvShape, plan: _Plan, chain: Chain, y: Value, v: str
) -> str:
    size, m = plan.size, plan.m
    vectors = plan.groups * plan.blocks
    columns = _products(_OUTPUT[m], "d", "e", (f"{{k}} * {size} + j", f"{{k}} * {size} + j"))
    rows = [
        f"out[j * {m} + {i}] = {_combination(row, f'e[j * {size} + {{k}}]')};"
        for i, row in enumerate(_OUTPUT[m])
    ]
    lines, result = chain.apply("a", node.operator.outputs[0], ["n", "s", "oy", "ox"])
    return "\n".join([
        "    for (int t = 0; t < count; t++) {",
        f"      const int ty = (first + t) / {plan.tiles_w}, tx = (first + t) % {plan.tiles_w};",
        f"      for (int s = 0; s < {y.slices}; s++) {{",
        f"        {v} d[{size * size}], e[{m * size}], out[{m * m}];",
        f"        for (int k = 0; k < {size * size}; k++)",
        f"          d[k] = p[(k * {plan.band} + t) * {vectors} + s];",
        f"        for (int j = 0; j < {size}; j++) {{",
        *(f"          {line}" for line in columns),
        "        }",
        f"        for (int j = 0; j < {m}; j++) {{",
        *(f"          {line}" for line in rows),
        "        }",
        f"        const {v} b = LOAD_bias(s);",
        f"        for (int i = 0; i < {m}; i++) for (int j = 0; j < {m}; j++) {{",
        f"          const int oy = ty * {m} + i, ox = tx * {m} + j;",
        f"          if (oy >= {shape.out_h} || ox >= {shape.out_w}) continue;",
        f"          const {v} a = out[i * {m} + j] + b;",
        *(f"          {line}" for line in lines),
        f"          STORE_y(VEC_y(n, s, oy, ox), {result});",
        "        }",
        "      }",
        "    }",
    ])  # fmt: skip
