"""The input rows from which Resize and Upsample make a row of the output, and their weights.

Both are computed when the kernel is generated. The kernel reads them from tables, one for each axis
that changes, as ONNX interpolates along one axis after the other. Formulas: the operator's page,
and `onnx.reference.ops.op_resize`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coexec.arrays import Array
from coexec.engines.kernels.parameters import numbers
from coexec.graph.graph import Operator, Tensor

__all__ = ["COORDINATES", "MODES", "Taps", "given_scales", "taps"]

MODES = ("nearest", "linear", "cubic")

COORDINATES = (
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "align_corners",
    "asymmetric",
    "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)

_NEARLY = 1e-6
"""Distance from the middle of two rows that ONNX Runtime treats as 0."""
_OLD = 11
"""First opset in which Resize has a choice of coordinates; Upsample never had one."""


@dataclass(frozen=True, eq=False)
class Taps:
    """Taps of one axis, by row of the output."""

    rows: Array
    """[output, taps]: rows of the input; -1 if the row of the output lies outside."""
    weights: Array
    """[output, taps]: weights of these rows."""


@dataclass(frozen=True, slots=True)
class _ResizedAxis:
    size: int
    output: int
    scale: float
    start: float
    """Start of the region of interest, as a fraction of the axis; ``end`` likewise."""
    end: float


def given_scales(op: Operator, tensors: Mapping[str, Tensor]) -> dict[int, float] | None:
    """Scale of each axis, output by input. None if the model computes it."""
    source, target = tensors[op.inputs[0]].shape, tensors[op.outputs[0]].shape
    old = _is_old(op)
    axes = [a % len(source) for a in op.ints("axes", range(len(source)))]
    scales = numbers(op, "scales", 1 if old else 2)
    if scales:
        return dict(zip(axes, map(float, scales), strict=True))
    sizes = () if old else numbers(op, "sizes", 3)
    policy = op.text("keep_aspect_ratio_policy", "stretch")
    if scales is None or (policy != "stretch" and not sizes):
        return None
    if policy == "stretch":
        return {a: target[a] / source[a] for a in axes}
    ratios = [s / source[a] for s, a in zip(sizes or (), axes, strict=True)]
    return dict.fromkeys(axes, min(ratios) if policy == "not_larger" else max(ratios))


def taps(op: Operator, tensors: Mapping[str, Tensor]) -> dict[int, Taps]:
    """Taps of the axes that change, by axis.

    If no size changes, ONNX Runtime copies the tensor, with any coordinates. It also copies along
    axes whose scale is 1, and with antialiasing along axes whose size stays.
    """
    taps_by_axis: dict[int, Taps] = {}
    source, target = tensors[op.inputs[0]].shape, tensors[op.outputs[0]].shape
    if source == target:
        return taps_by_axis
    for axis, scale in _axes(op, tensors).items():
        if scale.scale == 1 or (op.int("antialias", 0) and scale.size == scale.output):
            continue
        positions = _positions(scale, _coordinates(op))
        rows, weights = (
            _nearest(op, scale, positions)
            if _mode(op) == "nearest"
            else (_interpolated(op, scale, positions))
        )
        rows = np.clip(rows, 0, scale.size - 1)
        if _coordinates(op) == "tf_crop_and_resize":
            rows[(positions < 0) | (positions > scale.size - 1)] = -1
        taps_by_axis[axis] = Taps(rows.astype(np.int32), weights.astype(np.float32))
    return dict(sorted(taps_by_axis.items()))


def _is_old(op: Operator) -> bool:
    return op.op_type == "Upsample" or 0 < op.version < _OLD


def _mode(op: Operator) -> str:
    return op.text("mode", "nearest")


def _coordinates(op: Operator) -> str:
    default = "asymmetric" if _is_old(op) else "half_pixel"
    return op.text("coordinate_transformation_mode", default)


def _axes(op: Operator, tensors: Mapping[str, Tensor]) -> dict[int, _ResizedAxis]:
    source, target = tensors[op.inputs[0]].shape, tensors[op.outputs[0]].shape
    scales = given_scales(op, tensors) or {}
    cropped = _coordinates(op) == "tf_crop_and_resize"
    roi = [float(v) for v in (numbers(op, "roi", 1) or ())] if cropped else []
    roi = roi or [0.0] * len(scales) + [1.0] * len(scales)
    axes = {}
    for i, (axis, scale) in enumerate(scales.items()):
        axes[axis] = _ResizedAxis(source[axis], target[axis], scale, roi[i], roi[len(scales) + i])
    return axes


def _positions(axis: _ResizedAxis, mode: str) -> Array:
    """Position of each row of the output between the rows of the input.

    It is computed in float32 with the steps of ONNX Runtime, as the nearest row depends on
    rounding. The length of the output in it is a whole number of rows.
    """
    y: Array = np.arange(
        axis.output, dtype=np.float64 if mode == "half_pixel_symmetric" else np.float32
    )
    half, scale = np.float32(0.5), np.float32(axis.scale)
    size, output = np.float32(axis.size), np.float32(axis.output)
    single = axis.output == 1
    if mode == "align_corners":
        return y * 0 if single else y * (size - 1) / (output - 1)
    if mode == "asymmetric":
        return y / scale
    if mode == "tf_half_pixel_for_nn":
        return (y + half) / scale
    if mode == "tf_crop_and_resize":
        start, end = np.float32(axis.start), np.float32(axis.end)
        if single:
            return y + np.float32(0.5 * float(start + end) * float(size - 1))
        return start * (size - 1) + y * (end - start) * (size - 1) / (output - 1)
    if mode == "pytorch_half_pixel" and single:
        return y * 0
    if mode == "half_pixel_symmetric":
        shift = size / 2 * (1 - output / (scale * size))  # ONNX Runtime continues in float64
        return (float(shift) + (y + 0.5) / float(scale) - 0.5).astype(np.float32)
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


def _interpolated(op: Operator, axis: _ResizedAxis, positions: Array) -> tuple[Array, Array]:
    """Rows and weights of a kernel around each position. Antialiasing makes the kernel as wide as
    the distance of the output's rows."""
    cubic = _mode(op) == "cubic"
    if not op.int("antialias", 0):
        return _of_four(op, axis, positions) if cubic else _linear(axis, positions)
    squeeze = min(axis.scale, 1.0)
    first = math.floor(-(2 if cubic else 1) / squeeze) + 1
    previous = np.ceil(positions) - 1  # if a position is on a row, the row before it
    offsets = np.arange(first, 2 - first)
    rows = previous[:, None] + offsets
    distances = np.abs(offsets - (positions - previous)[:, None]) * squeeze
    weights = (
        _cubic(distances, op.number("cubic_coeff_a", -0.75))
        if cubic
        else (np.clip(1 - distances, 0, 1))
    )
    if op.int("exclude_outside", 0):
        weights = np.where((rows < 0) | (rows >= axis.size), 0.0, weights)
    weights = weights / weights.sum(axis=1, keepdims=True)
    # In place of a row without weight, the row with most weight is read.
    most = np.take_along_axis(rows, weights.argmax(axis=1)[:, None], 1)
    return np.where(weights == 0, most, rows), weights


def _of_four(op: Operator, axis: _ResizedAxis, positions: Array) -> tuple[Array, Array]:
    """Two rows at or before a position, and two behind it, with their weights.

    The weights are computed in float32, in which ONNX Runtime's are 0 too.
    """
    first = np.floor(positions)
    behind = (positions - first).astype(np.float32)
    rows = first[:, None] + np.arange(-1, 3)
    distances = np.stack([behind + 1, behind, 1 - behind, 2 - behind], 1)
    weights = _cubic(distances, np.float32(op.number("cubic_coeff_a", -0.75)))
    if op.int("exclude_outside", 0):
        weights = np.where((rows < 0) | (rows >= axis.size), np.float32(0), weights)
        weights = weights / weights.sum(axis=1, keepdims=True)
    return rows, weights


def _linear(axis: _ResizedAxis, positions: Array) -> tuple[Array, Array]:
    """The row at or before a position inside of the input, and the row behind, with their
    weights."""
    inside = np.clip(positions, 0, axis.size - 1)
    first = np.floor(inside)
    second = np.minimum(first + 1, axis.size - 1)
    rows, weights = np.stack([first, second], 1), np.stack([second - inside, inside - first], 1)
    weights[first == second] = 0.5
    return rows, weights


def _cubic(x: Array, a: "float | np.float32") -> Array:
    """Weights by distance: Keys, "Cubic Convolution Interpolation for Digital Image Processing",
    1981, with the coefficient ``a``."""
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))
