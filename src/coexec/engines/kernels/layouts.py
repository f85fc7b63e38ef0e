"""Which tensors inside of a program lie in blocks of channels on a GPU, and which row by row.

Convolutions read and write blocks of channels, and what is connected with one follows it, so that
no layout changes in between. The tensors of four axes in attention and in networks with channels
last are no images: their second axis is heads or rows, and blocks of these would tear apart what
lies together.
"""

from collections.abc import Iterable

from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import usual_block
from coexec.engines.kernels.network import DeviceGraph

_OF_IMAGES = frozenset(
    {"AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace",
     "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "InstanceNormalization", "LpPool",
     "MaxPool", "Resize", "SpaceToDepth", "Upsample"}
)  # fmt: skip
"""Operators that have the channels on the second axis."""
_FREE = frozenset({"Flatten", "Gemm", "MatMul", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Operators whose result may have another layout than what they read."""


def row_major_tensors(network: DeviceGraph, arch: Architecture) -> set[str]:
    """The tensors that usually have blocks, and inside of this network should have none.

    Inputs and outputs keep the layout that all programs expect.
    """
    usual = {
        name
        for name, tensor in network.tensors.items()
        if name not in network.constants and usual_block(tensor, arch)
    }
    groups = _Groups(usual)
    images = usual.intersection((*network.inputs, *network.outputs))
    for node in network.nodes:
        for op in node.operators:
            touched = [name for name in (*op.inputs, *op.outputs) if name in usual]
            if op.op_type not in _FREE:
                groups.join(touched)
            if op.op_type in _OF_IMAGES:
                images.update(touched)
    leaders = {groups.leader(name) for name in images}
    return {name for name in usual if groups.leader(name) not in leaders}


class _Groups:
    """Sets of names without a common member, which grow by joining."""

    def __init__(self, names: Iterable[str]) -> None:
        self._parent = {name: name for name in names}

    def leader(self, name: str) -> str:
        """The member that stands for the set of ``name``."""
        while (parent := self._parent[name]) != name:
            self._parent[name] = name = self._parent[parent]
        return name

    def join(self, names: Iterable[str]) -> None:
        """Make one set of those of ``names``."""
        leaders = [self.leader(name) for name in names]
        self._parent.update(dict.fromkeys(leaders, leaders[0]) if leaders else {})
