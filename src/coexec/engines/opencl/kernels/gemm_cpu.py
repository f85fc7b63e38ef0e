"""Matrix products where one thread owns a core with wide vectors: PoCL.

A work item computes up to six rows times up to four vectors of columns in registers. A constant
right side lies packed as [group of columns][k][column], in the order in which it is read.
"""

import math

import numpy as np

from coexec.engines.opencl.architecture import Architecture
from coexec.engines.opencl.kernels.base import Context, KernelLaunch, Node, Source, ceil_div
from coexec.engines.opencl.kernels.product import Operands, Product
from coexec.frontend.module import Array

__all__ = ["launches", "steps"]

_ROWS = 6
_VECTORS = 4


def launches(node: Node, context: Context, product: Product) -> list[KernelLaunch]:
    width = context.arch.block
    vectors, tiles, rows = _tiles(context.arch, product)
    columns = vectors * width
    source = Source("gemm_cpu", context.arch, sized=True, alone=True)
    source.sizes(m=product.m, k=product.k, n=product.n)
    operands = Operands(source, context, node, product)
    constant = context.constant(node.operator.inputs[1])
    packed = constant is not None and constant.ndim == 2
    if packed:
        assert constant is not None
        source.constant("b", _packed(constant, product, columns))
    else:
        operands.declare_right()
    operands.declare_result()
    vector = context.arch.vector
    source.lines(f"  const int group = item_1, first = item_0 * {rows};")
    source.lines("\n".join(f"  {line}" for line in operands.batch_lines("item_2")))
    for r in range(rows):
        source.lines(f"  const int r{r} = min(first + {r}, m - 1);")
        source.lines("\n".join(f"  {vector} a{r}_{g} = ({vector})(0.0f);" for g in range(vectors)))
    source.lines("  for (int i = 0; i < k; i++) {")
    for g in range(vectors):
        right = f"LOAD_b((group * k + i) * {vectors} + {g})"
        if not packed:
            right = _gathered(operands, columns, g * width, width, vector)
        source.lines(f"    const {vector} w{g} = {right};")
    for r in range(rows):
        source.lines(f"    {{ const float s = {operands.left(f'r{r}', 'i')};")
        source.lines("\n".join(f"      a{r}_{g} += w{g} * s;" for g in range(vectors)))
        source.lines("    }")
    source.lines("  }")
    for r in range(rows):
        source.lines(_finish(operands, r, vectors, width))
    # Rows first: the packed columns of a group are still near for its next rows.
    grid = (tiles, ceil_div(product.n, columns), math.prod(product.batch))
    return [source.finish(grid, (1, 1, 1))]


def steps(arch: Architecture, product: Product) -> dict[str, float]:
    """What the kernel does, as terms of a workload."""
    vectors, tiles, rows = _tiles(arch, product)
    items = tiles * ceil_div(product.n, vectors * arch.block)
    return {
        "cycles": items * product.k * max(rows * vectors / 2, vectors / 2, 4.0),
        "items": float(items),
        "columns": 4.0 * items * product.k * vectors * arch.block,
    }


def _tiles(arch: Architecture, product: Product) -> tuple[int, int, int]:
    """Vectors of columns of a tile, tiles of rows, and rows of a tile."""
    tiles = ceil_div(product.m, _ROWS)
    vectors = min(_VECTORS, ceil_div(product.n, arch.block))
    return vectors, tiles, ceil_div(product.m, tiles)


def _packed(right: Array, product: Product, columns: int) -> Array:
    full = np.zeros((product.k, ceil_div(product.n, columns) * columns), np.float32)
    full[:, : product.n] = right.T if product.across_b else right
    return full.reshape(product.k, -1, columns).transpose(1, 0, 2)


def _gathered(operands: Operands, columns: int, first: int, width: int, vector: str) -> str:
    """A vector of columns of a right side that lies as in ONNX."""
    lanes = (
        operands.right("i", f"min(group * {columns} + {first + lane}, n - 1)")
        for lane in range(width)
    )
    return f"({vector})({', '.join(lanes)})"


def _finish(operands: Operands, r: int, vectors: int, width: int) -> str:
    columns = vectors * width
    lines = [f"if (first + {r} < m) {{", f"  float out[{columns}];"]
    for g in range(vectors):
        lines += [f"  out[{g * width + i}] = a{r}_{g}.s{i:x};" for i in range(width)]
    lines += [
        f"  for (int i = 0; i < {columns}; i++) {{",
        f"    const int row = first + {r}, column = group * {columns} + i;",
        "    if (column >= n) break;",
        *(f"    {line}" for line in operands.store("out[i]", "row", "column")),
        "  }",
        "}",
    ]
    return "\n".join(f"  {line}" for line in lines)
