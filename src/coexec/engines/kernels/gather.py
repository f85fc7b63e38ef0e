"""Gather, GatherElements and GatherND: elements at positions that another tensor contains.

Negative positions count from the end. See `indices` for positions out of range.
"""

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source
from coexec.engines.kernels.gather_text import moved
from coexec.engines.kernels.indices import Indices
from coexec.engines.kernels.positions import at

__all__ = ["KERNELS"]


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    source = Source("gather", context.arch)
    x = source.read("x", context.operand(op.inputs[0]))
    indices = source.read("indices", context.operand(op.inputs[1]))
    index = Indices(source, context, op, 1)
    y = context.value(node.output)
    rank = len(indices.shape)
    p = [f"p{axis}" for axis in range(len(y.shape))]
    if op.op_type == "GatherND":
        first = op.int("batch_dims", 0)
        axes = range(first, first + indices.shape[-1])
        lines = [
            index.position(f"q{a}", at("indices", [*p[: rank - 1], str(a - first)]), a, x.shape[a])
            for a in axes
        ]
        coordinates = [*p[:first], *(f"q{a}" for a in axes), *p[rank - 1 :]]
        return [moved(source, x, y, coordinates, lines=lines)]
    axis = op.int("axis", 0) % len(x.shape)
    if op.op_type == "GatherElements":
        lines = [index.position(f"q{axis}", at("indices", p), axis, x.shape[axis])]
        return [moved(source, x, y, [*p[:axis], f"q{axis}", *p[axis + 1 :]], lines=lines)]
    where = at("indices", p[axis : axis + rank])
    lines = [index.position(f"q{axis}", where, axis, x.shape[axis])]
    coordinates = [*p[:axis], f"q{axis}", *p[axis + rank :]]
    residue = None if axis == 1 else 0  # a channel stays where it is in its block
    return [moved(source, x, y, coordinates, lines=lines, residue=residue)]


KERNELS = dict.fromkeys(("Gather", "GatherElements", "GatherND"), Kernel(launches))
