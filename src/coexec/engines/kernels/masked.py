"""Trilu and ReverseSequence: another tensor decides which elements stay and which move."""

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source, literal
from coexec.engines.kernels.gather_text import moved
from coexec.engines.kernels.indices import Indices

__all__ = ["KERNELS"]


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    source = Source("masked", context.arch)
    x = source.read("x", context.operand(op.inputs[0]))
    y = context.value(node.output)
    coordinates = [f"p{axis}" for axis in range(len(y.shape))]
    if op.op_type == "Trilu":
        shift = "0"
        if len(op.inputs) > 1 and op.inputs[1]:
            source.read("k", context.operand(op.inputs[1]))
            shift = "GET_k(0)"
        side = ">=" if op.int("upper", 1) else "<="
        inside = f"({coordinates[-1]} - {coordinates[-2]} {side} {shift})"
        zero = literal(0, x.dtype)
        return [moved(source, x, y, coordinates, residue=0, inside=inside, outside=zero)]
    batch, time = op.int("batch_axis", 1), op.int("time_axis", 0)
    source.read("lengths", context.operand(op.inputs[1]))
    lengths = Indices(source, context, op, 1, "lengths")
    most = x.shape[time]
    lines = [
        f"const long length = GET_lengths(p{batch});",
        lengths.check("length", 0, most, f"there are {most} elements along the axis of time"),
        f"const int last = (int)clamp(length, 0L, {most}L) - 1;",
    ]
    coordinates[time] = f"(p{time} <= last ? last - p{time} : p{time})"
    return [moved(source, x, y, coordinates, lines=lines)]


KERNELS = dict.fromkeys(("ReverseSequence", "Trilu"), Kernel(launches))
