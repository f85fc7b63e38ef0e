"""Trilu and ReverseSequence: elements stay or move by what another tensor says of their place."""

from collections.abc import Mapping

from coexec.engines.opencl.kernels.base import Context, KernelLaunch, Node, Source, literal
from coexec.engines.opencl.kernels.moving import moved
from coexec.engines.opencl.kernels.operands import declare
from coexec.ir.graph import Operator, Tensor

__all__ = ["launches", "why_not"]


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    """Nothing but types, which are checked for all."""
    return None


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    source = Source("masked", context.arch)
    x = declare(source, context, "x", op.inputs[0])
    y = context.value(node.output)
    place = [f"p{axis}" for axis in range(len(y.shape))]
    if op.op_type == "Trilu":
        shift = "0"
        if len(op.inputs) > 1 and op.inputs[1]:
            declare(source, context, "k", op.inputs[1])
            shift = "GET_k(0)"
        side = ">=" if op.int("upper", 1) else "<="
        inside = f"({place[-1]} - {place[-2]} {side} {shift})"
        return [moved(source, x, y, place, residue=0, inside=inside, outside=literal(0, x.dtype))]
    batch, time = op.int("batch_axis", 1), op.int("time_axis", 0)
    declare(source, context, "lengths", op.inputs[1])
    lines = [f"const int last = min((int)GET_lengths(p{batch}), {x.shape[time]}) - 1;"]
    place[time] = f"(p{time} <= last ? last - p{time} : p{time})"
    return [moved(source, x, y, place, lines=lines)]
