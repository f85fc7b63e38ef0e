"""Gemm and MatMul on GPUs with fast local memory: products of matrices in tiles (`tiles`).

Operands may have any layout. Where neighbours in a row lie side by side, a work item loads four of
them at once. A constant right side is packed into whole tiles. Matrices that all meet the same
right side are one matrix with more rows.
"""

import math

from coexec.engines.kernels.base import (
    Context,
    KernelLaunch,
    Node,
    Source,
    Value,
    ceil_div,
    in_half,
    indented,
)
from coexec.engines.kernels.product import Operands, Product
from coexec.engines.kernels.tile_shapes import Sizes, TileShape, tile_shapes
from coexec.engines.kernels.tiles import Tiled
from coexec.engines.kernels.value import neighbours


def tile_of(node: Node, context: Context, product: Product) -> TileShape | None:
    """The tile for a product; None if no group of work items fits this processor."""
    left, right = node.operator.inputs[:2]
    constant = context.constant(right)
    packed = constant is not None and constant.ndim == 2
    copies = (
        packed
        and context.arch.unit == "fp16"
        and context.has_vectors(left, -2 if product.across_a else -1)
        and _half(context, left)
    )
    found = tile_shapes(_sizes(node, context, product), context.arch, copies)
    return found[0] if found else None


def _sizes(node: Node, context: Context, product: Product) -> Sizes:
    inner, matrices = ceil_div(product.k, 4) * 4, math.prod(product.batch)
    if _one_matrix(node, context, product):
        return Sizes(matrices * product.m, product.n, inner)
    return Sizes(product.m, product.n, inner, matrices)


def _one_matrix(node: Node, context: Context, product: Product) -> bool:
    """Whether all matrices on the left meet one matrix, and ``k`` has one stride in all rows."""
    left, right = node.operator.inputs[:2]
    linear = context.constant(left) is not None or not context.value(left).block
    return linear and len(context.tensors[right].shape) == 2 and bool(product.batch)


def launches(
    node: Node, context: Context, product: Product, tile_shape: TileShape
) -> list[KernelLaunch]:
    """One kernel. If groups share the inner axis, a second kernel adds their sums."""
    source = Source("gemm_tiled", context.arch)
    operands = Operands(source, context, node, product)
    tile = _TiledProduct(node, context, product, operands, tile_shape)
    if tile.packed:
        right = context.constants[node.operator.inputs[1]]
        source.constant("w", tile.packed_right(right.T if product.across_b else right))
    else:
        operands.declare_right()
    tile.define_vectors(source, context)
    start = []
    if not tile.is_one:
        start = operands.batch_lines(f"get_group_id(2) / {tile_shape.splits}")
    if tile_shape.splits == 1:
        operands.declare_result(runs=product.n % 4 == 0)
        row = "row" if tile.is_one else "m"
        source.add(tile.text(_stores(operands, product, row), start))
        return [source.finish(tile.grid, tile.group)]
    sizes = tile.sizes
    partial = context.temporary((tile_shape.splits, sizes.matrices, sizes.rows, 4 * tile.vectors))
    source.write("p", partial)
    matrix = f"(split * {sizes.matrices} + get_group_id(2) / {tile_shape.splits})"
    at = f"({matrix} * {sizes.rows} + m) * {tile.vectors} + block"
    source.add(tile.text([f"((__global float4*)p)[{at}] = total;"], start))
    first = source.finish(tile.grid, tile.group)
    return [first, _sum(node, context, product, partial, tile)]


def _sum(
    node: Node, context: Context, product: Product, partial: Value, tile: "_TiledProduct"
) -> KernelLaunch:
    """The kernel that adds the sums of the splits."""
    source = Source("gemm_sum", context.arch)
    source.read("p", partial)
    operands = Operands(source, context, node, product)
    operands.declare_result(runs=product.n % 4 == 0)
    rows = math.prod(product.batch) * product.m
    lines = [
        "const int block = get_global_id(0), row = get_global_id(1);",
        f"const int m = row % {product.m};",
        *operands.batch_lines(f"row / {product.m}"),
        "float4 total = (float4)(0.0f);",
        f"for (int i = 0; i < {tile.tile_shape.splits}; i++)",
        f"  total += ((__global const float4*)p)[(i * {rows} + row) * {tile.vectors} + block];",
        *_stores(operands, product, "m"),
    ]
    source.lines(lines)
    return source.finish((tile.vectors, rows))


def _stores(operands: Operands, product: Product, row: str) -> list[str]:
    """Lines that store ``total``, four neighbours of ``row``, as far as the matrix has them."""
    if operands.runs:
        return operands.store("total", row, "(block * 4)")
    lines = []
    for lane in range(4):
        column = f"(block * 4 + {lane})"
        lines += [
            f"if ({column} < {product.n}) {{",
            *indented(operands.store(f"total.s{lane}", row, column, f"_{lane}")),
            "}",
        ]
    return lines


class _TiledProduct(Tiled):
    """The text of the kernel for one product."""

    in_rows = True
    left_name = "a"
    left_vector = "NEAR_a(4 * ({}))"

    def __init__(
        self,
        node: Node,
        context: Context,
        product: Product,
        operands: Operands,
        tile_shape: TileShape,
    ) -> None:
        super().__init__(_sizes(node, context, product), tile_shape)
        self.is_one = _one_matrix(node, context, product)
        """Whether a row ``m`` is one of all matrices."""
        self._product = product
        self._operands = operands
        left, right = self._names = node.operator.inputs[:2]
        constant = context.constant(right)
        self.packed = constant is not None and constant.ndim == 2
        self._axes = () if context.constant(left) is not None else context.value(left).axes
        self._left_rows = context.has_vectors(left, -2 if product.across_a else -1)
        self.raw_left = self._left_rows and tile_shape.unit == "fp16" and _half(context, left)
        rank = len(context.tensors[right].shape)
        self._right_rows = rank > 1 and context.has_vectors(right, -2 if product.across_b else -1)
        inner = -1 if product.across_b or rank == 1 else -2
        self.inner_right = not self._right_rows and context.has_vectors(right, inner)

    def define_vectors(self, source: Source, context: Context) -> None:
        """Define ``NEAR_a`` and ``NEAR_b``, as far as the text uses them."""
        right = not self.packed and (self._right_rows or self.inner_right)
        used = (("a", self._left_rows), ("b", right))
        for (name, vectors), operand in zip(used, self._names, strict=True):
            if vectors:
                source.define(neighbours(name, _half(context, operand), 4, aligned=True))

    def row_lines(self, number: int) -> list[str]:
        """Where all matrices are one, the position of the row is computed once."""
        row, rows = f"m{number}", self._product.m
        if not self.is_one:
            return []
        if not self._axes:
            return [f"const int at{number} = {row} * {self._product.k};"]
        lines = [f"const int row = {row} % {rows};", *self._operands.batch_lines(f"{row} / {rows}")]
        start = self._operands.left_at("row", "0")
        return [f"int at{number};", "{", *indented([*lines, f"at{number} = {start};"]), "}"]

    def left_place(self, number: int) -> tuple[list[str], str, str]:
        at = f"at{number} + q * 4"
        if not self.is_one:
            at = self._operands.left_at(f"m{number}", "q * 4")
        return [], " && ".join(self.bounds) or "1", f"({at}) / 4"

    def load_row(self, number: int) -> list[str]:
        if self._left_rows:
            return super().load_row(number)
        i, product, row = number, self._product, f"m{number}"
        step = self._axes[-1][0][1] if self._axes and self._axes[-1] else 1
        loads = []
        for k in (f"q * 4 + {lane}" for lane in range(4)):
            one = f"GET_a(at{i} + ({k}) * {step})"
            element = one if self.is_one else self._operands.left(row, k)
            inside = f"{row} < {self.sizes.rows} && {k} < {product.k}"
            loads.append(f"{inside} ? {element} : 0.0f")
        return [f"fx{i} = (float4)({', '.join(loads)});"]

    def load_columns(self, number: int) -> str:
        target, product = f"fw{number}", self._product
        if self._right_rows or self.inner_right:
            at = self._operands.right_at("k", "right")
            inside = f"k < {product.k} && right < {product.n}"
            zero = "(float4)(0.0f)"
            return f"{target} = {inside} ? NEAR_b({at}) : {zero};"
        loads = [
            f"k < {product.k} && right + {lane} < {product.n}"
            f" ? {self._operands.right('k', f'(right + {lane})')} : 0.0f"
            for lane in range(4)
        ]
        return f"{target} = (float4)({', '.join(loads)});"

    def place_lines(self) -> str:
        if not self.is_one:
            return ""
        rows = self._product.m
        batch = self._operands.batch_lines(f"m / {rows}")
        return " ".join([f"const int row = m % {rows};", *batch])


def _half(context: Context, name: str) -> bool:
    """Whether an operand is stored in 16 bits."""
    if context.constant(name) is None:
        return context.value(name).half
    return in_half(context.arch, "float32", math.prod(context.tensors[name].shape))
