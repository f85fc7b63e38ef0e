"""MaxPool and AveragePool over any number of axes.

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
    Value,
    ceil_div,
    indented,
)
from coexec.engines.kernels.epilogue import Output
from coexec.engines.kernels.touches import along, of_image
from coexec.engines.kernels.unsupported import FLOAT32
from coexec.engines.kernels.value import at
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


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    if any(name in tensors for name in op.outputs[1:]):
        return "MaxPool whose indices are read"
    if windows(op, tensors, op.ints("kernel_shape", ())) is None:
        return f"the padding of {op.op_type} is negative or does not fit its output"
    return None


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    slides = windows(op, context.tensors, op.ints("kernel_shape", ()))
    assert slides is not None
    dilations = op.ints("dilations", (1,) * len(slides))
    block = context.value(node.output).block
    scalar = context.value(op.inputs[0]).block != block
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
    # Some compilers call a function for max and for fmax.
    start, step, result = "-INFINITY", "acc = SELECT(acc > v, acc, v);", "acc"
    if op.op_type == "AveragePool":
        count = _count(op, slides, dilations, source.size)
        start, step, result = "0.0f", "acc += v;", f"acc * (1.0f / ({count}))"
    lines.append(f"{kind} acc = ({kind})({start});")
    take = [f"const {kind} v = {load};", step]
    bounds, loops = over_taps(slides, dilations, take, source.size, in_rows)
    lines += [*bounds, *loops]
    where = [n, c, *(f"o{axis}" for axis in range(len(slides)))]
    lines += [f"const {kind} pooled = {result};", *output.store("pooled", where)]
    sizes = grid(y.shape[2:], math.prod(outer))
    if in_rows:
        return [_of_rows(source, lines, sizes, x, y, slides)]
    source.lines(lines)
    return [source.finish(sizes)]


def _of_rows(
    source: Source,
    lines: Sequence[str],
    sizes: tuple[int, int, int],
    x: Value,
    y: Value,
    slides: Sequence[Window],
) -> KernelLaunch:
    """The launch for all columns and rows. ``lines`` compute a vector of ``y`` at (column, row) of
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
    each, (window, _) = ceil_div(rows, bands), slides
    read = along(
        0, bands, each * window.stride, -window.begin, (each - 1) * window.stride + window.extent
    )
    planes = along(1, items)
    touches = {
        "x": of_image(x, read, planes, joint=True),
        "y": of_image(y, along(0, bands, each), planes, joint=True),
    }
    return source.finish((bands, items), (1, 1, 1), touches=touches)


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


_REFUSED = "indices that are read; padding that does not fit the output"
KERNELS = dict.fromkeys(
    ("AveragePool", "MaxPool"), Kernel(launches, FLOAT32, why_not, _REFUSED, takes_epilogue=True)
)
