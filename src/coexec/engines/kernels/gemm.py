"""Gemm and MatMul: the variant for this processor, and two of the variants: products of matrices
that lie in blocks, as in attention, on CPU cores, and tiles on GPUs.
"""

import math

from coexec.engines.kernels import gemm_cpu, gemv
from coexec.engines.kernels.base import (
    Context,
    Kernel,
    KernelLaunch,
    Node,
    Source,
    ceil_div,
    indented,
)
from coexec.engines.kernels.epilogue import Output
from coexec.engines.kernels.product import Operands, Product
from coexec.engines.kernels.unsupported import FLOAT32


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    product = Product.of(node.operator, context)
    if context.arch.family == "cpu":
        if is_lane_by_lane(node, context):
            return _lane_by_lane(node, context, product)
        return gemm_cpu.launches(node, context, product)
    if gemv.fits(node, context, product):
        return gemv.launches(node, context, product)
    return _tiled(node, context, product)


_ROWS = 4


def is_lane_by_lane(node: Node, context: Context) -> bool:
    """Whether both sides and the result are in blocks, with the same batch and no constants."""
    names = (*node.operator.inputs[:2], node.operator.outputs[0])
    values = [context.value(name) for name in names]
    outer = {value.shape[:2] for value in values}
    return (
        all(value.block for value in values)
        and len(outer) == 1
        and not any(context.tensors[name].constant for name in names)
        and bool(context.value(node.output).block)
    )


def _lane_by_lane(node: Node, context: Context, product: Product) -> list[KernelLaunch]:
    """A work item computes a tile of rows and columns of a block of matrices in registers.

    A tensor [N, heads, rows, columns] has heads in the place of channels. So a vector contains one
    element of as many matrices as a block has channels, and vectors are multiplied lane by lane.
    """
    a, b = (context.value(name) for name in node.operator.inputs[:2])
    rows = ceil_div(product.m, ceil_div(product.m, _ROWS))
    most = max(1, (context.arch.registers - 1) // (rows + 1))
    columns = ceil_div(product.n, ceil_div(product.n, most))
    source = Source("gemm_lanes", context.arch, sized=True, alone=True)
    source.read("a", a)
    source.read("b", b)
    output = Output(source, context, node)
    source.sizes(m=product.m, k=product.k, n=product.n, slices=a.slices)
    vector = context.arch.vector
    tile = [(r, c) for r in range(rows) for c in range(columns)]
    lines = [
        "const int s = item_2 % slices, image = item_2 / slices;",
        f"const int row = max(0, min(item_0 * {rows}, m - {rows}));",
        f"const int column = max(0, min(item_1 * {columns}, n - {columns}));",
        *(f"{vector} a{r}_{c} = ({vector})(0.0f);" for r, c in tile),
        "for (int i = 0; i < k; i++) {",
        *(
            f"  const {vector} w{c} = LOAD_b(VEC_b(image, s, i, column + {c}));"
            for c in range(columns)
        ),
    ]
    for r in range(rows):
        lines.append(f"  {{ const {vector} f = LOAD_a(VEC_a(image, s, row + {r}, i));")
        lines += [f"    a{r}_{c} += f * w{c};" for c in range(columns)]
        lines.append("  }")
    lines.append("}")
    for r, c in tile:
        position = ["image", "s", f"row + {r}", f"column + {c}"]
        lines += output.store(f"a{r}_{c}", position, f"_{r}_{c}")
    source.lines(lines)
    grid = (ceil_div(product.m, rows), ceil_div(product.n, columns), a.shape[0] * a.slices)
    return [source.finish(grid, (1, 1, 1))]


_DEPTH = 16
_ITEMS = 16


def _tiled(node: Node, context: Context, product: Product) -> list[KernelLaunch]:
    """The product on GPUs, in tiles through local memory; operands in any layout.

    A group of 256 work items computes 64 rows times 64 columns, each item 4 x 4 of them. For every
    16 steps of the inner axis the group loads a tile of each side.
    """
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


KERNELS = dict.fromkeys(("Gemm", "MatMul"), Kernel(launches, FLOAT32, takes_epilogue=True))
