"""Transpose: one work item for each element or, if channels stay in place, for a vector of them.

On CPU cores, if ``x`` and ``y`` have different neighbours in memory, squares of elements are
transposed in registers: their rows are neighbours on one side, their columns on the other
(`reorder.transposed`).
"""

import math
from collections.abc import Mapping, Sequence

from coexec.engines.kernels.base import (
    Context,
    Kernel,
    KernelLaunch,
    Node,
    Source,
    Value,
    ceil_div,
    indented,
)
from coexec.engines.kernels.elements import moved
from coexec.engines.kernels.reorder import transposed
from coexec.engines.kernels.value import at, neighbours, split
from coexec.graph.graph import Operator


def permutation(op: Operator, rank: int) -> tuple[int, ...]:
    """The axis of the input for each axis of the output."""
    return op.ints("perm", range(rank - 1, -1, -1))


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    source = Source("transpose", context.arch)
    x = source.read("x", context.operand(node.operator.inputs[0]))
    y = context.value(node.output)
    order = permutation(node.operator, len(y.shape))
    computed = context.constant(node.operator.inputs[0]) is None
    if computed and context.arch.family == "cpu" and _by_squares(x, y, order, context.arch.block):
        return [_squares(source, x, y, order)]
    coordinates = [f"p{order.index(axis)}" for axis in range(len(order))]
    residue = 0 if len(order) == 4 and order[1] == 1 else None
    return [moved(source, x, y, coordinates, residue=residue)]


def _near_axis(value: Value) -> int:
    """The axis along which elements are neighbours in memory."""
    return 1 if value.block else len(value.shape) - 1


def _by_squares(x: Value, y: Value, order: Sequence[int], block: int) -> bool:
    """Whether neighbours of ``x`` are not neighbours of ``y``, and both have vectors of them."""
    if x.dtype != "float32" or x.half or y.half or not x.shape:
        return False
    long = all(v.block or v.shape[_near_axis(v)] >= block for v in (x, y))
    return long and order[_near_axis(y)] != _near_axis(x)


def _squares(source: Source, x: Value, y: Value, order: Sequence[int]) -> KernelLaunch:
    """The kernel that transposes squares. A work item moves one vector's width along the near axis
    of ``x``, and all elements along the near axis of ``y``.

    Squares of a tensor without blocks lie within it: the last one may overlap the previous one.
    """
    b, vector = source.arch.block, source.arch.vector
    u, v = _near_axis(x), order[_near_axis(y)]
    outer_axes = [axis for axis in range(len(order)) if axis not in (u, v)]
    sizes = [x.shape[axis] for axis in outer_axes] + [ceil_div(x.shape[u], b)]
    source.write("y", y)
    for name, value in (("x", x), ("y", y)):
        if not value.block:
            source.define(neighbours(name, False, b))
    place = {a: f"p{a}" for a in outer_axes}
    *texts, block = split("item", sizes)
    rows = [f"a{r}" for r in range(b)]
    loads = []
    for r, row in enumerate(rows):
        inner = f"min(v + {r}, {x.shape[v] - 1})" if y.block else f"v + {r}"
        load = _vector("x", x, {**place, u: "u", v: inner}, range(len(order)))
        loads.append(f"const {vector} {row} = {load};")
    turned, columns = transposed(rows)
    stores = []
    for c, column in enumerate(columns):
        where = _vector("y", y, {**place, u: f"u + {c}", v: "v"}, order)
        put = f"{'STORE' if y.block else 'PUTS'}_y({where}, {column});"
        stores.append(f"if (u + {c} < {x.shape[u]}) {put}" if x.block and c else put)
    first = f"{block} * {b}" if x.block else f"min({block} * {b}, {x.shape[u] - b})"
    next_v = "next" if y.block else f"min(next, {x.shape[v] - b})"
    lines = [
        "const int item = get_global_id(0);",
        *(f"const int {place[a]} = {text};" for a, text in zip(outer_axes, texts, strict=True)),
        f"const int u = {first};",
        f"for (int next = 0; next < {x.shape[v]}; next += {b}) {{",
        f"  const int v = {next_v};",
        *indented((*loads, *turned, *stores)),
        "}",
    ]
    source.lines(lines)
    return source.finish((math.prod(sizes),), (1, 1, 1))


def _vector(name: str, value: Value, place: Mapping[int, str], axes: Sequence[int]) -> str:
    """The load of a vector of neighbours of ``x``, or the position of one of ``y``.

    Args:
        place: coordinate by axis of ``x``; on the near axis of ``value``, the first coordinate.
        axes: the axis of ``x`` for each axis of ``value``.
    """
    coordinates = [place[axis] for axis in axes]
    if value.block:
        coordinates[1] = f"({coordinates[1]}) / {value.block}"
        position = f"VEC_{name}({', '.join(coordinates)})"
        return f"LOAD_x({position})" if name == "x" else position
    position = at(name, coordinates)
    return f"NEAR_x({position})" if name == "x" else position


KERNELS = {"Transpose": Kernel(launches)}
