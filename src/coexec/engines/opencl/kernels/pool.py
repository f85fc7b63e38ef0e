"""MaxPool, AveragePool and LpPool over any number of axes.

A work item computes a vector of channels of one output pixel, or a scalar in other layouts.
"""

import math
from collections.abc import Mapping, Sequence

from coexec.engines.opencl.kernels.base import CTYPES, Context, KernelLaunch, Node, Source
from coexec.engines.opencl.kernels.folds import lowest
from coexec.engines.opencl.kernels.operands import declare
from coexec.engines.opencl.kernels.output import Output
from coexec.engines.opencl.kernels.positions import at
from coexec.engines.opencl.kernels.reasons import NUMBERS, wrong_type
from coexec.engines.opencl.kernels.sliding import Size, grid, output_coordinates, over_taps, taps
from coexec.ir.graph import Operator, Tensor
from coexec.ir.rules.windows import Window, windows

__all__ = ["launches", "why_not"]


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    if windows(op, tensors, op.ints("kernel_shape", ())) is None:
        return f"the padding of {op.op_type} is negative or does not fit its output"
    return wrong_type(op, tensors, NUMBERS if op.op_type == "MaxPool" else {"float32"})


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    slides = windows(op, context.tensors, op.ints("kernel_shape", ()))
    assert slides is not None
    dilations = op.ints("dilations", (1,) * len(slides))
    indices = op.outputs[1] if len(op.outputs) > 1 and op.outputs[1] in context.tensors else ""
    block = context.value(node.output).block
    scalar = context.value(op.inputs[0]).block != block or bool(indices)
    sized = context.arch.family == "cpu" and bool(block) and not scalar
    source = Source("pool", context.arch, sized)
    x = declare(source, context, "x", op.inputs[0])
    output = Output(source, context, node, scalar)
    y = output.value
    outer = (y.shape[0], y.slices if output.vector else y.shape[1])
    lines, (n, c) = output_coordinates(y.shape[2:], outer)
    spatial = [f"i{axis}" for axis in range(len(slides))]
    if output.vector:
        kind, load = context.arch.vector, f"LOAD_x(VEC_x({', '.join([n, c, *spatial])}))"
    else:
        kind, load = CTYPES[x.dtype], f"GET_x({at('x', [n, c, *spatial])})"
    start, step, result = _steps(op, x.dtype, kind, _count(op, slides, dilations, source.size))
    if indices:
        source.write("indices", context.value(indices))
        step = f"if (best < 0 || v > acc) {{ acc = v; best = {_index(op, x.shape, n, c)}; }}"
        lines.append("long best = -1;")
    lines.append(f"{kind} acc = ({kind})({start});")
    lines += over_taps(slides, dilations, [f"const {kind} v = {load};", step], source.size)
    where = [n, c, *(f"o{axis}" for axis in range(len(slides)))]
    if indices:
        lines.append(f"PUT_indices({at('indices', where)}, best);")
    lines += [f"const {kind} pooled = {result};", *output.store("pooled", where)]
    source.lines("\n".join(f"  {line}" for line in lines))
    return [source.finish(grid(y.shape[2:], math.prod(outer)))]


def _steps(op: Operator, dtype: str, kind: str, count: str) -> tuple[str, str, str]:
    """What ``acc`` is at first, what an element ``v`` does to it, and the result."""
    if op.op_type == "MaxPool":
        larger = "fmax" if dtype.startswith("float") else "max"
        return lowest(dtype), f"acc = {larger}(acc, v);", "acc"
    if op.op_type == "AveragePool":
        return "0.0f", "acc += v;", f"acc * (1.0f / ({count}))"
    p = op.int("p", 2)
    powers = {1: ("fabs(v)", "acc"), 2: ("v * v", "sqrt(acc)")}
    term, root = powers.get(
        p, (f"pow(fabs(v), ({kind})({p}.0f))", f"pow(acc, ({kind})({1 / p!r}f))")
    )
    return "0.0f", f"acc += {term};", root


def _index(op: Operator, shape: Sequence[int], n: str, c: str) -> str:
    """Where the element (i0, i1, ...) is in the whole input, as MaxPool counts."""
    axes = list(range(len(shape) - 2))
    if op.int("storage_order", 0):
        axes.reverse()
    text = f"(long)({n}) * {shape[1]} + {c}"
    for axis in axes:
        text = f"({text}) * {shape[2 + axis]} + i{axis}"
    return text


def _count(op: Operator, slides: Sequence[Window], dilations: Sequence[int], size: Size) -> str:
    """How many elements an average is over, as an expression of o0, o1, ..."""
    padding = bool(op.int("count_include_pad", 0))
    factors = [
        _counted(axis, s, d, padding, size)
        for axis, (s, d) in enumerate(zip(slides, dilations, strict=True))
    ]
    if all(f.isdigit() for f in factors):
        return f"{math.prod(map(int, factors))}.0f"
    return f"(float)({' * '.join(factors)})"


def _counted(axis: int, window: Window, dilation: int, padding: bool, size: Size) -> str:
    """Along one axis; where windows reach too far, it depends on the output ``o0``, ``o1``, ..."""
    low, high = (-window.begin, window.size + window.end) if padding else (0, window.size)
    count = taps(window, dilation)
    last = (window.output - 1) * window.stride - window.begin + window.extent
    if last <= high and -window.begin >= low:
        return str(count)
    first = f"(o{axis} * {window.stride} - {size(f'begin{axis}', window.begin)})"
    from_, to = size(f"low{axis}", low), size(f"high{axis}", high)
    if dilation == 1:
        return f"(min({first} + {window.extent}, {to}) - max({first}, {from_}))"
    terms = (
        f"({first} + {k * dilation} >= {from_} && {first} + {k * dilation} < {to})"
        for k in range(count)
    )
    return f"({' + '.join(terms)})"
