"""Merged axes: fewer coordinates to compute, longer runs to iterate over."""

import math
from collections.abc import Callable, Collection
from dataclasses import replace

from coexec.engines.kernels.value import Value

__all__ = ["merged"]


def merged(out: Value, operands: Collection[Value]) -> Callable[[Value], Value]:
    """The function that merges axes of ``out`` and of the operands, which are broadcast to it.

    Neighbouring axes become one if each operand has the size of ``out``, or size 1, on all of them.
    Tensors in blocks keep their axes.
    """
    if any(value.block for value in (out, *operands)):
        return lambda value: value
    rank = len(out.shape)
    shapes = [(1,) * (rank - len(v.shape)) + v.shape for v in operands]
    groups: list[list[int]] = []
    kinds: list[tuple[bool, ...] | None] = []
    for axis, size in enumerate(out.shape):
        kind = tuple(shape[axis] == size for shape in shapes) if size > 1 else None
        if groups and (kind is None or kinds[-1] in (None, kind)):
            groups[-1].append(axis)
            kinds[-1] = kind or kinds[-1]
        else:
            groups.append([axis])
            kinds.append(kind)

    def view(value: Value) -> Value:
        shape = (1,) * (rank - len(value.shape)) + value.shape
        return replace(value, shape=tuple(math.prod(shape[a] for a in group) for group in groups))

    return view
