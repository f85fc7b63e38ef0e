"""The facts of each ONNX operator that follow from shapes, one file a family.

How an operator is cut, and how many products it computes. An operator without a rule stays whole.
"""

from coexec.graph.graph import Operator
from coexec.graph.rules import (
    cropping,
    elementwise,
    layout,
    products,
    reductions,
    resize,
    transposed,
    uncut,
    windows,
)
from coexec.graph.rules.base import OperatorRegion, OperatorRule, Tensors

__all__ = ["RULES", "OperatorRegion", "OperatorRule", "operator_macs"]

RULES: dict[str, OperatorRule] = {
    **cropping.RULES,
    **elementwise.RULES,
    **layout.RULES,
    **products.RULES,
    **reductions.RULES,
    **resize.RULES,
    **transposed.RULES,
    **uncut.RULES,
    **windows.RULES,
}
"""Rule by ``op_type`` of the standard ONNX domain."""

_MICROSOFT = {
    "DynamicQuantizeMatMul": products.matmul_macs,
    "MatMulIntegerToFloat": products.matmul_macs,
    "QGemm": products.gemm_macs,
}
"""Products of operators of the domain com.microsoft, which stay whole."""


def operator_macs(op: Operator, tensors: Tensors) -> int:
    """Multiply-accumulates of ``op``; 0 for operators without a product of tensors."""
    if op.domain == "com.microsoft" and op.op_type in _MICROSOFT:
        return _MICROSOFT[op.op_type](op, tensors)
    rule = None if op.domain else RULES.get(op.op_type)
    return 0 if rule is None else rule.macs(op, tensors)
