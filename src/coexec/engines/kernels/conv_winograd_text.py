"""The text of `conv_winograd`: the steps of a work item for a band of tiles.

Layers that differ in sizes only share one text: sizes are integer arguments with the names that
`conv_winograd` declares. Literals in the text are m, the channel blocks of a product, and the
epilogue.
"""

from collections.abc import Sequence

from coexec.engines.kernels.base import indented

__all__ = ["ROWS", "Matrix", "products_of", "text"]

Matrix = tuple[tuple[float, ...], ...]

_INPUT: dict[int, Matrix] = {
    2: ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, 1, 0, -1)),
    4: ((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0),
        (0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0), (0, 4, 0, -5, 0, 1)),
}  # fmt: skip
_OUTPUT: dict[int, Matrix] = {
    2: ((1, 1, 1, 0), (0, 1, -1, -1)),
    4: ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
}
"""The transforms B^T and A^T of the paper, for m = 2 and m = 4."""

ROWS = 6
"""Tiles that are multiplied together, times up to four vectors of channels: 24 accumulators."""


def text(m: int, blocks: int, v: str, b: int, finish: Sequence[str]) -> str:
    """The body of the kernel.

    Args:
        blocks: channel blocks of a product.
        v: the type of a vector, of ``b`` channels.
        finish: lines that store ``a``, the sum and bias of block s at (oy, ox) of sample n.
    """
    return "\n".join(
        [
            "  __global float* v = scratch + (long)item_0 * item_floats;",
            f"  __global {v}* p = (__global {v}*)(v + input_floats);",
            "  for (int band = item_0; band < bands * batch; band += items) {",
            "    const int n = band / bands, first = band % bands * band_tiles;",
            "    const int count = min(band_tiles, tiles - first);",
            _transform_input(m, v),
            _multiply(m, blocks, v, b),
            _transform_output(m, blocks, v, finish),
            "  }",
        ]
    )


def products_of(count: int) -> tuple[tuple[int, int], ...]:
    """Tiles of a product, and the number of such products for a band of ``count`` tiles."""
    products = -(-count // ROWS)
    larger = max(0, count - (ROWS - 1) * products)
    parts = products if larger else -(-count // (ROWS - 1))
    return (ROWS, larger), (ROWS - 1, parts - larger)


def _combination(row: Sequence[float], name: str) -> str:
    """A sum of named terms with constant factors; ``name`` has a slot for the index."""
    terms = []
    for k, factor in enumerate(row):
        if factor:
            sign = "-" if factor < 0 else "+"
            scale = "" if abs(factor) == 1 else f"{float(abs(factor))!r}f * "
            terms.append(f"{sign} {scale}{name.format(k=k)}")
    return " ".join(terms).removeprefix("+ ")


def _products(matrix: Matrix, source: str, target: str) -> list[str]:
    """``target = sum of matrix[i][k] * source[k]`` for each i; both have a slot for the index."""
    return [f"{target.format(i=i)} = {_combination(row, source)};" for i, row in enumerate(matrix)]


def _transform_input(m: int, v: str) -> str:
    """Lines that transform the columns of a tile when they are loaded, then its rows."""
    size = m + 2
    names = ", ".join(f"d{i}" for i in range(size))
    inside = f"iy >= 0 && ix >= 0 && iy + {size} <= x_h && ix + {size} <= x_w"
    checked = "ix + j >= 0 && ix + j < x_w && iy + {i} >= 0 && iy + {i} < x_h"
    return "\n".join(
        [
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
            *(
                f"            d{i} = zero;"
                f" if ({checked.format(i=i)}) d{i} = LOAD_x(at + {i} * x_w);"
                for i in range(size)
            ),
            "          }",
            *indented(_products(_INPUT[m], "d{k}", f"e[{{i}} * {size} + j]"), 5),
            "        }",
            f"        for (int j = 0; j < {size}; j++) {{",
            *(
                f"          {line} to += position;"
                for line in _products(_INPUT[m], f"e[j * {size} + {{k}}]", "*to")
            ),
            "        }",
            "      }",
            "    }",
        ]
    )


def _multiply(m: int, blocks: int, v: str, b: int) -> str:
    """Lines for products of six tiles, then of five, which together make up the band.

    If no such numbers make it up, all products are of five tiles, and the last one overlaps.
    """
    lines = [
        "    const int depth = in_vectors * " + f"{b};",
        f"    const int products = (count + {ROWS - 1}) / {ROWS};",
        f"    const int larger = max(0, count - {ROWS - 1} * products);",
        f"    const int parts = larger ? products : (count + {ROWS - 2}) / {ROWS - 1};",
        f"    for (int k = 0; k < {(m + 2) ** 2}; k++) {{",
        "      for (int g = 0; g < groups; g++) {",
        "        int part = 0, t = 0;",
    ]
    for rows, last in ((ROWS, "larger"), (ROWS - 1, "parts")):
        lines.append(f"        for (; part < {last}; part++, t += {rows}) {{")
        lines += indented(_product(blocks, rows, v), 5)
        lines.append("        }")
    return "\n".join([*lines, "      }", "    }"])


def _product(blocks: int, rows: int, v: str) -> list[str]:
    """Lines that multiply one position of ``rows`` tiles, from tile t on, by a group's weights."""
    sums = [(r, o) for r in range(rows) for o in range(blocks)]
    lines = [
        f"const int line = k * lines + max(0, min(t, count - {rows}));",
        "__global const float* a = v + (long)line * depth;",
        f"long ui = ((long)k * groups + g) * depth * {blocks};",
        *(f"{v} c{r}_{o} = ({v})(0.0f);" for r, o in sums),
        "int i = 0;",
        "do {",
    ]
    for step in range(2):
        lines.append("  {")
        lines += [f"  const {v} u{o} = LOAD_u(ui + {step * blocks + o});" for o in range(blocks)]
        for r in range(rows):
            added = "".join(f" c{r}_{o} += u{o} * f;" for o in range(blocks))
            lines.append(f"  {{ const float f = a[i + {step} + {r} * depth];{added} }}")
        lines.append("  }")
    lines += [
        f"  i += 2; ui += {2 * blocks};",
        "} while (i < depth);",
        f"__global {v}* to = p + ((long)line * groups + g) * {blocks};",
        *(f"to[{r} * groups * {blocks} + {o}] = c{r}_{o};" for r, o in sums),
    ]
    return lines


def _transform_output(m: int, blocks: int, v: str, finish: Sequence[str]) -> str:
    """Lines that transform each column of a tile while loading it, then each row, and store it."""
    size = m + 2
    columns = _products(_OUTPUT[m], "d{k}", f"e[{{i}} * {size} + j]")
    rows = _products(_OUTPUT[m], f"e[j * {size} + {{k}}]", "out[{i}]")
    return "\n".join(
        [
            f"    const int vectors = groups * {blocks};",
            "    for (int t = 0; t < count; t++) {",
            "      const int ty = (first + t) / tiles_w, tx = (first + t) % tiles_w;",
            "      for (int s = 0; s < y_slices; s++) {",
            f"        {v} e[{m * size}], out[{m}];",
            f"        __global const {v}* from = p + (long)t * vectors + s;",
            "        const long across = (long)lines * vectors;",
            f"        for (int j = 0; j < {size}; j++, from += across) {{",
            *(f"          const {v} d{k} = from[{k * size} * across];" for k in range(size)),
            *indented(columns, 5),
            "        }",
            f"        const {v} b = LOAD_bias(s);",
            f"        for (int j = 0; j < {m}; j++) {{",
            f"          const int oy = ty * {m} + j;",
            "          if (oy >= y_h) break;",
            *indented(rows, 5),
            f"          for (int i = 0; i < {m}; i++) {{",
            f"            const int ox = tx * {m} + i;",
            "            if (ox >= y_w) break;",
            f"            const {v} a = out[i] + b;",
            *indented(finish, 6),
            "          }",
            "        }",
            "      }",
            "    }",
        ]
    )
