"""Conversion into this engine's blocks of channels and back, where a tensor enters or leaves.

A tensor in blocks is declared with all channels of its last block. A tensor in the layout of the
model is declared with its actual channels. If both sides have the same block, nothing moves
(`aliasing`).
"""

from dataclasses import replace

from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, usual_block
from coexec.engines.kernels.reorder import reorder
from coexec.lowering.dialect import Dialect
from coexec.lowering.layout import blocks_of

__all__ = ["BORDERS", "ENTER", "KERNELS", "LEAVE", "blocks_dialect"]

ENTER, LEAVE = "EnterBlocks", "LeaveBlocks"
BORDERS = (ENTER, LEAVE)
_DOMAIN = "coexec.opencl"


def blocks_dialect(arch: Architecture) -> Dialect:
    """The operators that modules may use beside standard ones where tensors cross in blocks."""
    return Dialect(
        block=arch.block,
        domain=_DOMAIN,
        enter=(_DOMAIN, ENTER),
        leave=(_DOMAIN, LEAVE),
        inner=lambda tensor: blocks_of(usual_block(tensor, arch)),
    )


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    source, target = context.value(node.operator.inputs[0]), context.value(node.output)
    batch, channels, *spatial = source.shape
    shape = (batch, min(channels, target.shape[1]), *spatial)
    values = replace(source, shape=shape), replace(target, shape=shape)
    return [reorder(*values, context.arch)]


KERNELS = dict.fromkeys(BORDERS, Kernel(launches))
