"""Gemm and MatMul: selects the variant for this processor."""

from collections.abc import Mapping

from coexec.engines.kernels import gemm_cpu, gemm_lanes, gemm_tiled, gemv
from coexec.engines.kernels.base import Context, KernelLaunch, Node
from coexec.engines.kernels.product import Product
from coexec.graph.graph import Operator, Tensor

__all__ = ["launches", "why_not"]


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    for name in op.inputs[:2]:
        if tensors[name].dtype != "float32":
            return f"{op.op_type} of {tensors[name].dtype}: only of float32"
    return None


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    product = Product.of(node.operator, context)
    if context.arch.family == "cpu":
        if gemm_lanes.fits(node, context):
            return gemm_lanes.launches(node, context, product)
        return gemm_cpu.launches(node, context, product)
    if gemv.fits(node, context, product):
        return gemv.launches(node, context, product)
    return gemm_tiled.launches(node, context, product)
