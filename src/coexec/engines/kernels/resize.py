"""Resize and Upsample: one work item for a vector of channels of an output pixel, or for a scalar;
on CPU cores, for a row of these.

A row of the output is a sum of rows of the input times weights, the taps. They are computed when
the kernel is generated, and read from tables, one for each axis that changes, as ONNX interpolates
along one axis after the other. Formulas: the operator's page, and `onnx.reference.ops.op_resize`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coexec.arrays import Array
from coexec.engines.kernels.base import (
    CTYPES,
    Context,
    Kernel,
    KernelLaunch,
    Node,
    Source,
    Value,
    indented,
)
from coexec.engines.kernels.elements import each_scalar, each_vector, moved
from coexec.engines.kernels.expressions import is_float
from coexec.engines.kernels.unsupported import numbers
from coexec.engines.kernels.value import split
from coexec.graph.graph import Operator, Tensor

_MODES = ("nearest", "linear", "cubic")
_COORDINATES = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")

_NEARLY = 1e-6
"""Distance from the middle of two rows that ONNX Runtime treats as 0."""
_OLD = 11
"""First opset in which Resize has a choice of coordinates; Upsample never had one."""


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    kind, mode, coordinates = op.op_type, _mode(op), _coordinates(op)
    if mode not in _MODES or coordinates not in _COORDINATES:
        return f"{kind} with the mode {mode!r} and the coordinates {coordinates!r}"
    if op.int("antialias", 0) or op.int("exclude_outside", 0):
        return f"{kind} with antialias or exclude_outside"
    if op.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        return f"{kind} that keeps the aspect ratio"
    if mode != "nearest" and not is_float(tensors[op.inputs[0]].dtype):
        return f"{kind} of {tensors[op.inputs[0]].dtype} by interpolation"
    if _scales(op, tensors) is None:
        return f"the scales of {kind} are computed, not constant"
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
    if _mode(op) != "nearest":
        return [_sum(source, x, y, coordinates, changed)]
    lines = [f"const int q{a} = GET_rows{a}(p{a});" for a in changed]
    residue = None if 1 in changed else 0
    return [moved(source, x, y, coordinates, lines=lines, residue=residue)]


def _sum(
    source: Source, x: Value, y: Value, coordinates: Sequence[str], changed: Mapping[int, "Taps"]
) -> KernelLaunch:
    """The kernel with nested loops over taps, one for each axis that changes. On CPU cores a work
    item computes a row of the output, and the taps are written out in place of loops."""
    vectors = bool(x.block and y.block) and 1 not in changed
    ctype = source.arch.vector if vectors else CTYPES[y.dtype]
    source.write("y", y)
    for axis, table in changed.items():
        source.constant(f"weights{axis}", table.weights, vector=1)
    if vectors:
        load = f"LOAD_x(VEC_x({coordinates[0]}, s, {coordinates[2]}, {coordinates[3]}))"
    else:
        load = f"GET_x(AT_x({', '.join(coordinates)}))"
    counts = {axis: table.rows.shape[1] for axis, table in changed.items()}
    if source.arch.family == "cpu" and len(y.shape) > 1 and not (y.block and not vectors):
        return _by_rows(source, y, counts, load, ctype)
    lines = [f"{ctype} sum = ({ctype})(0);"]
    weight = ""
    for axis, count in counts.items():
        lines += [
            f"for (int i = p{axis} * {count}, end{axis} = i + {count}; i < end{axis}; i++) {{",
            f"  const int q{axis} = GET_rows{axis}(i);",
            f"  const float w{axis} = {weight}GET_weights{axis}(i);",
        ]
        weight = f"w{axis} * "
    lines += [f"sum += {weight}{load};", *("}" for _ in changed)]
    return (each_vector if vectors else each_scalar)(source, y, lines, "sum")


def _by_rows(
    source: Source, y: Value, counts: Mapping[int, int], load: str, ctype: str
) -> KernelLaunch:
    """The kernel whose work items compute rows of the output. Taps of the other axes are read once
    for a row. ``counts``: number of taps of each axis."""
    last = len(y.shape) - 1
    outer = (y.shape[0], y.slices, y.shape[2]) if y.block else y.shape[:-1]
    names = ["p0", "s", "p2"] if y.block else [f"p{axis}" for axis in range(last)]
    texts = split("row", outer)
    lines = ["const int row = get_global_id(0);"]
    lines += [f"const int {name} = {text};" for name, text in zip(names, texts, strict=True)]
    for axis, count in counts.items():
        if axis != last:
            for tap in range(count):
                lines += _tap(axis, f"p{axis} * {count} + {tap}", f"_{tap}")
    where = f"VEC_y(p0, s, p2, p{last})" if y.block else f"row * {y.shape[-1]} + p{last}"
    put = "STORE" if y.block else "PUT"
    lines += [
        f"for (int p{last} = 0; p{last} < {y.shape[-1]}; p{last}++) {{",
        f"  {ctype} sum = ({ctype})(0);",
        *indented(_summed(counts, last, load)),
        f"  {put}_y({where}, sum);",
        "}",
    ]
    source.lines(lines)
    return source.finish((math.prod(outer),), (1, 1, 1))


def _tap(axis: int, index: str, tag: str = "", weight: str = "") -> list[str]:
    return [
        f"const int q{axis}{tag} = GET_rows{axis}({index});",
        f"const float w{axis}{tag} = {weight}GET_weights{axis}({index});",
    ]


def _summed(counts: Mapping[int, int], last: int, load: str, weight: str = "") -> list[str]:
    """Lines that add up all taps; ``counts``: number of taps of each axis."""
    if not counts:
        return [f"sum += {weight}{load};"]
    (axis, count), *inner_counts = counts.items()
    inner = _summed(dict(inner_counts), last, load, f"w{axis} * ")
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


@dataclass(frozen=True, eq=False)
class Taps:
    """Taps of one axis, by row of the output."""

    rows: Array
    """[output, taps]: rows of the input."""
    weights: Array
    """[output, taps]: weights of these rows."""


@dataclass(frozen=True, slots=True)
class _ResizedAxis:
    size: int
    output: int
    scale: float


def _scales(op: Operator, tensors: Mapping[str, Tensor]) -> dict[int, float] | None:
    """Scale of each axis, output by input. None if the model computes it."""
    source, target = tensors[op.inputs[0]].shape, tensors[op.outputs[0]].shape
    axes = [a % len(source) for a in op.ints("axes", range(len(source)))]
    scales = numbers(op, "scales", 1 if _is_old(op) else 2)
    if scales:
        return dict(zip(axes, map(float, scales), strict=True))
    return None if scales is None else {a: target[a] / source[a] for a in axes}


def taps(op: Operator, tensors: Mapping[str, Tensor]) -> dict[int, Taps]:
    """Taps of the axes that change, by axis.

    If no size changes, ONNX Runtime copies the tensor, with any coordinates. It also copies along
    axes whose scale is 1.
    """
    taps_by_axis: dict[int, Taps] = {}
    source, target = tensors[op.inputs[0]].shape, tensors[op.outputs[0]].shape
    if source == target:
        return taps_by_axis
    find = {"nearest": _nearest, "linear": _linear, "cubic": _cubic}[_mode(op)]
    for number, scale in sorted((_scales(op, tensors) or {}).items()):
        if scale == 1:
            continue
        axis = _ResizedAxis(source[number], target[number], scale)
        rows, weights = find(op, axis, _positions(axis, _coordinates(op)))
        rows = np.clip(rows, 0, axis.size - 1)
        taps_by_axis[number] = Taps(rows.astype(np.int32), weights.astype(np.float32))
    return taps_by_axis


def _is_old(op: Operator) -> bool:
    return op.op_type == "Upsample" or 0 < op.version < _OLD


def _mode(op: Operator) -> str:
    return op.text("mode", "nearest")


def _coordinates(op: Operator) -> str:
    default = "asymmetric" if _is_old(op) else "half_pixel"
    return op.text("coordinate_transformation_mode", default)


def _positions(axis: _ResizedAxis, mode: str) -> Array:
    """Position of each row of the output between the rows of the input.

    It is computed in float32 with the steps of ONNX Runtime, as the nearest row depends on
    rounding. The length of the output in it is a whole number of rows.
    """
    y: Array = np.arange(axis.output, dtype=np.float32)
    half, scale = np.float32(0.5), np.float32(axis.scale)
    size, output = np.float32(axis.size), np.float32(axis.output)
    single = axis.output == 1
    if mode == "align_corners":
        return y * 0 if single else y * (size - 1) / (output - 1)
    if mode == "asymmetric":
        return y / scale
    if mode == "pytorch_half_pixel" and single:
        return y * 0
    return (y + half) / scale - half


def _nearest(op: Operator, axis: _ResizedAxis, positions: Array) -> tuple[Array, Array]:
    mode = op.text("nearest_mode", "round_prefer_floor")
    if _is_old(op):  # not defined by ONNX, but its tests and ONNX Runtime do this
        mode = "floor" if axis.scale >= 1 else "ceil"
    positions = positions.astype(np.float64)  # so that adding 0.5 is exact
    rows = {
        "floor": np.floor(positions),
        "ceil": np.ceil(positions),
        "round_prefer_floor": np.ceil(positions - 0.5 - _NEARLY),
        "round_prefer_ceil": np.floor(positions + 0.5 + _NEARLY),
    }[mode][:, None]
    return rows, np.ones_like(rows)


def _linear(op: Operator, axis: _ResizedAxis, positions: Array) -> tuple[Array, Array]:
    """The row at or before a position inside of the input, and the row behind, with their
    weights."""
    inside = np.clip(positions, 0, axis.size - 1)
    first = np.floor(inside)
    second = np.minimum(first + 1, axis.size - 1)
    rows, weights = np.stack([first, second], 1), np.stack([second - inside, inside - first], 1)
    weights[first == second] = 0.5
    return rows, weights


def _cubic(op: Operator, axis: _ResizedAxis, positions: Array) -> tuple[Array, Array]:
    """Two rows at or before a position, and two behind it, with their weights.

    The weights are computed in float32, in which ONNX Runtime's are 0 too: Keys, "Cubic Convolution
    Interpolation for Digital Image Processing", 1981, with the coefficient ``a``.
    """
    first = np.floor(positions)
    behind = (positions - first).astype(np.float32)
    rows = first[:, None] + np.arange(-1, 3)
    x = np.stack([behind + 1, behind, 1 - behind, 2 - behind], 1)
    a = np.float32(op.number("cubic_coeff_a", -0.75))
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return rows, np.where(x <= 1, near, np.where(x < 2, far, 0.0))


KERNELS = dict.fromkeys(
    ("Resize", "Upsample"),
    Kernel(
        launches,
        why_not=why_not,
        refuses="computed scales or sizes; interpolation of integers; antialias, "
        "exclude_outside, kept aspect ratio; coordinates of tf_..., half_pixel_symmetric",
    ),
)
