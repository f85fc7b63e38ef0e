"""The sizes of a convolution, and copies of its input with padding around it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from coexec.arrays import Array
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import (
    Context,
    ConvTraits,
    KernelLaunch,
    Node,
    Source,
    Value,
    ceil_div,
)
from coexec.engines.kernels.touches import Along, along, of_image
from coexec.graph.graph import Operator, Tensor
from coexec.graph.rules.windows import windows


@dataclass(frozen=True, slots=True)
class ConvShape:
    """Sizes of a 2-D convolution. ``in_h`` and ``in_w`` include padding that has been copied."""

    batch: int
    in_channels: int
    """Input channels of one group."""
    out_channels: int
    """Output channels of all groups."""
    groups: int
    in_h: int
    in_w: int
    out_h: int
    out_w: int
    kernel_h: int
    kernel_w: int
    stride_h: int
    stride_w: int
    dilation_h: int
    dilation_w: int
    top: int
    left: int
    bottom: int
    right: int
    """Padding on the right. The padding on each side may be negative."""

    @property
    def padded(self) -> bool:
        return any((self.top, self.left, self.bottom, self.right))

    @property
    def pointwise(self) -> bool:
        """Whether each output pixel reads the same input pixel and no other."""
        return (self.kernel_h, self.kernel_w, self.stride_h, self.stride_w) == (
            1,
            1,
            1,
            1,
        ) and not self.padded

    @property
    def rows(self) -> int:
        """Rows of the output; all pixels of a pointwise convolution form one row."""
        return 1 if self.pointwise else self.out_h

    @property
    def row_pixels(self) -> int:
        return self.out_h * self.out_w if self.pointwise else self.out_w

    @property
    def macs(self) -> int:
        taps = self.in_channels * self.kernel_h * self.kernel_w
        return self.batch * self.out_channels * self.out_h * self.out_w * taps

    @property
    def rows_inside(self) -> int:
        """Number of filter rows inside of the image, added up over all `rows` of the output."""
        first = range(-self.top, -self.top + self.rows * self.stride_h, self.stride_h)
        rows = range(self.kernel_h)
        return sum(0 <= y + k * self.dilation_h < self.in_h for y in first for k in rows)

    def rows_read(self, axis: int, items: int, rows: int) -> Along:
        """The input rows of items that compute ``rows`` output rows each, from the first row on."""
        first, extent = -self.top, (self.kernel_h - 1) * self.dilation_h + 1
        return along(axis, items, rows * self.stride_h, first, (rows - 1) * self.stride_h + extent)

    def traits(self, kind: Literal["convolution", "depthwise"]) -> ConvTraits:
        """Properties for the rules of work groups."""
        square = self.kernel_h == self.kernel_w and self.stride_h == self.stride_w
        return ConvTraits(kind, self.kernel_h if square else 0, self.stride_h)

    @staticmethod
    def of(op: Operator, tensors: Mapping[str, Tensor]) -> "ConvShape":
        """The shape of a Conv of two spatial axes."""
        x, w, y = (tensors[n] for n in (*op.inputs[:2], op.outputs[0]))
        slides = windows(op, tensors, w.shape[2:])
        if slides is None:
            raise ValueError(f"the padding of {op.outputs[0]!r} cannot be told")
        (top, left), (bottom, right) = (
            tuple(s.begin for s in slides),
            tuple((s.output - 1) * s.stride + s.extent - s.size - s.begin for s in slides),
        )
        (in_h, in_w), (out_h, out_w) = x.shape[2:], y.shape[2:]
        (kernel_h, kernel_w), (stride_h, stride_w) = w.shape[2:], (s.stride for s in slides)
        dilation_h, dilation_w = op.ints("dilations", (1, 1))
        return ConvShape(
            x.shape[0],
            w.shape[1],
            w.shape[0],
            op.int("group", 1),
            in_h,
            in_w,
            out_h,
            out_w,
            kernel_h,
            kernel_w,
            stride_h,
            stride_w,
            dilation_h,
            dilation_w,
            top,
            left,
            bottom,
            right,
        )


def tile_cycles(rows: float, blocks: int) -> float:
    """Cycles of one step of a tile of rows (pixels) times blocks of channels on a CPU core.

    The step is limited by its multiply-adds (two a cycle), its loads (two a cycle), or the transfer
    of its weights from the second-level cache (about half a vector a cycle). All cores of the last
    decade have similar limits.
    """
    return max(rows * blocks / 2, (rows + blocks) / 2, 2 * blocks) + 1


def in_turns(arch: Architecture, steps: int, groups: int) -> dict[str, float]:
    """Terms of a workload: the steps of groups of work items on a GPU, ``steps`` for each group.

    A group runs its steps one after the other, and a second group computes while the first one
    waits. So the time of a compute unit is between its even share of all steps and the sum of the
    steps of its groups.
    """
    units = arch.compute_units
    return {
        "alone": float(steps),
        "turns": float(steps * ceil_div(groups, units)),
        "shares": steps * groups / units,
    }


def padded_copy(
    context: Context, x: Value, shape: ConvShape, rows: bool = True
) -> tuple[KernelLaunch, Value, ConvShape]:
    """Copy an image into a larger one with zeros around it; without ``rows``, left and right only.

    Returns the launch, the copy, and the convolution without that padding, which reads the copy.
    The copy takes a few per cent of the time of a convolution with a kernel larger than 1x1. In
    return, tiles at a border need no test which pixels are inside.
    """
    top, below = (shape.top, max(shape.bottom, 0)) if rows else (0, 0)
    height, width = shape.in_h + top + below, shape.in_w + shape.left + max(shape.right, 0)
    n, channels, _, _ = x.shape
    padded = context.temporary((n, channels, height, width), x.block, x.half)
    on_cores = context.arch.family == "cpu"
    source = Source("pad_copy", context.arch, sized=on_cores and bool(x.block), alone=on_cores)
    source.read("x", x)
    source.write("y", padded)
    size = source.size
    outer = n * (x.slices if x.block else channels)
    load = "LOAD" if x.block else "GET"
    store = "STORE" if x.block else "PUT"
    zero = f"({context.arch.vector})(0.0f)" if x.block else "0.0f"
    in_h, in_w = size("in_h", shape.in_h), size("in_w", shape.in_w)
    at = f"(outer * {in_h} + iy) * {in_w} + ix"
    if x.last:
        at = f"VEC_x(outer / {x.slices}, outer % {x.slices}, iy, ix)"
    planes = along(2, outer)
    touches = {
        "x": of_image(x, along(1, height, first=-top), planes, joint=True),
        "y": of_image(padded, along(1, height), planes, joint=True),
    }
    to = f"(outer * {size('height', height)} + y0) * {size('width', width)}"
    left, iy = size("left", shape.left), f"y0 - {size('top', top)}"
    inside = f"iy >= 0 && iy < {in_h}"
    if on_cores:
        start, right = size("start", max(0, -shape.left)), size("right", max(shape.right, 0))
        source.lines(
            [
                f"const int y0 = item_1, outer = item_2, iy = {iy}, inside = {inside};",
                f"const int to = {to}, first = to + {left}, behind = first + {in_w};",
                f"for (int i = 0; i < {left}; i++) {store}_y(to + i, {zero});",
                f"for (int ix = {start}; ix < {in_w}; ix++)",
                f"  {store}_y(first + ix, inside ? {load}_x({at}) : {zero});",
                f"for (int i = 0; i < {right}; i++) {store}_y(behind + i, {zero});",
            ]
        )
        launch = source.finish((1, height, outer), (1, 1, 1), touches=touches)
    else:
        source.add(
            f"  const int x0 = get_global_id(0), y0 = get_global_id(1), outer = get_global_id(2);\n"
            f"  const int ix = x0 - {left}, iy = {iy};\n"
            f"  const int to = {to} + x0;\n"
            f"  if (ix >= 0 && ix < {in_w} && {inside})\n"
            f"    {store}_y(to, {load}_x({at}));\n"
            f"  else {store}_y(to, {zero});"
        )
        launch = source.finish((width, height, outer), touches=touches)
    inner = without_columns(shape)
    if rows:
        inner = replace(inner, in_h=height, top=0, bottom=0)
    return launch, padded, inner


def without_columns(shape: ConvShape) -> ConvShape:
    """The convolution that reads a copy with the left and right padding in it."""
    return replace(shape, in_w=shape.in_w + shape.left + max(shape.right, 0), left=0, right=0)


def computed_weights(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    """The reason if weights or bias are computed, or None: kernels read them packed."""
    if all(tensors[name].constant for name in op.inputs[1:] if name):
        return None
    return f"the weights of {op.op_type} are computed, not constant"


def packed_bias(node: Node, context: Context, first: int, blocks: int) -> Array:
    """The bias of ``blocks`` blocks of channels from block ``first`` on; zeros if there is none."""
    b, name = context.arch.block, "".join(node.operator.inputs[2:])
    bias = np.zeros(blocks * b, np.float32)
    if name:
        part = context.constants[name][first * b : (first + blocks) * b]
        bias[: part.size] = part
    return bias
