"""ConvTranspose: each element of the result gathers the input elements that are spread over it.

Along an axis, input i adds to the outputs i * stride - begin + k * dilation. So output o reads, for
each tap k, the input (o + begin - k * dilation) / stride, if that is a whole number inside.

Usually a work item computes a vector of output channels for a few pixels that are a stride apart
in x: they use the same taps at neighbouring input pixels, so a vector of weights serves them all.
Other layouts, axes and weights get a work item for each scalar.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coexec.engines.opencl.kernels.base import Context, KernelLaunch, Node, Source, ceil_div
from coexec.engines.opencl.kernels.operands import PerChannel, declare, given
from coexec.engines.opencl.kernels.output import Output
from coexec.engines.opencl.kernels.positions import at
from coexec.engines.opencl.kernels.reasons import wrong_type
from coexec.engines.opencl.kernels.sliding import grid, output_coordinates
from coexec.frontend.module import Array
from coexec.ir.graph import Operator, Tensor

__all__ = ["launches", "why_not"]

_PIXELS = 4
"""Of a work item: as many independent sums hide the time that an addition takes."""


@dataclass(frozen=True, slots=True)
class _TransposedAxis:
    """One spatial axis."""

    size: int
    """Of the input."""
    taps: int
    stride: int
    dilation: int
    begin: int
    """Rows cut off in front of the result."""


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    return wrong_type(op, tensors)


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    axes = _axes(op, context.tensors)
    groups = op.int("group", 1)
    weights = context.constant(op.inputs[1])
    x, y = (context.value(n) for n in (op.inputs[0], node.output))
    per_group = x.shape[1] // groups
    whole = groups == 1 or (y.block and not y.shape[1] // groups % y.block)
    aligned = groups == 1 or not x.block or not per_group % x.block
    if y.block and whole and aligned and weights is not None:
        return [_tiled(node, context, axes, weights)]
    return [_any(node, context, axes)]


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
                sizes, strides, extra, kernel, dilations, outputs, strict=True)
        ]  # fmt: skip
        begins = tuple(t // 2 if kind == "SAME_UPPER" else t - t // 2 for t in totals)
    rows = zip(sizes, kernel, strides, dilations, begins, strict=True)
    return [_TransposedAxis(*row) for row in rows]


def _gathered(axes: Sequence[_TransposedAxis], body: Sequence[str]) -> list[str]:
    """Lines that run ``body`` for each tap (k0, ...) that reaches output (o0, ...), from (i0, ...).

    Whether the last axis reads inside of the input is left to ``body``.
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
            *(f"  {line}" for line in lines),
            "}",
        ]
    return lines


def _any(node: Node, context: Context, axes: Sequence[_TransposedAxis]) -> KernelLaunch:
    op = node.operator
    source = Source("conv_transpose_any", context.arch)
    for argument, name in zip(("x", "w", "bias"), op.inputs, strict=False):
        if name:
            declare(source, context, argument, name)
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
        *_gathered(axes, [
            f"if (t{last} < 0 || i{last} >= {axes[last].size}) continue;",
            f"for (int c = 0; c < {inner}; c++) acc += GET_x({element}) * GET_w({factor});",
        ]),
        *output.store("acc", [n, "channel", *(f"o{a}" for a in range(last + 1))]),
    ]  # fmt: skip
    source.lines("\n".join(f"  {line}" for line in lines))
    return source.finish(grid(shape[2:], math.prod(shape[:2])))


def _tiled(
    node: Node, context: Context, axes: Sequence[_TransposedAxis], weights: Array
) -> KernelLaunch:
    op = node.operator
    source = Source("conv_transpose", context.arch)
    x = declare(source, context, "x", op.inputs[0])
    groups, b = op.int("group", 1), context.arch.block
    source.constant("w", _packed(weights, groups, b))
    bias = (
        PerChannel(source, "bias", given(context, op.inputs[2]))
        if op.inputs[2:] and op.inputs[2]
        else None
    )
    output = Output(source, context, node)
    n, _, height, width = output.value.shape
    slices, stride = output.value.slices, axes[1].stride
    inner = x.shape[1] // groups
    start = bias.vector("slice") if bias else f"({context.arch.vector})(0.0f)"
    pixels = range(min(_PIXELS, ceil_div(width, stride)))
    tiles = ceil_div(ceil_div(width, stride), len(pixels))
    lines = [
        f"const int o0 = get_global_id(1), slice = get_global_id(2) % {slices};",
        f"const int n = get_global_id(2) / {slices}, tile = get_global_id(0) / {stride};",
        f"const int o1 = tile * {stride * len(pixels)} + get_global_id(0) % {stride};",
        f"const int first = slice / {slices // groups} * {inner};",
        *(f"{context.arch.vector} a{p} = {start};" for p in pixels),
        *_gathered(axes, _tap(x.block, x.shape, axes, inner, len(pixels))),
    ]
    for p in pixels:
        column = f"o1 + {p * stride}"
        stored = output.store(f"a{p}", ["n", "slice", "o0", column], f"_{p}")
        lines += [f"if ({column} < {width}) {{", *(f"  {line}" for line in stored), "}"]
    source.lines("\n".join(f"  {line}" for line in lines))
    return source.finish((tiles * stride, height, n * slices))


def _tap(
    block: int, shape: Sequence[int], axes: Sequence[_TransposedAxis], inner: int, pixels: int
) -> list[str]:
    """Lines for all channels of one tap; pixels outside of the input count as zeros."""
    rows, columns = axes
    chunk, apart = (block, 1) if block else (inner, shape[2] * shape[3])
    lines = []
    for p in range(pixels):
        lines += [
            f"const int inside{p} = t1 >= {-p * columns.stride} && i1 + {p} < {columns.size};",
            f"const int column{p} = clamp(i1 + {p}, 0, {columns.size - 1});",
        ]
    lines += [
        f"int wi = ((slice * {rows.taps} + k0) * {columns.taps} + k1) * {inner};",
        f"for (int c = 0; c < {inner}; c += {chunk}) {{",
        *(f"  int at{p} = {at('x', ['n', 'first + c', 'i0', f'column{p}'])};"
          for p in range(pixels)),
        f"  const int stop = min({chunk}, {inner} - c);",
        "  for (int j = 0; j < stop; j++, wi++) {",
        *(f"    a{p} += LOAD_w(wi) * (inside{p} ? GET_x(at{p} + j * {apart}) : 0.0f);"
          for p in range(pixels)),
        "  }",
        "}",
    ]  # fmt: skip
    return lines


def _packed(weights: Array, groups: int, block: int) -> Array:
    """[block of output channels][ky][kx][input channel][lane], zero where there is none."""
    inputs, per_group, kernel_h, kernel_w = weights.shape
    split = weights.reshape(groups, inputs // groups, per_group, kernel_h, kernel_w)
    slices = ceil_div(per_group, block)
    full = np.zeros((groups, inputs // groups, slices * block, kernel_h, kernel_w), weights.dtype)
    full[:, :, :per_group] = split
    blocks = full.reshape(groups, inputs // groups, slices, block, kernel_h, kernel_w)
    return np.ascontiguousarray(blocks.transpose(0, 2, 4, 5, 1, 3))
