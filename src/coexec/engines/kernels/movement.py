"""Operators that only move elements: Expand, Tile, Gather, DepthToSpace, Reshape and similar."""

from collections.abc import Mapping

import numpy as np

from coexec.arrays import is_float, numpy_type
from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source, row_major
from coexec.engines.kernels.elements import each_scalar, moved
from coexec.engines.kernels.value import at, split_lines
from coexec.graph.graph import Operator, Tensor


def _repeat(node: Node, context: Context) -> list[KernelLaunch]:
    """Expand and Tile: the number of repetitions follows from the shapes."""
    source = Source("repeat", context.arch)
    x = source.read("x", context.operand(node.operator.inputs[0]))
    y = context.value(node.output)
    new = len(y.shape) - len(x.shape)
    coordinates = [
        "0" if size == 1 else f"p{axis}" if size == y.shape[axis] else f"p{axis} % {size}"
        for axis, size in enumerate(x.shape, new)
    ]
    residue = 0 if x.block and x.shape[1] == y.shape[1] else None
    return [moved(source, x, y, coordinates, residue=residue)]


def _indices_of_integers(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    data, indices = (tensors[name] for name in op.inputs)
    if indices.constant or is_float(numpy_type(data.dtype)):
        return None
    return "the indices of Gather are computed, and no integer can say that one is out of range"


def _gather(node: Node, context: Context) -> list[KernelLaunch]:
    """Elements at positions along one axis. Negative positions count from the end.

    Where the positions are computed, as those of an embedding are, an element out of range is NaN.
    A session leaves answers with NaN to ONNX Runtime, which then raises its error.

    Raises:
        ValueError: a constant index is out of range.
    """
    op = node.operator
    source = Source("gather", context.arch)
    x = source.read("x", context.operand(op.inputs[0]))
    axis = op.int("axis", 0) % len(x.shape)
    size, constant = x.shape[axis], context.constant(op.inputs[1])
    if constant is not None:
        if constant.min() < -size or constant.max() >= size:
            raise ValueError(f"an index of {op.outputs[0]!r} is not one of {size} elements")
        places = np.where(constant < 0, constant + size, constant).astype(np.int32)
        indices = source.read("indices", places)
    else:
        indices = source.read("indices", context.value(op.inputs[1]))
    y = context.value(node.output)
    rank = len(indices.shape)
    p = [f"p{a}" for a in range(len(y.shape))]
    found = f"GET_indices({at('indices', p[axis : axis + rank])})"
    lines, inside = [f"const int q{axis} = {found};"], ""
    if constant is None:
        lines = [
            f"const long index = {found};",
            f"const int q{axis} = clamp((int)(index < 0 ? index + {size} : index), 0, {size - 1});",
        ]
        inside = f"index >= {-size} && index < {size}"
    coordinates = [*p[:axis], f"q{axis}", *p[axis + rank :]]
    residue = None if axis == 1 else 0  # a channel stays where it is in its block
    parts = source, x, y, coordinates
    return [moved(*parts, lines=lines, residue=residue, inside=inside, outside="NAN")]


def _space_depth(node: Node, context: Context) -> list[KernelLaunch]:
    """DepthToSpace and SpaceToDepth: squares of pixels become channels, or the reverse. Whole
    vectors move where each pixel of a square has whole blocks of channels."""
    op = node.operator
    source = Source("space_depth", context.arch)
    x = source.read("x", context.operand(op.inputs[0]))
    y = context.value(node.output)
    size = op.int("blocksize", 1)
    together = op.text("mode", "DCR") == "DCR"
    if op.op_type == "SpaceToDepth":
        channels = x.shape[1]
        channel, inside = f"p1 % {channels}", f"p1 / {channels}"
        if not together:
            channel, inside = f"p1 / {size * size}", f"p1 % {size * size}"
        row, column = f"p2 * {size} + {inside} / {size}", f"p3 * {size} + {inside} % {size}"
        coordinates = ["p0", channel, row, column]
    else:
        channels = y.shape[1]
        inside = f"(p2 % {size} * {size} + p3 % {size})"
        channel = f"{inside} * {channels} + p1" if together else f"p1 * {size * size} + {inside}"
        coordinates = ["p0", channel, f"p2 / {size}", f"p3 / {size}"]
    residue = 0 if together and channels % context.arch.block == 0 else None
    return [moved(source, x, y, coordinates, residue=residue)]


def _reshape(node: Node, context: Context) -> list[KernelLaunch]:
    """Reshape and similar operators where layouts differ; others need no kernel, see `aliasing`.
    The position of a scalar in the order of ONNX gives its source."""
    source = Source("reshape", context.arch)
    x = source.read("x", context.operand(node.operator.inputs[0]))
    y = context.value(node.output)
    source.write("y", y)
    source.define(row_major("order", y.shape))
    flat = f"AT_order({', '.join(f'p{axis}' for axis in range(len(y.shape)))})"
    element = ", ".join(f"q{axis}" for axis in range(len(x.shape)))
    lines = [split_lines(flat, x.shape, "q")]
    return [each_scalar(source, y, lines, f"GET_x(AT_x({element}))")]


KERNELS = {
    **dict.fromkeys(("Expand", "Tile"), Kernel(_repeat)),
    "Gather": Kernel(_gather, why_not=_indices_of_integers, refuses="computed indices of integers"),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), Kernel(_space_depth)),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), Kernel(_reshape)),
}
