"""Resize and Upsample: exact where an axis is scaled by a whole number, or not at all.

An axis that is enlarged s times is cut at input rows: s output rows belong to each. The coordinates
of a piece are those of the whole moved by a whole number of rows. The border of the piece, where
interpolation would stop short, is cropped.
"""

from collections.abc import Callable, Mapping

from coexec.graph.graph import Operator
from coexec.graph.region import Region
from coexec.graph.rules.base import OperatorRegion, OperatorRule, Tensors, normalized, output_shape

_HALF_PIXEL = {
    "asymmetric": False,
    "half_pixel": True,
    "half_pixel_symmetric": True,
    "pytorch_half_pixel": True,
}
"""Coordinate modes that do not depend on an axis' length when the scale is a whole number."""

_ROUNDING: Mapping[str, Callable[[int, int], int]] = {
    "floor": lambda n, d: n // d,
    "ceil": lambda n, d: -(-n // d),
    "round_prefer_floor": lambda n, d: -((d - 2 * n) // (2 * d)),
    "round_prefer_ceil": lambda n, d: (2 * n + d) // (2 * d),
}
"""``nearest_mode``: the row that the coordinate n / d stands for."""


def _old(op: Operator) -> bool:
    """Upsample, and Resize of opset 10 with its two inputs: asymmetric, nearest rounds down."""
    return len(op.inputs) <= 2


def _coordinates(op: Operator) -> str:
    return op.text("coordinate_transformation_mode", "asymmetric" if _old(op) else "half_pixel")


def _scales(op: Operator, tensors: Tensors) -> dict[int, int] | None:
    """For each axis the whole number by which it is enlarged; 0 for any other scale. None if not
    known.

    A scale that is only close to a whole number moves the coordinates along a long axis. Therefore
    the scales decide where they are given, not the sizes of the output.
    """
    source, target = tensors[op.inputs[0]].shape, output_shape(op, tensors)
    position = 1 if _old(op) else 2
    scales = op.attributes.get("scales", op.constants.get(position, ()))
    has_scale = scales or (3 in op.constants and not _old(op))
    stretches = op.text("keep_aspect_ratio_policy", "stretch") == "stretch"
    if not has_scale or not stretches or op.int("antialias", 0) or 0 in source:
        return None
    axes = _axes_of(op, len(source))
    factors = {axis: 1 for axis in range(len(source))}
    for i, axis in enumerate(axes):
        scale = float(scales[i]) if scales else target[axis] / source[axis]  # type: ignore[index]
        exact = scale.is_integer() and source[axis] * scale == target[axis]
        factors[axis] = int(scale) if exact else 0
    return factors


def _axes_of(op: Operator, rank: int) -> list[int]:
    return [normalized(axis, rank) for axis in op.ints("axes", range(rank))]


def _axes(op: Operator, tensors: Tensors) -> tuple[int, ...]:
    scales, mode, coordinates = _scales(op, tensors), op.text("mode", "nearest"), _coordinates(op)
    if scales is None or coordinates == "tf_crop_and_resize":
        return ()
    shifts = coordinates in _HALF_PIXEL and mode in ("nearest", "linear", "bilinear")
    return tuple(axis for axis, s in scales.items() if s == 1 or (s > 1 and shifts))


def _cut(op: Operator, tensors: Tensors, region: Region) -> OperatorRegion:
    scales, cuttable = _scales(op, tensors) or {}, set(_axes(op, tensors))
    data = tensors[op.inputs[0]].whole
    needed, computes = data, region
    for axis, scale in scales.items():
        if axis not in cuttable:
            continue  # whole: the caller ensures it
        a, b = region.start[axis], region.stop[axis]
        if scale > 1:
            a, b = _needed(op, a, b, scale, data.stop[axis])
            computes = computes.with_axis(axis, a * scale, b * scale)
        needed = needed.with_axis(axis, a, b)
    inputs = (needed, *(tensors[n].whole if n else None for n in op.inputs[1:]))
    sizes = {}
    if op.constants.get(3) and not _old(op):
        sizes = {3: tuple(computes.shape[axis] for axis in _axes_of(op, len(data.stop)))}
    return OperatorRegion(region, computes, inputs, constants=sizes)


def _needed(op: Operator, a: int, b: int, scale: int, size: int) -> tuple[int, int]:
    """The input rows for the output rows [a, b): those for interpolation, and those that the output
    rows belong to.

    The node would not yield the rows without the latter: between pixel centres "floor" takes each
    output row from the input row before the one that it belongs to.
    """
    if op.text("mode", "nearest") == "nearest":
        rounding = op.text("nearest_mode", "floor" if _old(op) else "round_prefer_floor")
        low = high = _ROUNDING[rounding]
    else:
        low, high = _ROUNDING["floor"], _ROUNDING["ceil"]
    # Row x has the coordinate x / scale, or (x + 1/2) / scale - 1/2 between pixel centres.
    shift = 1 - scale if _HALF_PIXEL[_coordinates(op)] else 0
    first = min(low(2 * a + shift, 2 * scale), a // scale)
    last = max(high(2 * (b - 1) + shift, 2 * scale), (b - 1) // scale)
    return max(first, 0), min(last, size - 1) + 1


RULES: dict[str, OperatorRule] = dict.fromkeys(
    ("Resize", "Upsample"),
    OperatorRule(_axes, _cut, along="axes that are scaled by a whole number"),
)
