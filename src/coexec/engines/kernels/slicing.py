"""Slice and Split: every output is a part of the input, stepped or reversed."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source, ceil_div
from coexec.engines.kernels.elements import moved
from coexec.engines.kernels.unsupported import numbers
from coexec.graph.graph import Operator, Tensor


class AxisSlice(NamedTuple):
    """The elements of an output along one axis of the input: start, start + step, ..."""

    axis: int
    start: int
    step: int = 1


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    if axis_slices(op, tensors) is None:
        what = "sizes" if op.op_type == "Split" else "bounds"
        return f"the {what} of {op.op_type} are computed, not constant"
    return None


def axis_slices(op: Operator, tensors: Mapping[str, Tensor]) -> dict[str, list[AxisSlice]] | None:
    """Slices of the first input, by name of the output; None if the model computes the bounds.

    Outputs that do not exist or have no elements are left out.
    """
    if op.op_type == "Split":
        return _split(op, tensors)
    slices = _sliced(op, tensors)
    return None if slices is None else {op.outputs[0]: slices}


def _split(op: Operator, tensors: Mapping[str, Tensor]) -> dict[str, list[AxisSlice]] | None:
    shape = tensors[op.inputs[0]].shape
    axis = op.int("axis", 0) % len(shape)
    sizes = _sizes(op, tensors, axis)
    if sizes is None:
        return None
    starts = accumulate(sizes, initial=0)
    parts = zip(op.outputs, starts, strict=False)
    return {
        name: [AxisSlice(axis, start)]
        for name, start in parts
        if name in tensors and tensors[name].shape[axis]
    }


def _sizes(op: Operator, tensors: Mapping[str, Tensor], axis: int) -> Sequence[int] | None:
    """Sizes of the outputs along ``axis``; None if the model computes them.

    They are read from ``split`` if unused outputs have no shape.
    """
    if all(name in tensors for name in op.outputs):
        return [tensors[name].shape[axis] for name in op.outputs]
    split_sizes = numbers(op, "split", 1)
    if split_sizes is None:
        return None
    even = ceil_div(tensors[op.inputs[0]].shape[axis], len(op.outputs))
    return [int(v) for v in split_sizes] or [even] * len(op.outputs)


def _sliced(op: Operator, tensors: Mapping[str, Tensor]) -> list[AxisSlice] | None:
    shape = tensors[op.inputs[0]].shape
    bounds = [numbers(op, name, i) for i, name in enumerate(("starts", "ends", "axes", "steps"), 1)]
    starts, _, axes, steps = bounds
    if starts is None or axes is None or steps is None:
        return None
    slices = []
    for i, start in enumerate(starts):
        axis = int(axes[i]) % len(shape) if axes else i
        step = int(steps[i]) if steps else 1
        size = shape[axis]
        first = int(start) + size if start < 0 else int(start)
        slices.append(AxisSlice(axis, min(max(first, 0), size - 1), step))
    return slices


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """One kernel for each output that is no view of the input."""
    op = node.operator
    parts = axis_slices(op, context.tensors) or {}
    made = {name: cuts for name, cuts in parts.items() if name not in context.views}
    return [_cut_out(node, context, name, cuts) for name, cuts in made.items()]


def _cut_out(node: Node, context: Context, name: str, slices: Sequence[AxisSlice]) -> KernelLaunch:
    source = Source("slice", context.arch)
    x = source.read("x", context.operand(node.operator.inputs[0]))
    y = context.value(name)
    coordinates = [f"p{axis}" for axis in range(len(y.shape))]
    residue: int | None = 0
    for axis, start, step in slices:
        coordinates[axis] = f"({start} + {coordinates[axis]} * {step})"
        if axis == 1 and context.arch.block:
            residue = start % context.arch.block if step == 1 else None
    return moved(source, x, y, coordinates, residue=residue)


KERNELS = dict.fromkeys(
    ("Slice", "Split"), Kernel(launches, why_not=why_not, refuses="computed bounds or sizes")
)
