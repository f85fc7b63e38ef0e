"""Operators that move elements without computing: Concat, Slice, Transpose, Reshape and kin."""

import math
from collections.abc import Sequence

from coexec.graph.graph import Operator
from coexec.graph.region import Region
from coexec.graph.rules.base import (
    AxisMaps,
    OperatorRegion,
    OperatorRule,
    Tensors,
    box,
    broadcast_axes,
    cut_by_axes,
    empty_region,
    normalized,
    output_shape,
)


def _all_axes(op: Operator, tensors: Tensors) -> tuple[int, ...]:
    return tuple(range(len(output_shape(op, tensors))))


def _parameters(op: Operator, tensors: Tensors) -> list[Region | None]:
    """The inputs behind the first one, whole."""
    return [tensors[name].whole if name else None for name in op.inputs[1:]]


def _concat(op: Operator, tensors: Tensors, region: Region) -> OperatorRegion:
    """Inputs that ``region`` does not contain are not read: their region is empty."""
    axis = normalized(op.int("axis", 1), len(region.start))
    offset, inputs = 0, []
    for name in op.inputs:
        size = tensors[name].shape[axis]
        start, stop = region.start[axis] - offset, region.stop[axis] - offset
        part = region.with_axis(axis, max(start, 0), min(stop, size))
        inputs.append(part if part.size else empty_region(len(region.start)))
        offset += size
    return OperatorRegion(region, region, tuple(inputs))


def _transpose(op: Operator, tensors: Tensors) -> AxisMaps:
    rank = len(output_shape(op, tensors))
    return [dict(enumerate(op.ints("perm", range(rank - 1, -1, -1))))]


def _expand(op: Operator, tensors: Tensors) -> dict[int, int] | None:
    if 1 not in op.constants:
        return None
    return broadcast_axes(tensors[op.inputs[0]].shape, output_shape(op, tensors))


def _expand_axes(op: Operator, tensors: Tensors) -> tuple[int, ...]:
    return () if _expand(op, tensors) is None else _all_axes(op, tensors)


def _expand_cut(op: Operator, tensors: Tensors, region: Region) -> OperatorRegion:
    data = tensors[op.inputs[0]].whole
    for output_axis, axis in (_expand(op, tensors) or {}).items():
        data = data.with_axis(axis, region.start[output_axis], region.stop[output_axis])
    inputs = (data, *_parameters(op, tensors))
    return OperatorRegion(region, region, inputs, constants={1: region.shape})


def _tile(op: Operator, tensors: Tensors) -> AxisMaps | None:
    if 1 not in op.constants or len(op.inputs) != 2:
        return None
    return [{axis: axis for axis, count in enumerate(op.constants[1]) if count == 1}, {}]


def _factors(source: Sequence[int], target: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Output axes of a reshape that can be cut: axis -> (input axis, input rows for an output row).

    Both shapes fall into groups of axes of equal product. In a group the first axis that is not 1
    is the outermost one of a contiguous run. Cutting it cuts the run into equal blocks. Each block
    is whole rows of the input's outermost axis if the size of one divides the other.
    """
    factors: dict[int, tuple[int, int]] = {}
    left = [i for i, d in enumerate(source) if d != 1]
    right = [i for i, d in enumerate(target) if d != 1]
    while left and right:
        axis, output_axis = left.pop(0), right.pop(0)
        size, output_size = source[axis], target[output_axis]
        inner, output_inner = 1, 1
        while size * inner != output_size * output_inner:
            if size * inner < output_size * output_inner:
                inner *= source[left.pop(0)]
            else:
                output_inner *= target[right.pop(0)]
        if output_inner % inner == 0:
            factors[output_axis] = (axis, output_inner // inner)
    return factors


def _reshape_axes(op: Operator, tensors: Tensors) -> tuple[int, ...]:
    source, target = tensors[op.inputs[0]].shape, output_shape(op, tensors)
    parameter = _GIVEN[op.op_type]
    has_parameter = not parameter or parameter in op.attributes or 1 in op.constants
    if not has_parameter or not math.prod(source):
        return ()
    return tuple(_factors(source, target))


def _reshape_cut(op: Operator, tensors: Tensors, region: Region) -> OperatorRegion:
    data, target = tensors[op.inputs[0]], output_shape(op, tensors)
    needed = data.whole
    for output_axis, (axis, rows) in _factors(data.shape, target).items():
        start, stop = region.start[output_axis], region.stop[output_axis]
        needed = needed.with_axis(axis, start * rows, stop * rows)
    inputs = (needed, *_parameters(op, tensors))
    if op.op_type != "Reshape":
        return OperatorRegion(region, region, inputs)
    if "shape" in op.attributes:
        return OperatorRegion(region, region, inputs, {"shape": region.shape})
    return OperatorRegion(region, region, inputs, constants={1: region.shape})


_GIVEN = {"Flatten": "", "Reshape": "shape", "Squeeze": "axes", "Unsqueeze": ""}
"""The attribute or constant without which a piece cannot be written: Reshape's is replaced by the
piece's own shape, and Squeeze without axes would drop every axis on which the piece has one
element."""


def _space_axes(op: Operator, tensors: Tensors) -> tuple[int, ...]:
    return (0, 2, 3)


def _depth_to_space(op: Operator, tensors: Tensors, region: Region) -> OperatorRegion:
    """Whole blocks are computed, then cropped."""
    size, data = op.int("blocksize", 1), tensors[op.inputs[0]].whole
    rows = [(region.start[i] // size, -(-region.stop[i] // size)) for i in (2, 3)]
    batch = (region.start[0], region.stop[0])
    blocks = [(start * size, stop * size) for start, stop in rows]
    computes = box([batch, (region.start[1], region.stop[1]), *blocks])
    needed = box([batch, (data.start[1], data.stop[1]), *rows])
    return OperatorRegion(region, computes, (needed,))


def _space_to_depth(op: Operator, tensors: Tensors, region: Region) -> OperatorRegion:
    size, data = op.int("blocksize", 1), tensors[op.inputs[0]].whole
    rows = [(region.start[i] * size, region.stop[i] * size) for i in (2, 3)]
    batch, channels = (region.start[0], region.stop[0]), (data.start[1], data.stop[1])
    return OperatorRegion(region, region, (box([batch, channels, *rows]),))


RULES: dict[str, OperatorRule] = {
    **dict.fromkeys(
        _GIVEN,
        OperatorRule(
            _reshape_axes, _reshape_cut, along="outer axes, if their parts stay contiguous"
        ),
    ),
    "Concat": OperatorRule(_all_axes, _concat, along="all axes"),
    "DepthToSpace": OperatorRule(_space_axes, _depth_to_space, along="batch, rows, columns"),
    "Expand": OperatorRule(_expand_axes, _expand_cut, along="all axes"),
    "SpaceToDepth": OperatorRule(_space_axes, _space_to_depth, along="batch, rows, columns"),
    "Tile": cut_by_axes(_tile, "axes that are not repeated"),
    "Transpose": cut_by_axes(_transpose, "all axes"),
}
