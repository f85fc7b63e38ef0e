"""Matrix products on GPUs, in tiles through local memory; operands in any layout.

A group of 256 work items computes 64 rows times 64 columns, each item 4 x 4 of them. For every
16 steps of the inner axis the group loads a tile of each side.
"""

import math

from coexec.engines.kernels.base import Context, KernelLaunch, Node, Source, ceil_div, indented
from coexec.engines.kernels.product import Operands, Product

__all__ = ["launches"]

_DEPTH = 16
_ITEMS = 16


def launches(node: Node, context: Context, product: Product) -> list[KernelLaunch]:
    items = _ITEMS if context.arch.max_group >= 256 else 8
    edge = 4 * items
    source = Source("gemm_tiled", context.arch)
    operands = Operands(source, context, node, product)
    operands.declare_right()
    operands.declare_result()
    lines = [
        f"const int item = get_local_id(0), tx = item % {items}, ty = item / {items};",
        f"const int top = get_group_id(1) * {edge}, left = get_group_id(0) * {edge};",
        *operands.batch_lines("get_global_id(2)"),
        f"__local float as[{_DEPTH}][{edge + 1}], bs[{_DEPTH}][{edge + 1}];",
        "float sum[4][4];",
        "for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) sum[i][j] = 0.0f;",
        f"for (int from = 0; from < {product.k}; from += {_DEPTH}) {{",
        *indented(_loads(operands, product, items)),
        "  barrier(CLK_LOCAL_MEM_FENCE);",
        f"  for (int k = 0; k < {_DEPTH}; k++)",
        "    for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++)",
        f"      sum[i][j] += as[k][ty + i * {items}] * bs[k][tx + j * {items}];",
        "  barrier(CLK_LOCAL_MEM_FENCE);",
        "}",
        *_stores(operands, product, items),
    ]
    source.lines(lines)
    grid = (
        ceil_div(product.n, edge) * items * items,
        ceil_div(product.m, edge),
        math.prod(product.batch),
    )
    return [source.finish(grid, (items * items, 1, 1))]


def _loads(operands: Operands, product: Product, items: int) -> list[str]:
    """Lines that load the group's tile of each side; zeros outside of the matrix."""
    m, n, k = product.m, product.n, product.k
    edge, all_items = 4 * items, items * items
    loads = edge * _DEPTH // all_items
    inner = f"(from + v % {_DEPTH})"
    left = operands.left(f"min(row, {m - 1})", f"min({inner}, {k - 1})")
    right = operands.right(f"min(k, {k - 1})", f"min(column, {n - 1})")
    return [
        f"for (int i = 0; i < {loads}; i++) {{",
        f"  const int v = item + i * {all_items}, row = top + v / {_DEPTH};",
        f"  as[v % {_DEPTH}][v / {_DEPTH}] = row < {m} && {inner} < {k} ? {left} : 0.0f;",
        "}",
        f"for (int i = 0; i < {loads}; i++) {{",
        f"  const int v = item + i * {all_items}, k = from + v / {edge};",
        f"  const int column = left + v % {edge};",
        f"  bs[v / {edge}][v % {edge}] = column < {n} && k < {k} ? {right} : 0.0f;",
        "}",
    ]


def _stores(operands: Operands, product: Product, items: int) -> list[str]:
    """Lines that store those of an item's 4 x 4 sums that are inside of the matrix."""
    return [
        "for (int i = 0; i < 4; i++) for (int j = 0; j < 4; j++) {",
        f"  const int row = top + ty + i * {items}, column = left + tx + j * {items};",
        f"  if (row >= {product.m} || column >= {product.n}) continue;",
        *indented(operands.store("sum[i][j]", "row", "column")),
        "}",
    ]
