"""How each ONNX operator is cut, one file a family; an operator without a rule stays whole."""

from coexec.graph.rules import (
    cropping,
    elementwise,
    layout,
    products,
    reductions,
    resize,
    transposed,
    windows,
)
from coexec.graph.rules.base import OperatorRegion, SplitRule

__all__ = ["RULES", "OperatorRegion", "SplitRule"]

RULES: dict[str, SplitRule] = {
    **cropping.RULES,
    **elementwise.RULES,
    **layout.RULES,
    **products.RULES,
    **reductions.RULES,
    **resize.RULES,
    **transposed.RULES,
    **windows.RULES,
}
"""Rule by ``op_type`` of the standard ONNX domain."""
