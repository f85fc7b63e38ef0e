"""GlobalAveragePool, GlobalMaxPool and GlobalLpPool: reductions over all spatial axes."""

from collections.abc import Mapping

from coexec.engines.kernels.base import Context, KernelLaunch, Node
from coexec.engines.kernels.reduce import reduction
from coexec.engines.kernels.unsupported import wrong_type
from coexec.graph.graph import Operator, Tensor

__all__ = ["launches", "why_not"]


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    if op.op_type == "GlobalLpPool" and op.int("p", 2) not in (1, 2):
        return f"GlobalLpPool of order {op.int('p', 2)}: only of 1 and 2"
    return wrong_type(op, tensors)


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    kinds = {"GlobalAveragePool": "Mean", "GlobalMaxPool": "Max"}
    kind = kinds.get(op.op_type, f"L{op.int('p', 2)}")
    rank = len(context.tensors[op.inputs[0]].shape)
    return [reduction(node, context, kind, range(2, rank), keep=True)]
