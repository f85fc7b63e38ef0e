"""ConvTranspose: each element of the result gathers the input elements that contribute to it.

Along an axis, input i contributes to the outputs i * stride - begin + k * dilation. So output o
reads, for each tap k, the input (o + begin - k * dilation) / stride, if that is an integer inside
of the input.

Usually a work item computes a vector of output channels for some pixels whose distance in x is the
stride. They use the same taps at neighbouring input pixels, so a vector of weights serves them all.
On CPU cores, one axis and few channels are computed as images (`conv_images`). Other layouts, axes
and weights get a work item for each scalar.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from coexec.arrays import Array, aligned
from coexec.engines.kernels import conv_images
from coexec.engines.kernels.base import (
    Context,
    Kernel,
    KernelLaunch,
    Node,
    Source,
    Value,
    ceil_div,
    indented,
)
from coexec.engines.kernels.conv_shape import ConvShape, computed_weights, padded_copy
from coexec.engines.kernels.epilogue import Output
from coexec.engines.kernels.per_channel import PerChannel
from coexec.engines.kernels.unsupported import FLOAT32
from coexec.engines.kernels.value import at
from coexec.engines.kernels.window_loops import grid, output_coordinates
from coexec.graph.graph import Operator, Tensor

_PIXELS = 4
"""Pixels of a work item on a GPU: that many independent sums hide the latency of additions."""
_MOST_PIXELS = 12
"""Most pixels of a work item on a CPU core, where registers hold the sums."""


@dataclass(frozen=True, slots=True)
class _TransposedAxis:
    """One spatial axis."""

    size: int
    """Size of the input."""
    taps: int
    stride: int
    dilation: int
    begin: int
    """Rows that are cut off in front of the result."""


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    axes = _axes(op, context.tensors)
    if by_scalars(op, context):
        return [_any(node, context, axes)]
    if len(axes) == 1 or not context.value(op.outputs[0]).block:
        return conv_images.transposed(node, context, launches)
    return _tiled(node, context, axes, depthwise=_is_depthwise(op, context))


def by_scalars(op: Operator, context: Context) -> bool:
    """Whether a work item computes one scalar, as no other kernel fits these channels and axes."""
    axes = len(context.tensors[op.inputs[0]].shape) - 2
    if axes > 2 or context.tensors[op.inputs[0]].constant:
        return True
    blocks = axes == 2 and bool(context.value(op.outputs[0]).block)
    if context.arch.family != "cpu" and not blocks:
        return True
    return not (_in_blocks(op, context) or (blocks and _is_depthwise(op, context)))


def _in_blocks(op: Operator, context: Context) -> bool:
    """Whether no block of channels, in the input or in a result in blocks, spans several groups."""
    groups, block = op.int("group", 1), context.arch.block
    x, outputs = context.value(op.inputs[0]), context.tensors[op.outputs[0]].shape[1]
    whole = groups == 1 or not outputs // groups % block
    return whole and (groups == 1 or not x.block or not x.shape[1] // groups % x.block)


def _is_depthwise(op: Operator, context: Context) -> bool:
    """Whether each input channel makes one output channel, in blocks on both sides."""
    x, outputs = context.value(op.inputs[0]), context.tensors[op.outputs[0]].shape[1]
    return bool(x.block) and x.shape[1] == outputs == op.int("group", 1)


def _axes(op: Operator, tensors: Mapping[str, Tensor]) -> list[_TransposedAxis]:
    sizes, outputs = (tensors[n].shape[2:] for n in (op.inputs[0], op.outputs[0]))
    kernel = tensors[op.inputs[1]].shape[2:]
    ones, zeros = (1,) * len(sizes), (0,) * len(sizes)
    strides, dilations = op.ints("strides", ones), op.ints("dilations", ones)
    kind = op.text("auto_pad", "NOTSET")
    begins = op.ints("pads", zeros + zeros)[: len(sizes)] if kind != "VALID" else zeros
    if "output_shape" in op.attributes or kind.startswith("SAME"):
        extra = op.ints("output_padding", zeros)
        totals = [
            max(0, (size - 1) * stride + add + (taps - 1) * dilation + 1 - out)
            for size, stride, add, taps, dilation, out in zip(
                sizes, strides, extra, kernel, dilations, outputs, strict=True
            )
        ]
        begins = tuple(t // 2 if kind == "SAME_UPPER" else t - t // 2 for t in totals)
    rows = zip(sizes, kernel, strides, dilations, begins, strict=True)
    return [_TransposedAxis(*row) for row in rows]


def _gathered(axes: Sequence[_TransposedAxis], body: Sequence[str]) -> list[str]:
    """Lines that run ``body`` for each tap (k0, ...) of output (o0, ...), at the input (i0, ...).

    ``body`` has to test whether the last axis reads inside of the input.
    """
    lines = list(body)
    for axis in reversed(range(len(axes))):
        s = axes[axis]
        k, i, t = f"k{axis}", f"i{axis}", f"t{axis}"
        skipped = [f"{t} % {s.stride}"] if s.stride > 1 else []
        if axis < len(axes) - 1:
            skipped += [f"{t} < 0", f"{t} >= {s.size * s.stride}"]
        lines = [
            f"for (int {k} = 0; {k} < {s.taps}; {k}++) {{",
            f"  const int {t} = o{axis} + {s.begin} - {k} * {s.dilation};",
            *([f"  if ({' || '.join(skipped)}) continue;"] if skipped else []),
            f"  const int {i} = {t} / {s.stride};",
            *indented(lines),
            "}",
        ]
    return lines


def _any(node: Node, context: Context, axes: Sequence[_TransposedAxis]) -> KernelLaunch:
    op = node.operator
    source = Source("conv_transpose_any", context.arch)
    for argument, name in zip(("x", "w", "bias"), op.inputs, strict=False):
        if name:
            source.read(argument, context.operand(name))
    output = Output(source, context, node, scalar=True)
    shape = output.value.shape
    per_group = context.tensors[op.inputs[1]].shape[1]
    inner = context.tensors[op.inputs[0]].shape[1] // op.int("group", 1)
    lines, (n, c) = output_coordinates(shape[2:], shape[:2])
    has_bias = len(op.inputs) > 2 and op.inputs[2]
    last = len(axes) - 1
    element = at("x", [n, "first + c", *(f"i{a}" for a in range(last + 1))])
    factor = at("w", ["first + c", f"channel % {per_group}", *(f"k{a}" for a in range(last + 1))])
    lines += [
        f"const int channel = {c}, first = channel / {per_group} * {inner};",
        f"float acc = {'GET_bias(AT_bias(channel))' if has_bias else '0.0f'};",
        *_gathered(
            axes,
            [
                f"if (t{last} < 0 || i{last} >= {axes[last].size}) continue;",
                f"for (int c = 0; c < {inner}; c++) acc += GET_x({element}) * GET_w({factor});",
            ],
        ),
        *output.store("acc", [n, "channel", *(f"o{a}" for a in range(last + 1))]),
    ]
    source.lines(lines)
    return source.finish(grid(shape[2:], math.prod(shape[:2])))


def _tiled(
    node: Node, context: Context, axes: Sequence[_TransposedAxis], depthwise: bool = False
) -> list[KernelLaunch]:
    """The launches where work items compute vectors of output channels.

    On CPU cores the input is copied first, with zeros left and right, so that taps need no test
    whether they are inside.
    """
    op, arch = node.operator, context.arch
    on_cores = arch.family == "cpu"
    source = Source("conv_transpose", arch)
    x = context.value(op.inputs[0])
    groups = op.int("group", 1)
    weights = context.constants[op.inputs[1]]
    kernels: list[KernelLaunch] = []
    columns = axes[1]
    _, _, height, width = context.value(node.output).shape
    most = min(_MOST_PIXELS, arch.registers - 3) if on_cores else _PIXELS
    room = ceil_div(width, columns.stride)
    pixels = ceil_div(room, ceil_div(room, most)) if on_cores else min(most, room)
    tiles = ceil_div(room, pixels)
    if on_cores:
        copy, x, columns = _with_zeros(context, x, columns, tiles * pixels)
        kernels += copy
        source.read("x", x)
    else:
        x = source.read("x", context.operand(op.inputs[0]))
    packed = (
        _packed_lanes(weights, arch.block) if depthwise else _packed(weights, groups, arch.block)
    )
    source.constant("w", packed)
    bias = (
        PerChannel(source, "bias", context.operand(op.inputs[2]))
        if op.inputs[2:] and op.inputs[2]
        else None
    )
    output = Output(source, context, node)
    slices, stride = output.value.slices, columns.stride
    inner = x.shape[1] // groups
    start = bias.vector("slice") if bias else f"({arch.vector})(0.0f)"
    tap = _Tap(x, axes[0], columns, inner, pixels, depthwise, checked=not on_cores).lines()
    lines = [
        f"const int o0 = get_global_id(1), slice = get_global_id(2) % {slices};",
        f"const int n = get_global_id(2) / {slices}, tile = get_global_id(0) / {stride};",
        f"const int o1 = tile * {stride * pixels} + get_global_id(0) % {stride};",
        f"const int first = slice / {max(1, slices // groups)} * {inner};",
        *(f"{arch.vector} a{p} = {start};" for p in range(pixels)),
        *_gathered([axes[0], columns], tap),
    ]
    for p in range(pixels):
        column = f"o1 + {p * stride}"
        stored = output.store(f"a{p}", ["n", "slice", "o0", column], f"_{p}")
        lines += [f"if ({column} < {width}) {{", *indented(stored), "}"]
    source.lines(lines)
    grid = (tiles * stride, height, output.value.shape[0] * slices)
    return [*kernels, source.finish(grid, (1, 1, 1) if on_cores else None)]


def _with_zeros(
    context: Context, x: Value, columns: _TransposedAxis, rounded: int
) -> tuple[list[KernelLaunch], Value, _TransposedAxis]:
    """The input with zeros left and right, and the axis of its columns.

    The zeros reach as far as ``rounded * stride`` columns of the result read.
    """
    reach = (columns.taps - 1) * columns.dilation
    left = max(0, ceil_div(reach - columns.begin, columns.stride))
    last = (rounded * columns.stride - 1 + columns.begin) // columns.stride
    right = max(0, last - columns.size + 1)
    if not left and not right:
        return [], x, columns
    _, _, height, width = x.shape
    shape = ConvShape(
        x.shape[0], x.shape[1], 0, 1, height, width, 0, 0, 1, 1, 1, 1, 1, 1, 0, left, 0, right
    )
    copy, padded, _ = padded_copy(context, x, shape, rows=False)
    begin = columns.begin + left * columns.stride
    return [copy], padded, replace(columns, size=columns.size + left + right, begin=begin)


@dataclass(frozen=True, slots=True)
class _Tap:
    """Adds one tap of the filter to the sums of all pixels."""

    x: Value
    rows: _TransposedAxis
    columns: _TransposedAxis
    inner: int
    """Input channels of a group."""
    pixels: int
    depthwise: bool
    checked: bool
    """Pixels outside of the input count as zeros."""

    def lines(self) -> list[str]:
        lines = []
        if self.checked:
            for p in range(self.pixels):
                lines += [
                    f"const int inside{p} = t1 >= {-p * self.columns.stride} && "
                    f"i1 + {p} < {self.columns.size};",
                    f"const int column{p} = clamp(i1 + {p}, 0, {self.columns.size - 1});",
                ]
        taps = f"(slice * {self.rows.taps} + k0) * {self.columns.taps} + k1"
        if self.depthwise:
            for p in range(self.pixels):
                load = f"LOAD_x(VEC_x(n, slice, i0, {self._column(p)}))"
                lines.append(f"a{p} += {self._product(f'LOAD_w({taps})', load, p)};")
            return lines
        _, _, height, width = self.x.shape
        chunk, apart = (self.x.block, 1) if self.x.block else (self.inner, height * width)
        return [
            *lines,
            f"int wi = ({taps}) * {self.inner};",
            f"for (int c = 0; c < {self.inner}; c += {chunk}) {{",
            *(
                f"  int at{p} = {at('x', ['n', 'first + c', 'i0', self._column(p)])};"
                for p in range(self.pixels)
            ),
            f"  const int stop = min({chunk}, {self.inner} - c);",
            "  for (int j = 0; j < stop; j++, wi++) {",
            *(
                f"    a{p} += {self._product('LOAD_w(wi)', f'GET_x(at{p} + j * {apart})', p)};"
                for p in range(self.pixels)
            ),
            "  }",
            "}",
        ]

    def _column(self, pixel: int) -> str:
        return f"column{pixel}" if self.checked else f"i1 + {pixel}"

    def _product(self, weight: str, load: str, pixel: int) -> str:
        return (
            f"(inside{pixel} ? {weight} * {load} : 0.0f)"
            if self.checked
            else (f"{weight} * {load}")
        )


def _packed(weights: Array, groups: int, block: int) -> Array:
    """The weights as [block of output channels][ky][kx][input channel][lane], padded with zeros."""
    inputs, per_group, kernel_h, kernel_w = weights.shape
    split = weights.reshape(groups, inputs // groups, per_group, kernel_h, kernel_w)
    slices = ceil_div(per_group, block)
    full = np.zeros((groups, inputs // groups, slices * block, kernel_h, kernel_w), weights.dtype)
    full[:, :, :per_group] = split
    blocks = full.reshape(groups, inputs // groups, slices, block, kernel_h, kernel_w)
    return aligned(blocks.transpose(0, 2, 4, 5, 1, 3))


def _packed_lanes(weights: Array, block: int) -> Array:
    """The weights as [block of channels][ky][kx][lane]."""
    channels, _, kernel_h, kernel_w = weights.shape
    full = np.zeros((ceil_div(channels, block) * block, kernel_h, kernel_w), weights.dtype)
    full[:channels] = weights[:, 0]
    blocks = full.reshape(-1, block, kernel_h, kernel_w)
    return aligned(blocks.transpose(0, 2, 3, 1))


KERNELS = {
    "ConvTranspose": Kernel(
        launches, FLOAT32, computed_weights, "computed weights", takes_epilogue=True
    )
}
