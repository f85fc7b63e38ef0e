"""Slice and Pad: the output is a window of the input, stepped, reversed or with a border."""

from collections.abc import Sequence
from typing import NamedTuple

from coexec.graph.graph import Operator, Scalars
from coexec.graph.region import Region
from coexec.graph.rules.base import OperatorRegion, OperatorRule, Tensors, normalized, output_shape

_TO_THE_END = 2**31 - 1
"""A bound behind the end of any axis; its negative lies before the start."""


class _Steps(NamedTuple):
    start: int
    step: int

    def needed(self, a: int, b: int) -> tuple[int, int]:
        """The input range that holds the elements a to b - 1 of the output."""
        ends = self.start + a * self.step, self.start + (b - 1) * self.step
        return min(ends), max(ends) + 1


def _values(op: Operator, name: str, position: int) -> Sequence[int] | None:
    """A parameter that is an attribute in old opsets and an input in new ones; None if it is
    known only when the model runs."""
    if name in op.attributes:
        return op.ints(name, ())
    if position in op.constants:
        return [int(v) for v in op.constants[position]]
    return None if position < len(op.inputs) and op.inputs[position] else ()


def _sliced(op: Operator, tensors: Tensors) -> dict[int, _Steps] | None:
    """The steps of each sliced axis; None if they are not known."""
    shape = tensors[op.inputs[0]].shape
    parameters = [
        _values(op, *row) for row in (("starts", 1), ("ends", 2), ("axes", 3), ("steps", 4))
    ]
    if any(v is None for v in parameters):
        return None
    starts, ends, axes, steps = (list(v or ()) for v in parameters)
    steps_by_axis = {}
    for i, start in enumerate(starts):
        axis = normalized(axes[i] if axes else i, len(shape))
        step = steps[i] if steps else 1
        size = shape[axis]
        low, high = (0, size) if step > 0 else (-1, size - 1)
        first, end = (min(max(normalized(v, size), low), high) for v in (start, ends[i]))
        if step < 0:
            first = max(first, 0)
        if max(0, -((first - end) // step)) != output_shape(op, tensors)[axis]:
            return None
        steps_by_axis[axis] = _Steps(first, step)
    return steps_by_axis


def _slice_axes(op: Operator, tensors: Tensors) -> tuple[int, ...]:
    return () if _sliced(op, tensors) is None else tuple(range(len(output_shape(op, tensors))))


def _slice(op: Operator, tensors: Tensors, region: Region) -> OperatorRegion:
    """The input is already cut to the needed range, so only step and direction are left to do."""
    sliced = _sliced(op, tensors) or {}
    needed = region
    for axis, steps in sliced.items():
        needed = needed.with_axis(axis, *steps.needed(region.start[axis], region.stop[axis]))
    forward = [steps.step > 0 for steps in sliced.values()]
    starts = tuple(0 if f else _TO_THE_END for f in forward)
    ends = tuple(_TO_THE_END if f else -_TO_THE_END for f in forward)
    inputs = (needed, *(tensors[n].whole if n else None for n in op.inputs[1:]))
    if "starts" in op.attributes:
        return OperatorRegion(region, region, inputs, {"starts": starts, "ends": ends})
    # All four have one type, which may be int32 in the source: replace them together.
    rows = (starts, ends, tuple(sliced), tuple(steps.step for steps in sliced.values()))
    constants = {i: row for i, row in enumerate(rows, 1) if i < len(op.inputs) and op.inputs[i]}
    return OperatorRegion(region, region, inputs, constants=constants)


class _Border(NamedTuple):
    size: int
    begin: int
    end: int

    def needed(self, a: int, b: int, reach: int) -> tuple[int, int, int, int]:
        """Input range and padding for the output rows [a, b), or for more than those.

        ``reach`` is the number of input rows at a border that each row of padding reads, in
        addition to the border row.
        """
        low, high = a - self.begin, b - self.begin
        begin, end = max(0, -low), max(0, high - self.size)
        start, stop = max(low, 0), min(high, self.size)
        if begin:
            stop = max(stop, 1 + reach * begin)
        if end:
            start = min(start, self.size - 1 - reach * end)
        return start, stop, begin, end


_REACH = {"constant": 0, "edge": 0, "reflect": 1}
"""Input rows read for each row of padding, for modes that can be cut along padded axes. To reflect
n rows at a border, n + 1 rows are read there."""


def _borders(op: Operator, tensors: Tensors) -> dict[int, _Border] | None:
    """The axes that ``pads`` covers; None if they are not known."""
    shape = tensors[op.inputs[0]].shape
    pads, axes = _values(op, "pads", 1), _values(op, "axes", 3)
    if pads is None or axes is None or not pads:
        return None
    count = len(pads) // 2
    order = [normalized(a, len(shape)) for a in axes] if axes else list(range(count))
    borders = {a: _Border(shape[a], pads[i], pads[count + i]) for i, a in enumerate(order)}
    output = output_shape(op, tensors)
    fits = all(b.size + b.begin + b.end == output[a] and b.size > 0 for a, b in borders.items())
    return borders if fits else None


def _pad_axes(op: Operator, tensors: Tensors) -> tuple[int, ...]:
    borders = _borders(op, tensors)
    if borders is None:
        return ()
    mode = op.text("mode", "constant")
    return tuple(
        axis
        for axis in range(len(output_shape(op, tensors)))
        if mode == "constant" or (border := borders.get(axis)) is None or _mirrored(mode, border)
    )


def _mirrored(mode: str, border: _Border) -> bool:
    """Whether an axis can be cut although its border repeats elements."""
    width = max(border.begin, border.end)
    if width == 0 == min(border.begin, border.end):
        return True
    return mode in _REACH and min(border.begin, border.end) >= 0 and width < border.size


def _pad(op: Operator, tensors: Tensors, region: Region) -> OperatorRegion:
    borders, cuttable = _borders(op, tensors) or {}, set(_pad_axes(op, tensors))
    reach = _REACH.get(op.text("mode", "constant"), 0)
    needed, computes, begins, ends = region, region, [], []
    for axis, border in borders.items():
        needed_rows = (0, border.size, border.begin, border.end)
        if axis in cuttable:
            needed_rows = border.needed(region.start[axis], region.stop[axis], reach)
        start, stop, begin, end = needed_rows
        first = start + border.begin - begin
        needed = needed.with_axis(axis, start, stop)
        computes = computes.with_axis(axis, first, first + begin + stop - start + end)
        begins.append(begin)
        ends.append(end)
    pads = (*begins, *ends)
    inputs = (needed, *(tensors[n].whole if n else None for n in op.inputs[1:]))
    changed: dict[str, Scalars | None] = {"pads": pads} if "pads" in op.attributes else {}
    return OperatorRegion(region, computes, inputs, changed, {} if changed else {1: pads})


RULES: dict[str, OperatorRule] = {
    "Pad": OperatorRule(_pad_axes, _pad, 1, along="all axes"),
    "Slice": OperatorRule(_slice_axes, _slice, 1, along="all axes"),
}
