"""Resize and Upsample: one work item for a vector of channels of an output pixel, or for a scalar;
on CPU cores, for a row of these.

It adds rows of the input times weights from tables, see `resize_taps`.
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
    indented,
    literal,
)
from coexec.engines.kernels.elements import each_scalar, each_vector
from coexec.engines.kernels.gather_text import moved
from coexec.engines.kernels.parameters import numbers
from coexec.engines.kernels.patterns import is_float
from coexec.engines.kernels.positions import split
from coexec.engines.kernels.resize_taps import COORDINATES, MODES, Taps, given_scales, taps
from coexec.graph.graph import Operator, Tensor

__all__ = ["KERNELS", "why_not"]


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    kind, mode = op.op_type, op.text("mode", "nearest")
    transform = op.text("coordinate_transformation_mode", "half_pixel")
    if mode not in MODES or transform not in COORDINATES:
        return f"{kind} with the mode {mode!r} and the coordinates {transform!r}"
    if mode != "nearest" and not is_float(tensors[op.inputs[0]].dtype):
        return f"{kind} of {tensors[op.inputs[0]].dtype} by interpolation"
    if (
        op.text("keep_aspect_ratio_policy", "stretch") != "stretch"
        and min(op.ints("axes", ()), default=0) < 0
    ):
        return f"{kind} that keeps the aspect ratio of axes counted from the last"
    if given_scales(op, tensors) is None:
        return f"the scales of {kind} are computed, not constant"
    if transform == "tf_crop_and_resize" and not numbers(op, "roi", 1):
        return f"the region of interest of {kind} is computed, not constant"
    return None


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    source = Source("resize", context.arch)
    x = source.read("x", context.operand(op.inputs[0]))
    y = context.value(node.output)
    changed = taps(op, context.tensors)
    for axis, table in changed.items():
        source.constant(f"rows{axis}", table.rows, vector=1)
    coordinates = [f"q{a}" if a in changed else f"p{a}" for a in range(len(y.shape))]
    other = literal(op.number("extrapolation_value", 0.0), y.dtype)
    if op.text("mode", "nearest") != "nearest":
        if context.arch.family == "cpu" and _worth_passes(changed, y):
            return _in_passes(context, op.inputs[0], y, changed)
        return [_sum(source, x, y, coordinates, changed, other)]
    lines = [f"const int q{a} = GET_rows{a}(p{a});" for a in changed]
    inside = " && ".join(f"q{a} >= 0" for a in changed)
    return [
        moved(
            source,
            x,
            y,
            coordinates,
            lines=lines,
            residue=None if 1 in changed else 0,
            inside=f"({inside})" if _crops(changed) else "",
            outside=other,
        )
    ]


def _worth_passes(changed: Mapping[int, Taps], y: Value) -> bool:
    """Whether separate passes along each axis need far fewer additions."""
    many = max((table.rows.shape[1] for table in changed.values()), default=0) > _WRITTEN_OUT
    return many and len(changed) > 1 and y.dtype == "float32" and not _crops(changed)


def _in_passes(
    context: Context, name: str, y: Value, changed: Mapping[int, Taps]
) -> list[KernelLaunch]:
    """One kernel for each axis, the last one first: with many taps, images become smaller."""
    kernels: list[KernelLaunch] = []
    current: Value | None = None
    shape = list(context.tensors[name].shape)
    axes = sorted(changed, reverse=True)
    for axis in axes:
        shape[axis] = y.shape[axis]
        target = y if axis == axes[-1] else context.temporary(shape, y.block, y.half)
        source = Source("resize", context.arch)
        current = source.read("x", current or context.operand(name))
        source.constant(f"rows{axis}", changed[axis].rows, vector=1)
        where = [f"q{a}" if a == axis else f"p{a}" for a in range(len(shape))]
        kernels.append(_sum(source, current, target, where, {axis: changed[axis]}, ""))
        current = target
    return kernels


def _crops(changed: Mapping[int, Taps]) -> bool:
    """Whether some element of the output lies outside of the input."""
    return any((table.rows < 0).any() for table in changed.values())


def _sum(
    source: Source,
    x: Value,
    y: Value,
    coordinates: Sequence[str],
    changed: Mapping[int, Taps],
    other: str,
) -> KernelLaunch:
    """The kernel with nested loops over taps, one for each axis that changes. On CPU cores a work
    item computes a row of the output, and a few taps are written out in place of a loop."""
    vectors = bool(x.block and y.block) and 1 not in changed
    ctype = source.arch.vector if vectors else CTYPES[y.dtype]
    source.write("y", y)
    for axis, table in changed.items():
        source.constant(f"weights{axis}", table.weights, vector=1)
    crops, value = _crops(changed), "sum"
    if crops:
        outside = (f"GET_rows{a}(p{a} * {t.rows.shape[1]}) < 0" for a, t in changed.items())
        value = f"{' || '.join(outside)} ? ({ctype})({other}) : sum"
    if vectors:
        load = f"LOAD_x(VEC_x({coordinates[0]}, s, {coordinates[2]}, {coordinates[3]}))"
    else:
        load = f"GET_x(AT_x({', '.join(coordinates)}))"
    if source.arch.family == "cpu" and len(y.shape) > 1 and not (y.block and not vectors):
        return _by_rows(source, y, changed, load, value, ctype)
    lines = [f"{ctype} sum = ({ctype})(0);"]
    weight = ""
    for axis, table in changed.items():
        count = table.rows.shape[1]
        lines += [
            f"for (int i = p{axis} * {count}, end{axis} = i + {count}; i < end{axis}; i++) {{",
            f"  const int q{axis} = max(GET_rows{axis}(i), 0);",
            f"  const float w{axis} = {weight}GET_weights{axis}(i);",
        ]
        weight = f"w{axis} * "
    lines += [f"sum += {weight}{load};", *("}" for _ in changed)]
    return (each_vector if vectors else each_scalar)(source, y, lines, value)


_WRITTEN_OUT = 4
"""Most taps of an axis that are written out: those of linear and cubic interpolation without
antialiasing."""


def _by_rows(
    source: Source, y: Value, changed: Mapping[int, Taps], load: str, value: str, ctype: str
) -> KernelLaunch:
    """The kernel whose work items compute rows of the output. A few taps of the other axes are read
    once for a row."""
    last = len(y.shape) - 1
    outer = (y.shape[0], y.slices, y.shape[2]) if y.block else y.shape[:-1]
    names = ["p0", "s", "p2"] if y.block else [f"p{axis}" for axis in range(last)]
    texts = split("row", outer)
    lines = ["const int row = get_global_id(0);"]
    lines += [f"const int {name} = {text};" for name, text in zip(names, texts, strict=True)]
    for axis, table in changed.items():
        if axis != last and table.rows.shape[1] <= _WRITTEN_OUT:
            for tap in range(table.rows.shape[1]):
                lines += _tap(axis, f"p{axis} * {table.rows.shape[1]} + {tap}", f"_{tap}")
    sums = [
        f"{ctype} sum = ({ctype})(0);",
        *_summed({axis: table.rows.shape[1] for axis, table in changed.items()}, last, load),
    ]
    where = f"VEC_y(p0, s, p2, p{last})" if y.block else f"row * {y.shape[-1]} + p{last}"
    put = "STORE" if y.block else "PUT"
    lines += [
        f"for (int p{last} = 0; p{last} < {y.shape[-1]}; p{last}++) {{",
        *indented(sums),
        f"  {put}_y({where}, {value});",
        "}",
    ]
    source.lines(lines)
    return source.finish((math.prod(outer),), (1, 1, 1))


def _tap(axis: int, index: str, tag: str = "", weight: str = "") -> list[str]:
    return [
        f"const int q{axis}{tag} = max(GET_rows{axis}({index}), 0);",
        f"const float w{axis}{tag} = {weight}GET_weights{axis}({index});",
    ]


def _summed(counts: Mapping[int, int], last: int, load: str, weight: str = "") -> list[str]:
    """Lines that add up all taps; ``counts``: number of taps of each axis."""
    if not counts:
        return [f"sum += {weight}{load};"]
    (axis, count), *inner_counts = counts.items()
    inner = _summed(dict(inner_counts), last, load, f"w{axis} * ")
    if count > _WRITTEN_OUT:
        loop = f"for (int i{axis} = p{axis} * {count}, n{axis} = 0; n{axis} < {count}; "
        return [f"{loop}i{axis}++, n{axis}++) {{", *_tap(axis, f"i{axis}", "", weight), *inner, "}"]
    lines = []
    for tap in range(count):
        tap_lines = [
            f"const int q{axis} = q{axis}_{tap};",
            f"const float w{axis} = {weight}w{axis}_{tap};",
        ]
        if axis == last:
            tap_lines = _tap(axis, f"p{axis} * {count} + {tap}", "", weight)
        lines += ["{", *tap_lines, *inner, "}"]
    return lines


KERNELS = dict.fromkeys(
    ("Resize", "Upsample"),
    Kernel(
        launches,
        why_not=why_not,
        refuses="computed scales, sizes or region of interest; interpolation of integers",
    ),
)
