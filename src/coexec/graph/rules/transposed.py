"""Transposed convolution: each input row is spread over several output rows, a stride apart."""

import math
from dataclasses import dataclass

from coexec.graph.graph import Operator, Scalars
from coexec.graph.region import Region
from coexec.graph.rules.base import OperatorRegion, OperatorRule, Tensors, box, output_shape
from coexec.graph.rules.windows import group_range


@dataclass(frozen=True, slots=True)
class _Spread:
    """Input row i adds to the output rows [i * stride - begin, i * stride - begin + extent)."""

    size: int
    extent: int
    stride: int
    begin: int

    def needed(self, a: int, b: int) -> tuple[int, int, int, int, int]:
        """Input range, padding at both ends (which crops) and rows to add, for output [a, b)."""
        # Rows that no spread input reaches contain the bias alone. Reading from the last input that
        # starts at or before row a keeps the piece's own first row at or before it.
        reaching = -(-(a + self.begin - self.extent + 1) // self.stride)
        start = max(0, min(reaching, (a + self.begin) // self.stride, self.size - 1))
        stop = max(start, min((b - 1 + self.begin) // self.stride, self.size - 1)) + 1
        end = (stop - 1) * self.stride - self.begin + self.extent
        return start, stop, a - (start * self.stride - self.begin), max(end - b, 0), max(b - end, 0)


def _spreads(op: Operator, tensors: Tensors) -> list[_Spread] | None:
    """One for each spatial axis; None where the padding follows from a requested output shape."""
    sizes, kernel = tensors[op.inputs[0]].shape[2:], tensors[op.inputs[1]].shape[2:]
    count = len(sizes)
    ones, zeros = (1,) * count, (0,) * count
    strides, dilations = op.ints("strides", ones), op.ints("dilations", ones)
    pads, extra = op.ints("pads", zeros + zeros), op.ints("output_padding", zeros)
    if "output_shape" in op.attributes or op.text("auto_pad", "NOTSET") != "NOTSET":
        return None
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    spreads = [_Spread(*row) for row in zip(sizes, extents, strides, pads[:count], strict=True)]
    rows = [
        (s.size - 1) * s.stride - s.begin + s.extent + extra[i] - pads[count + i]
        for i, s in enumerate(spreads)
    ]
    fits = rows == list(output_shape(op, tensors)[2:]) and min(pads, default=0) >= 0
    return spreads if fits else None


def _axes(op: Operator, tensors: Tensors) -> tuple[int, ...]:
    rank = len(output_shape(op, tensors))
    return tuple(range(rank)) if _spreads(op, tensors) is not None else (0, 1)


def _cut(op: Operator, tensors: Tensors, region: Region) -> OperatorRegion:
    weight, groups = tensors[op.inputs[1]].shape, op.int("group", 1)
    low, high, first, last = group_range(region.start[1], region.stop[1], weight[1])
    # The weight is (IC, OC / group, ...): a cut inside a group cuts its second axis.
    inside = first - low * weight[1], last - (high - 1) * weight[1]
    per_group = weight[0] // groups
    batch, channels = (region.start[0], region.stop[0]), (low * per_group, high * per_group)
    spatial, changed = _spatial(op, tensors, region)
    if groups > 1:
        changed["group"] = high - low
    inputs: list[Region | None] = [
        box([batch, channels, *spatial]),
        box([channels, inside, *((0, k) for k in weight[2:])]),
    ]
    inputs += [Region((first,), (last,)) if name else None for name in op.inputs[2:]]
    return OperatorRegion(region, region.with_axis(1, first, last), tuple(inputs), changed)


def _spatial(
    op: Operator, tensors: Tensors, region: Region
) -> tuple[list[tuple[int, int]], dict[str, Scalars | None]]:
    spreads = _spreads(op, tensors)
    if spreads is None:
        return [(0, size) for size in tensors[op.inputs[0]].shape[2:]], {}
    ranges = [s.needed(region.start[i], region.stop[i]) for i, s in enumerate(spreads, 2)]
    changed: dict[str, Scalars | None] = {
        "pads": (*(s[2] for s in ranges), *(s[3] for s in ranges)),
        "output_padding": tuple(s[4] for s in ranges),
    }
    return [(s[0], s[1]) for s in ranges], changed


def _macs(op: Operator, tensors: Tensors) -> int:
    # Weights are (IC, OC / group, *kernel): each input element is spread over one filter.
    return math.prod(tensors[op.inputs[0]].shape) * math.prod(tensors[op.inputs[1]].shape[1:])


RULES: dict[str, OperatorRule] = {
    "ConvTranspose": OperatorRule(_axes, _cut, macs=_macs, along="all axes")
}
