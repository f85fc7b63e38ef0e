"""Expand and Tile: the output repeats elements of the input."""

from collections.abc import Mapping

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source
from coexec.engines.kernels.gather_text import moved
from coexec.graph.graph import Operator, Tensor

__all__ = ["KERNELS"]

_LEFT_TILES = 6
"""First opset in which Tile has a count for each axis; before, it had one axis and its count."""


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    if 0 < op.version < _LEFT_TILES:
        return f"Tile of opset {op.version}: only since opset {_LEFT_TILES}"
    return None


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """The number of repetitions follows from the shapes, in Expand and Tile alike."""
    source = Source("repeat", context.arch)
    x = source.read("x", context.operand(node.operator.inputs[0]))
    y = context.value(node.output)
    new = len(y.shape) - len(x.shape)
    coordinates = [
        "0" if size == 1 else f"p{axis}" if size == y.shape[axis] else f"p{axis} % {size}"
        for axis, size in enumerate(x.shape, new)
    ]
    residue = 0 if x.block and x.shape[1] == y.shape[1] else None
    return [moved(source, x, y, coordinates, residue=residue)]


KERNELS = {
    "Expand": Kernel(launches),
    "Tile": Kernel(launches, why_not=why_not, refuses=f"opsets before {_LEFT_TILES}"),
}
