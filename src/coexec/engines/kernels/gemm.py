"""Gemm and MatMul: the variant for this processor, and two of the variants: products of matrices
that lie in blocks, as in attention, on CPU cores, and any product on GPUs.
"""

import math

from coexec.engines.kernels import gemm_cpu, gemm_tiled, gemv
from coexec.engines.kernels.base import (
    Context,
    Kernel,
    KernelLaunch,
    Node,
    Source,
    ceil_div,
)
from coexec.engines.kernels.epilogue import Output
from coexec.engines.kernels.product import Operands, Product
from coexec.engines.kernels.touches import Along, along, of_image
from coexec.engines.kernels.unsupported import FLOAT32


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    product = Product.of(node.operator, context)
    if context.arch.family == "cpu":
        if is_lane_by_lane(node, context):
            return _lane_by_lane(node, context, product)
        return gemm_cpu.launches(node, context, product)
    if gemv.fits(node, context, product):
        return gemv.launches(node, context, product)
    tile = gemm_tiled.tile_of(node, context, product)
    return (
        _any(node, context, product)
        if tile is None
        else gemm_tiled.launches(node, context, product, tile)
    )


def _any(node: Node, context: Context, product: Product) -> list[KernelLaunch]:
    """The general variant, for GPUs with small groups: a work item computes one scalar."""
    source = Source("gemm_any", context.arch)
    operands = Operands(source, context, node, product)
    operands.declare_right()
    operands.declare_result()
    lines = [
        "const int column = get_global_id(0), row = get_global_id(1);",
        *operands.batch_lines("get_global_id(2)"),
        "float sum = 0.0f;",
        f"for (int k = 0; k < {product.k}; k++)",
        f"  sum += {operands.left('row', 'k')} * {operands.right('k', 'column')};",
        *operands.store("sum", "row", "column"),
    ]
    source.lines(lines)
    return [source.finish((product.n, product.m, math.prod(product.batch)))]


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
    first = [max(0, min(i * rows, product.m - rows)) for i in range(grid[0])]
    strips, planes = Along(0, first, [row + rows for row in first]), along(2, grid[2])
    touches = {
        "a": of_image(a, strips, planes, joint=True),
        "b": of_image(b, None, planes, joint=True),
        "y": of_image(output.value, strips, planes, joint=True),
    }
    macs = grid[2] * a.block * product.m * product.k * product.n
    return [source.finish(grid, (1, 1, 1), touches=touches, macs=macs)]


KERNELS = dict.fromkeys(
    ("Gemm", "MatMul"), Kernel(launches, FLOAT32, takes_views="product", takes_epilogue=True)
)
