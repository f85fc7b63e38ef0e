"""Sliding windows: convolution and pooling.

Along a spatial axis the rows [a, b) of the output read the rows [a * stride - pad,
(b - 1) * stride - pad + extent) of the input. Rows outside of the tensor are padding, so a piece
keeps padding at the tensor's own borders only. The result of a pool does not depend on the size of
the rest of the tensor, so a border window covers the same elements and the same padding as in the
whole.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from coexec.graph.graph import Operator, Scalars
from coexec.graph.region import Region
from coexec.graph.rules.base import OperatorRegion, OperatorRule, Tensors, box, output_shape


@dataclass(frozen=True, slots=True)
class ReceptiveRange:
    """A range along one axis: input rows that are read, their padding, and output rows computed."""

    start: int
    stop: int
    begin: int
    end: int
    first: int
    """The first output row computed."""
    last: int
    """One past the last output row computed."""


@dataclass(frozen=True, slots=True)
class Window:
    """How a window slides along one spatial axis."""

    size: int
    """Size of the input."""
    output: int
    extent: int
    """Rows from the first to the last one that a window reads, dilation included."""
    stride: int
    begin: int
    end: int
    ceil: bool

    @property
    def fits(self) -> bool:
        """Whether this window makes as many rows as the output has; else its padding is unknown."""
        room = self.size + self.begin + self.end - self.extent
        rows = (-(-room // self.stride) if self.ceil else room // self.stride) + 1
        if self.ceil and (rows - 1) * self.stride >= self.size + self.begin:
            rows -= 1  # a window that starts behind the last element does not count
        return rows == self.output and min(self.begin, self.end, room) >= 0 and self.size > 0

    def needed(self, a: int, b: int) -> ReceptiveRange:
        """The range for the output rows [a, b). It reads at least one row: engines accept no empty
        input."""
        if self.ceil and b == self.output:
            return self._tail(a)
        a = min(a, (self.size - 1 + self.begin) // self.stride)
        low = a * self.stride - self.begin
        high = (b - 1) * self.stride - self.begin + self.extent
        start, stop = max(low, 0), max(min(high, self.size), 1)
        begin, end = start - low, max(high - stop, 0)
        rows = (begin + stop - start + end - self.extent) // self.stride + 1
        return ReceptiveRange(start, stop, begin, end, a, a + rows)

    def _tail(self, a: int) -> ReceptiveRange:
        """The range for the last rows under ``ceil_mode``: the last window may reach behind the
        padding, where the results of pools differ, so nothing changes at this end."""
        a = min(a, (self.size - 1 + self.begin) // self.stride)
        low = a * self.stride - self.begin
        start = max(low, 0)
        return ReceptiveRange(start, self.size, start - low, self.end, a, self.output)


def _same_pads(
    op: Operator, sizes: Sequence[int], kernel: Sequence[int], strides: Sequence[int]
) -> tuple[int, ...]:
    """``auto_pad`` SAME_UPPER or SAME_LOWER as numbers.

    They are those of ONNX Runtime: one row of the output for each step through the input, for a
    window without dilation. If the stride leaves out rows between windows, pools cut off the rows
    behind the last window at both ends: the padding is negative, rounded towards zero.
    """
    begins, ends = [], []
    for size, extent, stride in zip(sizes, kernel, strides, strict=True):
        total = ((size - 1) // stride) * stride + extent - size
        if op.op_type == "Conv":
            total = max(total, 0)
        begin = int((total + 1) / 2 if op.text("auto_pad", "") == "SAME_LOWER" else total / 2)
        begins.append(begin)
        ends.append(total - begin)
    return (*begins, *ends)


def group_range(first: int, last: int, per_group: int) -> tuple[int, int, int, int]:
    """Groups and channels to compute for the channels [first, last), with ``per_group`` channels a
    group.

    Returns (first group, one past the last group, first channel, one past the last channel).
    Channels inside one group stay as they are; others are extended to whole groups, because the
    groups of one convolution must be equally wide.
    """
    low, high = first // per_group, -(-last // per_group)
    if high - low == 1:
        return low, high, first, last
    return low, high, low * per_group, high * per_group


def windows(op: Operator, tensors: Tensors, kernel: Sequence[int]) -> list[Window] | None:
    """One window for each spatial axis; None where the padding is not known."""
    sizes, outputs = tensors[op.inputs[0]].shape[2:], output_shape(op, tensors)[2:]
    ones = (1,) * len(sizes)
    strides, dilations = op.ints("strides", ones), op.ints("dilations", ones)
    if not sizes or any(len(v) != len(sizes) for v in (kernel, strides, dilations)):
        return None
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    kind = op.text("auto_pad", "NOTSET")
    if kind.startswith("SAME"):
        pads = _same_pads(op, sizes, kernel, strides)
    else:
        pads = (0, 0) * len(sizes) if kind == "VALID" else op.ints("pads", (0, 0) * len(sizes))
    ceil = bool(op.int("ceil_mode", 0))
    count = len(sizes)
    axis_windows = [
        Window(sizes[i], outputs[i], extents[i], strides[i], pads[i], pads[count + i], ceil)
        for i in range(count)
    ]
    return axis_windows if all(w.fits for w in axis_windows) else None


def _receptive_ranges(
    op: Operator, tensors: Tensors, kernel: Sequence[int], region: Region
) -> tuple[list[ReceptiveRange], dict[str, Scalars | None]]:
    """The ranges of the spatial axes of ``region``, and the attributes of a piece with these
    ranges."""
    slides = windows(op, tensors, kernel)
    if slides is None:
        sizes, outputs = tensors[op.inputs[0]].shape[2:], output_shape(op, tensors)[2:]
        axes = zip(sizes, outputs, strict=True)
        return [ReceptiveRange(0, size, 0, 0, 0, output) for size, output in axes], {}
    ranges = [w.needed(region.start[i], region.stop[i]) for i, w in enumerate(slides, 2)]
    changed: dict[str, Scalars | None] = {
        "pads": (*(s.begin for s in ranges), *(s.end for s in ranges)),
        "auto_pad": None,
    }
    return ranges, changed


def _conv_axes(op: Operator, tensors: Tensors) -> tuple[int, ...]:
    rank = len(output_shape(op, tensors))
    cuttable = windows(op, tensors, tensors[op.inputs[1]].shape[2:]) is not None
    return tuple(range(rank)) if cuttable else (0, 1)


def _conv(op: Operator, tensors: Tensors, region: Region) -> OperatorRegion:
    weight, groups = tensors[op.inputs[1]].shape, op.int("group", 1)
    low, high, first, last = group_range(region.start[1], region.stop[1], weight[0] // groups)
    ranges, changed = _receptive_ranges(op, tensors, weight[2:], region)
    if groups > 1:
        changed["group"] = high - low
    batch, channels = (region.start[0], region.stop[0]), (low * weight[1], high * weight[1])
    inputs: list[Region | None] = [
        box([batch, channels, *((s.start, s.stop) for s in ranges)]),
        Region.whole(weight).with_axis(0, first, last),
    ]
    inputs += [Region((first,), (last,)) if name else None for name in op.inputs[2:]]
    computes = box([batch, (first, last), *((s.first, s.last) for s in ranges)])
    return OperatorRegion(region, computes, tuple(inputs), changed)


def conv_macs(op: Operator, tensors: Tensors, weights: int = 1) -> int:
    """Multiply-accumulates of a convolution; ``weights`` is the position of its weights."""
    # Weights are (OC, IC / group, *kernel): each output element takes one pass over one filter.
    return math.prod(output_shape(op, tensors)) * math.prod(tensors[op.inputs[weights]].shape[1:])


def _pool_axes(op: Operator, tensors: Tensors) -> tuple[int, ...]:
    cuttable = windows(op, tensors, op.ints("kernel_shape", ())) is not None
    return tuple(range(len(output_shape(op, tensors)))) if cuttable else (0, 1)


def _pool(op: Operator, tensors: Tensors, region: Region) -> OperatorRegion:
    ranges, changed = _receptive_ranges(op, tensors, op.ints("kernel_shape", ()), region)
    batch, channels = zip(region.start[:2], region.stop[:2], strict=True)
    inputs = (box([batch, channels, *((s.start, s.stop) for s in ranges)]),)
    computes = box([batch, channels, *((s.first, s.last) for s in ranges)])
    return OperatorRegion(region, computes, inputs, changed)


RULES: dict[str, OperatorRule] = {
    "Conv": OperatorRule(_conv_axes, _conv, 1, conv_macs, "all axes"),
    **dict.fromkeys(
        ("AveragePool", "LpPool", "MaxPool"), OperatorRule(_pool_axes, _pool, 1, along="all axes")
    ),
}
