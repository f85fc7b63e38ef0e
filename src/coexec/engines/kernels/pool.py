"""MaxPool, AveragePool and LpPool over any number of axes.

A work item computes a vector of channels of one output pixel, or a scalar in other layouts. On CPU
cores it computes such vectors of whole rows.
"""

import math
from collections.abc import Mapping, Sequence

from coexec.engines.kernels.base import (
    CTYPES,
    Context,
    Kernel,
    KernelLaunch,
    Node,
    Source,
    ceil_div,
    indented,
)
from coexec.engines.kernels.output import Output
from coexec.engines.kernels.positions import at
from coexec.engines.kernels.reductions import lowest
from coexec.engines.kernels.unsupported import FLOAT32, NUMBERS
from coexec.engines.kernels.window_loops import (
    Size,
    grid,
    inside,
    output_coordinates,
    over_taps,
    taps,
)
from coexec.graph.graph import Operator, Tensor
from coexec.graph.rules.windows import Window, windows

__all__ = ["KERNELS"]


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    if windows(op, tensors, op.ints("kernel_shape", ())) is None:
        return f"the padding of {op.op_type} is negative or does not fit its output"
    return None


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    slides = windows(op, context.tensors, op.ints("kernel_shape", ()))
    assert slides is not None
    dilations = op.ints("dilations", (1,) * len(slides))
    indices = op.outputs[1] if len(op.outputs) > 1 and op.outputs[1] in context.tensors else ""
    block = context.value(node.output).block
    scalar = context.value(op.inputs[0]).block != block or bool(indices)
    in_rows = context.arch.family == "cpu" and bool(block) and not scalar
    source = Source("pool", context.arch, sized=in_rows, alone=in_rows)
    x = source.read("x", context.operand(op.inputs[0]))
    output = Output(source, context, node, scalar)
    y = output.value
    outer = (y.shape[0], y.slices if output.vector else y.shape[1])
    where_it_is = ("column", "row", "item_1") if in_rows else ()
    lines, (n, c) = output_coordinates(y.shape[2:], outer, *where_it_is)
    spatial = [f"i{axis}" for axis in range(len(slides))]
    if output.vector:
        kind, load = context.arch.vector, f"LOAD_x(VEC_x({', '.join([n, c, *spatial])}))"
    else:
        kind, load = CTYPES[x.dtype], f"GET_x({at('x', [n, c, *spatial])})"
    start, step, result = _steps(op, x.dtype, kind, _count(op, slides, dilations, source.size))
    if indices:
        source.write("indices", context.value(indices))
        index = _index(op, x.shape, n, c)
        step = f"if (best < 0 || v > acc) {{ acc = v; best = {index}; }}"
        lines.append("long best = -1;")
    lines.append(f"{kind} acc = ({kind})({start});")
    take = [f"const {kind} v = {load};", step]
    bounds, loops = over_taps(slides, dilations, take, source.size, in_rows)
    lines += [*bounds, *loops]
    where = [n, c, *(f"o{axis}" for axis in range(len(slides)))]
    if indices:
        lines.append(f"PUT_indices({at('indices', where)}, best);")
    lines += [f"const {kind} pooled = {result};", *output.store("pooled", where)]
    sizes = grid(y.shape[2:], math.prod(outer))
    if in_rows:
        return [_of_rows(source, lines, sizes)]
    source.lines(lines)
    return [source.finish(sizes)]


def _of_rows(source: Source, lines: Sequence[str], sizes: tuple[int, int, int]) -> KernelLaunch:
    """The launch for all columns and rows. ``lines`` compute a vector at (column, row) of
    item_1."""
    columns, rows, items = sizes
    units = source.arch.compute_units
    bands = 1 if units == 1 else min(rows, ceil_div(4 * units, items))
    source.sizes(columns=columns, rows=rows, rows_each=ceil_div(rows, bands))
    source.add(
        "\n".join(
            [
                "  const int first = item_0 * rows_each, end = first + rows_each;",
                "  for (int row = first; row < end && row < rows; row++) {",
                "    for (int column = 0; column < columns; column++) {",
                *indented(lines, 3),
                "    }",
                "  }",
            ]
        )
    )
    return source.finish((bands, items), (1, 1, 1))


def _steps(op: Operator, dtype: str, kind: str, count: str) -> tuple[str, str, str]:
    """First value of ``acc``, the statement for an element ``v``, and the expression of the
    result."""
    if op.op_type == "MaxPool":
        # PoCL calls a function for max and for fmax.
        return lowest(dtype), "acc = acc > v ? acc : v;", "acc"
    if op.op_type == "AveragePool":
        return "0.0f", "acc += v;", f"acc * (1.0f / ({count}))"
    p = op.int("p", 2)
    powers = {1: ("fabs(v)", "acc"), 2: ("v * v", "sqrt(acc)")}
    term, root = powers.get(
        p, (f"pow(fabs(v), ({kind})({p}.0f))", f"pow(acc, ({kind})({1 / p!r}f))")
    )
    return "0.0f", f"acc += {term};", root


def _index(op: Operator, shape: Sequence[int], n: str, c: str) -> str:
    """Index of the element (i0, i1, ...) in the whole input, as MaxPool counts."""
    axes = list(range(len(shape) - 2))
    if op.int("storage_order", 0):
        axes.reverse()
    text = f"(long)({n}) * {shape[1]} + {c}"
    for axis in axes:
        text = f"({text}) * {shape[2 + axis]} + i{axis}"
    return text


def _count(op: Operator, slides: Sequence[Window], dilations: Sequence[int], size: Size) -> str:
    """Number of elements in an average, as an expression of o0, o1, ..."""
    padding = bool(op.int("count_include_pad", 0))
    factors = [
        _counted(axis, s, d, padding, size)
        for axis, (s, d) in enumerate(zip(slides, dilations, strict=True))
    ]
    if all(f.isdigit() for f in factors):
        return f"{math.prod(map(int, factors))}.0f"
    return f"(float)({' * '.join(factors)})"


def _counted(axis: int, window: Window, dilation: int, padding: bool, size: Size) -> str:
    """Number of elements on one axis. It depends on o0, o1, ... if windows reach too far."""
    low, high = (-window.begin, window.size + window.end) if padding else (0, window.size)
    count = taps(window, dilation)
    last = (window.output - 1) * window.stride - window.begin + window.extent
    if last <= high and -window.begin >= low:
        return str(count)
    if dilation == 1 and not padding and not inside(window):
        return f"(end_tap{axis} - first_tap{axis})"
    first = f"(o{axis} * {window.stride} - {size(f'begin{axis}', window.begin)})"
    from_, to = size(f"low{axis}", low), size(f"high{axis}", high)
    if dilation == 1:
        return f"(min({first} + {window.extent}, {to}) - max({first}, {from_}))"
    terms = (
        f"({first} + {k * dilation} >= {from_} && {first} + {k * dilation} < {to})"
        for k in range(count)
    )
    return f"({' + '.join(terms)})"


_UNFIT = "padding that does not fit the output"
KERNELS = {
    "MaxPool": Kernel(launches, NUMBERS, why_not, _UNFIT, takes_epilogue=True),
    **dict.fromkeys(
        ("AveragePool", "LpPool"), Kernel(launches, FLOAT32, why_not, _UNFIT, takes_epilogue=True)
    ),
}
