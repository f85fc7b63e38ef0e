"""A few rows times a constant matrix on a GPU: limited by reading the matrix once.

A work item sums four neighbouring columns. The parts of a group share the inner axis. If there are
few columns, groups along z also share it.
"""

from coexec.arrays import Array, aligned_zeros
from coexec.engines.kernels.base import (
    Context,
    KernelLaunch,
    Node,
    Source,
    Value,
    ceil_div,
    indented,
)
from coexec.engines.kernels.product import Operands, Product

_MOST_ROWS = 4
_ITEMS = 32
_PARTS = 8


def fits(node: Node, context: Context, product: Product) -> bool:
    constant = context.constant(node.operator.inputs[1])
    return (
        constant is not None
        and constant.ndim == 2
        and (product.m <= _MOST_ROWS and not product.batch)
    )


def launches(node: Node, context: Context, product: Product) -> list[KernelLaunch]:
    """One kernel. If groups along z share the inner axis, a second kernel adds their sums."""
    groups = ceil_div(product.n, 4 * _ITEMS)
    vectors = groups * _ITEMS
    most_splits = ceil_div(4 * context.arch.compute_units, groups)
    splits = max(1, min(most_splits, product.k // (16 * _PARTS)))
    partial = context.temporary((splits, product.m, vectors, 4))
    source = Source("gemv", context.arch)
    operands = Operands(source, context, node, product)
    source.constant("b", _filled(node, context, product, vectors))
    if splits == 1:
        operands.declare_result()
        store = _store(operands, product)
    else:
        source.write("p", partial)
        at = f"(split * {product.m} + row) * {vectors} + vector"
        store = [f"  ((__global float4*)p)[{at}] = total;"]
    depth = ceil_div(product.k, splits * _PARTS)
    lines = [*_totals(operands, product, depth, vectors), *store, "}"]
    source.lines(lines)
    kernels = [source.finish((vectors, _PARTS, splits), (_ITEMS, _PARTS, 1))]
    if splits > 1:
        kernels.append(_sum(node, context, product, partial, splits, vectors))
    return kernels


def _filled(node: Node, context: Context, product: Product, vectors: int) -> Array:
    """The matrix as [inner axis][column], filled up to whole groups with zeros."""
    right = context.constant(node.operator.inputs[1])
    assert right is not None
    full = aligned_zeros((product.k, vectors * 4))
    full[:, : product.n] = right.T if product.across_b else right
    return full


def _totals(operands: Operands, product: Product, depth: int, vectors: int) -> list[str]:
    """Lines that declare ``total`` of each row: four columns, summed over all parts of the group.

    ``depth``: steps of the inner axis in a part.
    """
    return [
        "const int item = get_local_id(0), part = get_local_id(1), split = get_global_id(2);",
        "const int vector = get_global_id(0);",
        f"const int first = (split * {_PARTS} + part) * {depth};",
        f"const int last = min(first + {depth}, {product.k});",
        f"__local float4 sums[{_PARTS}][{product.m}][{_ITEMS}];",
        *(f"float4 a{r} = (float4)(0.0f);" for r in range(product.m)),
        "for (int k = first; k < last; k++) {",
        f"  const float4 w = LOAD_b(k * {vectors} + vector);",
        *(f"  a{r} += w * {operands.left(str(r), 'k')};" for r in range(product.m)),
        "}",
        *(f"sums[part][{r}][item] = a{r};" for r in range(product.m)),
        "barrier(CLK_LOCAL_MEM_FENCE);",
        f"if (part >= {product.m}) return;",
        f"for (int row = part; row < {product.m}; row += {_PARTS}) {{",
        "  float4 total = sums[0][row][item];",
        f"  for (int i = 1; i < {_PARTS}; i++) total += sums[i][row][item];",
    ]


def _store(operands: Operands, product: Product) -> list[str]:
    text = ["  const int column = vector * 4;"]
    for lane in range(4):
        text.append(f"  if (column + {lane} < {product.n}) {{")
        stored = operands.store(f"total.s{lane}", "row", f"(column + {lane})", f"_{lane}")
        text += [*indented(stored, 2), "  }"]
    return text


def _sum(
    node: Node, context: Context, product: Product, partial: Value, splits: int, vectors: int
) -> KernelLaunch:
    """The kernel that adds the sums of the splits."""
    source = Source("gemv_sum", context.arch)
    source.read("p", partial)
    operands = Operands(source, context, node, product)
    operands.declare_result()
    lines = [
        "const int vector = get_global_id(0), row = get_global_id(1);",
        "float4 total = (float4)(0.0f);",
        f"for (int i = 0; i < {splits}; i++)",
        f"  total += ((__global const float4*)p)[(i * {product.m} + row) * {vectors} + vector];",
        *_store(operands, product),
    ]
    source.lines(lines)
    return source.finish((ceil_div(product.n, 4), product.m))
