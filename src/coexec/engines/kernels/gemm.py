"""Gemm and MatMul: selects the variant for this processor."""

from coexec.engines.kernels import gemm_cpu, gemm_lanes, gemm_tiled, gemv
from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node
from coexec.engines.kernels.product import Product
from coexec.engines.kernels.unsupported import FLOAT32

__all__ = ["KERNELS"]


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    product = Product.of(node.operator, context)
    if context.arch.family == "cpu":
        if gemm_lanes.fits(node, context):
            return gemm_lanes.launches(node, context, product)
        return gemm_cpu.launches(node, context, product)
    if gemv.fits(node, context, product):
        return gemv.launches(node, context, product)
    return gemm_tiled.launches(node, context, product)


KERNELS = dict.fromkeys(("Gemm", "MatMul"), Kernel(launches, FLOAT32, takes_epilogue=True))
