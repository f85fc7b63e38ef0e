"""GlobalAveragePool, GlobalMaxPool and GlobalLpPool: reductions over all spatial axes."""

from collections.abc import Mapping

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node
from coexec.engines.kernels.reduce import reduction
from coexec.engines.kernels.unsupported import FLOAT32
from coexec.graph.graph import Operator, Tensor

__all__ = ["KERNELS"]


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    if op.int("p", 2) not in (1, 2):
        return f"GlobalLpPool of order {op.int('p', 2)}: only of 1 and 2"
    return None


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    op = node.operator
    kinds = {"GlobalAveragePool": "Mean", "GlobalMaxPool": "Max"}
    kind = kinds.get(op.op_type, f"L{op.int('p', 2)}")
    rank = len(context.tensors[op.inputs[0]].shape)
    return [reduction(node, context, kind, range(2, rank), keep=True)]


KERNELS = {
    **dict.fromkeys(
        ("GlobalAveragePool", "GlobalMaxPool"), Kernel(launches, FLOAT32, takes_epilogue=True)
    ),
    "GlobalLpPool": Kernel(
        launches, FLOAT32, why_not, "orders other than 1 and 2", takes_epilogue=True
    ),
}
