"""The text of `conv_winograd`: the three steps, of all tiles of a band or of a part of them."""

from collections.abc import Sequence
from dataclasses import dataclass

from coexec.engines.kernels.base import ceil_div, indented
from coexec.engines.kernels.conv_shape import ConvShape
from coexec.engines.kernels.winograd_transforms import (
    Filtering,
    transform_inputs,
    transform_outputs,
)

Span = tuple[str, str]
"""First number and the one behind the last, as expressions."""

ROWS = 6
"""Tiles that are multiplied together, times up to four vectors of channels: 24 accumulators."""


@dataclass(frozen=True, slots=True)
class WinogradTile:
    """The method along both axes of a tile."""

    h: Filtering
    w: Filtering

    @property
    def positions(self) -> int:
        """Input pixels of a tile, overlap included, and so multiplications."""
        return self.h.size * self.w.size

    @property
    def adds(self) -> int:
        """Approximate additions of both transforms at a position."""
        return self.h.size + self.w.size

    def count(self, shape: ConvShape) -> int:
        """Tiles of all samples."""
        tiles_h, tiles_w = ceil_div(shape.out_h, self.h.m), ceil_div(shape.out_w, self.w.m)
        return shape.batch * tiles_h * tiles_w

    def macs(self, shape: ConvShape) -> int:
        """Multiply-adds of all tiles."""
        return self.count(shape) * self.positions * shape.in_channels * shape.out_channels

    def __str__(self) -> str:
        return str(max(self.h.m, self.w.m))


def text(tile: WinogradTile, blocks: int, v: str, b: int, finish: Sequence[str]) -> str:
    """The body of the kernel that runs all three steps.

    Args:
        blocks: channel blocks of a product.
        v: the type of a vector, of ``b`` channels.
        finish: lines that store ``a``, the sum and bias of block s at (oy, ox) of sample n.
    """
    return "\n".join(
        [
            "    __global float* v = thread_memory;",
            f"    __global {v}* p = (__global {v}*)(v + input_floats);",
            "    const int n = item_1, first = item_0 * band_tiles;",
            "    const int count = min(band_tiles, tiles - first), line = 0;",
            entering(tile, v, ("0", "in_vectors")),
            multiplying(blocks, v, b, ("0", str(tile.positions)), ("0", "groups")),
            leaving(tile, blocks, v, finish, ("0", "y_slices")),
        ]
    )


def products_of(count: int) -> tuple[tuple[int, int], ...]:
    """Tiles of a product, and the number of such products for a band of ``count`` tiles."""
    products = -(-count // ROWS)
    larger = max(0, count - (ROWS - 1) * products)
    parts = products if larger else -(-count // (ROWS - 1))
    return (ROWS, larger), (ROWS - 1, parts - larger)


def entering(tile: WinogradTile, v: str, vectors: Span) -> str:
    """Lines that transform the columns of a tile when they are loaded, then its rows."""
    h, w = tile.h.size, tile.w.size
    names = ", ".join(f"d{i}" for i in range(h))
    inside = f"iy >= 0 && ix >= 0 && iy + {h} <= x_h && ix + {w} <= x_w"
    checked = "ix + j >= 0 && ix + j < x_w && iy + {i} >= 0 && iy + {i} < x_h"
    columns = transform_inputs(tile.h, v, "d{}".format, f"e[{{}} * {w} + j]".format)
    rows = transform_inputs(tile.w, v, f"e[j * {w} + {{}}]".format, "to[{} * position]".format)
    return "\n".join(
        [
            "    const long position = (long)lines * in_vectors;",
            "    for (int t = 0; t < count; t++) {",
            "      const int ty = (first + t) / tiles_w, tx = (first + t) % tiles_w;",
            f"      const int iy = ty * {tile.h.m} - top, ix = tx * {tile.w.m} - left;",
            f"      const int inside = {inside};",
            f"      for (int s = {vectors[0]}; s < {vectors[1]}; s++) {{",
            f"        {v} e[{tile.positions}];",
            f"        __global {v}* to = (__global {v}*)v + (line + t) * in_vectors + s;",
            f"        for (int j = 0; j < {w}; j++) {{",
            f"          {v} {names};",
            "          const int at = VEC_x(n, s, iy, ix + j);",
            "          if (inside) {",
            *(f"            d{i} = LOAD_x(at + {i} * x_w);" for i in range(h)),
            "          } else {",
            *(
                f"            d{i} = zero;"
                f" if ({checked.format(i=i)}) d{i} = LOAD_x(at + {i} * x_w);"
                for i in range(h)
            ),
            "          }",
            *indented(columns, 5),
            "        }",
            f"        for (int j = 0; j < {h}; j++, to += {w} * position) {{",
            *indented(rows, 5),
            "        }",
            "      }",
            "    }",
        ]
    )


def multiplying(blocks: int, v: str, b: int, positions: Span, groups: Span) -> str:
    """Lines for products of six tiles, then of five, which together make up the band.

    If no such numbers make it up, all products are of five tiles, and the last one overlaps.
    """
    lines = [
        "    const int depth = in_vectors * " + f"{b};",
        f"    const int products = (count + {ROWS - 1}) / {ROWS};",
        f"    const int larger = max(0, count - {ROWS - 1} * products);",
        f"    const int parts = larger ? products : (count + {ROWS - 2}) / {ROWS - 1};",
        f"    for (int k = {positions[0]}; k < {positions[1]}; k++) {{",
        f"      for (int g = {groups[0]}; g < {groups[1]}; g++) {{",
        "        int part = 0, t = 0;",
    ]
    for rows, last in ((ROWS, "larger"), (ROWS - 1, "parts")):
        lines.append(f"        for (; part < {last}; part++, t += {rows}) {{")
        lines += indented(_product(blocks, rows, v), 5)
        lines.append("        }")
    return "\n".join([*lines, "      }", "    }"])


def _product(blocks: int, rows: int, v: str) -> list[str]:
    """Lines that multiply one position of ``rows`` tiles, from tile t on, by a group's weights.

    Channels past the last one have any values, also NaN, so they are not multiplied by the zeros
    that are their weights.
    """
    sums = [(r, o) for r in range(rows) for o in range(blocks)]

    def step(channel: int) -> list[str]:
        at = f"ui + {channel * blocks}"
        lines = [f"const {v} u{o} = LOAD_u({at} + {o});" for o in range(blocks)]
        for r in range(rows):
            added = "".join(f" c{r}_{o} += u{o} * f;" for o in range(blocks))
            lines.append(f"{{ const float f = a[i + {channel} + {r} * depth];{added} }}")
        return ["  {", *indented(lines, 2), "  }"]

    return [
        f"const int at = k * lines + max(0, min(t, count - {rows}));",
        "__global const float* a = v + (long)at * depth;",
        f"long ui = ((long)k * groups + g) * depth * {blocks};",
        *(f"{v} c{r}_{o} = ({v})(0.0f);" for r, o in sums),
        "int i = 0;",
        "if (in_channels > 1) do {",
        *step(0),
        *step(1),
        f"  i += 2; ui += {2 * blocks};",
        "} while (i + 1 < in_channels);",
        "if (i < in_channels)",
        *step(0),
        f"__global {v}* to = p + ((long)at * groups + g) * {blocks};",
        *(f"to[{r} * groups * {blocks} + {o}] = c{r}_{o};" for r, o in sums),
    ]


def leaving(tile: WinogradTile, blocks: int, v: str, finish: Sequence[str], slices: Span) -> str:
    """Lines that transform each column of a tile while loading it, then each row, and store it."""
    h, w = tile.h, tile.w
    columns = transform_outputs(h, v, "d{}".format, f"e[{{}} * {w.size} + j]".format)
    rows = transform_outputs(w, v, f"e[j * {w.size} + {{}}]".format, "out[{}]".format)
    return "\n".join(
        [
            f"    const int vectors = groups * {blocks};",
            "    for (int t = 0; t < count; t++) {",
            "      const int ty = (first + t) / tiles_w, tx = (first + t) % tiles_w;",
            f"      for (int s = {slices[0]}; s < {slices[1]}; s++) {{",
            f"        {v} e[{h.m * w.size}], out[{w.m}];",
            f"        __global const {v}* from = p + (long)(line + t) * vectors + s;",
            "        const long across = (long)lines * vectors;",
            f"        for (int j = 0; j < {w.size}; j++, from += across) {{",
            *(f"          const {v} d{k} = from[{k * w.size} * across];" for k in range(h.size)),
            *indented(columns, 5),
            "        }",
            f"        const {v} b = LOAD_bias(s);",
            f"        for (int j = 0; j < {h.m}; j++) {{",
            f"          const int oy = ty * {h.m} + j;",
            "          if (oy >= y_h) break;",
            *indented(rows, 5),
            f"          for (int i = 0; i < {w.m}; i++) {{",
            f"            const int ox = tx * {w.m} + i;",
            "            if (ox >= y_w) break;",
            f"            const {v} a = out[i] + b;",
            *indented(finish, 6),
            "          }",
            "        }",
            "      }",
            "    }",
        ]
    )
