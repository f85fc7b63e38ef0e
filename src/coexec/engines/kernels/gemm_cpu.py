"""Matrix products on CPU cores: one thread per core, with wide vectors.

A work item keeps the sums of a tile, rows times vectors of columns, in registers. The right side is
packed as [matrix][group of columns][k][column], in the order in which it is read. A constant right
side is packed when the kernel is generated, a computed one in each run before the product. With so
few rows that packing does not pay off, a computed one is not packed.

In a result whose rows have at least one vector, the last group of columns starts earlier and
overlaps the previous group. So all its vectors are whole, also in the epilogue.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coexec.arrays import Array, aligned_zeros
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import (
    Context,
    KernelLaunch,
    Node,
    Source,
    Value,
    ceil_div,
    indented,
)
from coexec.engines.kernels.pairs import in_pairs, pairs, terms
from coexec.engines.kernels.product import Operands, Product
from coexec.engines.kernels.touches import Touch, along
from coexec.engines.kernels.value import at, neighbours, split

_ROWS = 6
_VECTORS = 8
_LEAST_VECTORS = 4
"""Vectors of a group where there are too few groups for all cores."""
_READ_ONCE = 2
"""Most tiles of rows for which packing the right side does not pay off."""
_DEPTH = 64
"""Rows of the right side that a work item packs."""


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Division of a result into tiles."""

    rows: int
    tiles: int
    """Number of tiles of so many rows; the last one may have fewer rows."""
    vectors: int
    """Vectors of columns in a group."""
    columns: int
    groups: int

    @property
    def left(self) -> str:
        """Expression of the first column of ``group``."""
        return f"max(0, min(group * {self.columns}, n - {self.columns}))"

    @staticmethod
    def of(arch: Architecture, product: Product) -> "_Tiles":
        """The tiles. Registers hold the sums, a row of vectors of the right side, and a scalar."""
        tiles = ceil_div(product.m, _ROWS)
        rows = ceil_div(product.m, tiles)
        most = min(_VECTORS, max(1, (arch.registers - 1) // (rows + 1)))
        whole = max(1, product.n // arch.block)
        if arch.compute_units > 1:
            share = whole * tiles * math.prod(product.batch) // (2 * arch.compute_units)
            most = max(min(most, _LEAST_VECTORS), min(most, share))
        groups = ceil_div(whole, most)
        vectors = ceil_div(whole, groups)
        columns = vectors * arch.block
        return _Tiles(rows, tiles, vectors, columns, ceil_div(product.n, columns))


def launches(node: Node, context: Context, product: Product) -> list[KernelLaunch]:
    width, vector = context.arch.block, context.arch.vector
    cut = _Tiles.of(context.arch, product)
    source = Source("gemm_cpu", context.arch, sized=True, alone=True)
    source.sizes(m=product.m, k=product.k, n=product.n, groups=cut.groups)
    operands = Operands(source, context, node, product)
    operands.declare_result(runs=cut.columns <= product.n)
    right = _right(node, context, product, cut, operands, source)
    source.add(f"  const int group = item_1, first = item_0 * {cut.rows}, left = {cut.left};")
    source.lines(operands.batch_lines("item_2"))
    for r in range(cut.rows):
        source.add(f"  const int r{r} = min(first + {r}, m - 1);")
        sums = (f"  {vector} a{r}_{g} = ({vector})(0.0f);" for g in range(cut.vectors))
        source.add("\n".join(sums))
    source.lines(_sums(operands, cut, vector, right))
    finish = _finish_vectors if operands.runs else _finish_scalars
    for r in range(cut.rows):
        source.lines(finish(operands, r, cut.vectors, width))
    # Rows vary first: the packed columns of a group are in the cache for its next rows.
    grid = (cut.tiles, cut.groups, math.prod(product.batch))
    macs = math.prod(product.batch) * product.m * product.k * product.n
    touches = operands.touches(0, cut.rows, 2)
    value = context.value(node.operator.inputs[1])
    alike = _matrices(value.shape) == product.batch
    samples = along(2, grid[2]) if alike else None
    if right.kernels:
        packed = _packed_sizes(value, product, cut)
        touches["b"] = Touch(packed, samples=samples, planes=along(1, cut.groups))
    elif not value.block and not value.axes:
        matrices = math.prod(_matrices(value.shape))
        touches["b"] = Touch((matrices, 1, 1, product.k * product.n), samples)
    return [*right.kernels, source.finish(grid, (1, 1, 1), touches=touches, macs=macs)]


def steps(arch: Architecture, product: Product, constant: bool = True) -> dict[str, float]:
    """Terms of the kernel's workload; ``constant``: whether the right side is constant."""
    cut = _Tiles.of(arch, product)
    items = cut.tiles * cut.groups
    copied = not constant and cut.tiles > _READ_ONCE
    return {
        "cycles": items * product.k * max(cut.rows * cut.vectors / 2, cut.vectors / 2, 4.0),
        "items": float(items),
        "columns": 4.0 * items * product.k * cut.columns,
        **({"packed": 4.0 * cut.groups * product.k * cut.columns} if copied else {}),
    }


class _Right(NamedTuple):
    """The right side of a product."""

    load: Callable[[int], str]
    """The expression of a vector of its row ``i``, by the vector's number in the group of columns,
    or of a vector of pairs of the rows ``i`` and ``i`` + 1."""
    kernels: Sequence[KernelLaunch] = ()
    """Launches that pack it."""
    paired: bool = False


def _right(
    node: Node, context: Context, product: Product, cut: _Tiles, operands: Operands, source: Source
) -> _Right:
    """Declare the right side."""
    name = node.operator.inputs[1]
    constant, width = context.constant(name), context.arch.block
    value = context.value(name)
    whole = cut.columns <= product.n and not product.across_b and len(value.shape) > 1
    if constant is None and cut.tiles <= _READ_ONCE and whole and not value.block:
        operands.declare_right()
        source.define(neighbours("b", value.half, width))
        return _Right(lambda g: f"NEAR_b({operands.right_at('i', f'left + {g * width}')})")
    start = f"(({operands.right_matrix()}) * groups + group) * k"
    if constant is None:
        vectors = math.prod(_packed_sizes(value, product, cut)) // width
        packed = context.temporary((1, width, 1, vectors), width)
        source.read("b", packed)
        kernels = [_pack(context, value, packed, product, cut)]
        return _Right(lambda g: f"LOAD_b(({start} + i) * {cut.vectors} + {g})", kernels)
    rows = _packed(constant, product, cut)
    left = context.value(node.operator.inputs[0])
    if not left.half or left.block or product.across_a or product.k % 2:
        source.constant("b", rows)
        return _Right(lambda g: f"LOAD_b(({start} + i) * {cut.vectors} + {g})")
    source.constant("b", in_pairs(rows, 2), half=True)
    for side in ("a", "b"):
        source.define(pairs(side, width))
    return _Right(lambda g: f"PAIRS_b(({start} + i) / 2 * {cut.vectors} + {g})", paired=True)


def _sums(operands: Operands, cut: _Tiles, vector: str, right: _Right) -> list[str]:
    """Lines that add up the products of all rows of the right side."""
    weights, scalar, _, get, add = terms(vector, right.paired)
    groups = range(cut.vectors)
    lines = [f"for (int i = 0; i < k; i += {2 if right.paired else 1}) {{"]
    lines += [f"  const {weights} w{g} = {right.load(g)};" for g in groups]
    for r in range(cut.rows):
        lines.append(f"  {{ const {scalar} s = {get}_a({operands.left_at(f'r{r}', 'i')});")
        lines += [f"    {add.format(f'a{r}_{g}', f'w{g}', 's')}" for g in groups]
        lines.append("  }")
    return [*lines, "}"]


def _matrices(shape: Sequence[int]) -> tuple[int, ...]:
    """The axes of a right side in front of the two axes of a matrix."""
    return tuple(shape[:-2])


def _packed(right: Array, product: Product, cut: _Tiles) -> Array:
    matrices = right.reshape(-1, *(right.shape[-2:] if right.ndim > 1 else (product.k, 1)))
    rows = matrices.swapaxes(1, 2) if product.across_b else matrices
    full = aligned_zeros((len(rows), cut.groups, product.k, cut.columns))
    for group in range(cut.groups):
        left = max(0, min(group * cut.columns, product.n - cut.columns))
        part = rows[:, :, left : left + cut.columns]
        full[:, group, :, : part.shape[2]] = part
    return full


def _packed_sizes(right: Value, product: Product, cut: _Tiles) -> tuple[int, int, int, int]:
    return math.prod(_matrices(right.shape)), cut.groups, product.k, cut.columns


def _pack(
    context: Context, right: Value, packed: Value, product: Product, cut: _Tiles
) -> KernelLaunch:
    """The kernel that packs the right side; a work item takes some rows of a group of columns."""
    source = Source("gemm_pack", context.arch, sized=True, alone=True)
    source.sizes(k=product.k, n=product.n, groups=cut.groups)
    source.read("b", right)
    source.write("y", packed)
    matrix = (
        ["i"]
        if len(right.shape) == 1
        else ["left + j", "i"]
        if product.across_b
        else (["i", "left + j"])
    )
    sizes = _matrices(right.shape)
    where = at("b", [*split("item_2", sizes), *matrix])
    rows = f"for (int i = item_0 * {_DEPTH}; i < min((item_0 + 1) * {_DEPTH}, k); i++)"
    columns = f"for (int j = 0; j < {cut.columns}; j++)"
    value = (
        f"GET_b({where})" if cut.columns <= product.n else (f"left + j < n ? GET_b({where}) : 0.0f")
    )
    source.add(
        "\n".join(
            [
                f"  const int group = item_1, left = {cut.left};",
                *((columns, rows) if product.across_b else (rows, columns)),
                f"  PUT_y(((item_2 * groups + group) * k + i) * {cut.columns} + j, {value});",
            ]
        )
    )
    grid = (ceil_div(product.k, _DEPTH), cut.groups, math.prod(sizes))
    strips, samples = along(0, grid[0], _DEPTH), along(2, grid[2])
    touches = {"y": Touch(_packed_sizes(right, product, cut), samples, along(1, grid[1]), strips)}
    if not (product.across_b or right.block or right.axes) and len(right.shape) > 1:
        touches["b"] = Touch((grid[2], 1, product.k, product.n), samples, rows=strips)
    return source.finish(grid, (1, 1, 1), touches=touches)


def _finish_vectors(operands: Operands, r: int, vectors: int, width: int) -> list[str]:
    lines = [f"if (first + {r} < m) {{"]
    for g in range(vectors):
        column = f"left + {g * width}"
        stored = operands.store(f"a{r}_{g}", f"r{r}", column, f"_{g}")
        lines += indented(stored)
    return [*lines, "}"]


def _finish_scalars(operands: Operands, r: int, vectors: int, width: int) -> list[str]:
    columns = vectors * width
    lines = [f"if (first + {r} < m) {{", f"  float out[{columns}];"]
    for g in range(vectors):
        lines += [f"  out[{g * width + i}] = a{r}_{g}.s{i:x};" for i in range(width)]
    return [
        *lines,
        f"  for (int i = 0; i < {columns}; i++) {{",
        f"    const int row = first + {r}, column = left + i;",
        "    if (column >= n) break;",
        *indented(operands.store("out[i]", "row", "column"), 2),
        "  }",
        "}",
    ]
