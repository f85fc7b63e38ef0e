"""Which tensors inside of a program lie in blocks of channels, and which row by row.

Convolutions read and write blocks of channels, and what is connected with one follows it, so that
no layout changes in between. Where a Transpose puts channels on the last axis, the blocks of a
pixel may lie behind each other. The tensors of four axes in attention and in networks with channels
last are no images: their second axis is heads or rows, and blocks of these would tear apart what
lies together.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence

from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import Node, usual_block
from coexec.engines.kernels.border import BORDERS
from coexec.engines.kernels.expressions import VECTOR_SAFE
from coexec.engines.kernels.network import DeviceGraph
from coexec.graph.graph import Operator

_OF_IMAGES = frozenset(
    {"AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace",
     "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "InstanceNormalization", "LpPool",
     "MaxPool", "Resize", "SpaceToDepth", "Upsample"}
)  # fmt: skip
"""Operators that have the channels on the second axis."""
RESHAPES = ("Flatten", "Reshape", "Squeeze", "Unsqueeze")
_FREE = frozenset({"Gemm", "MatMul", "Transpose", *RESHAPES, *BORDERS})
"""Operators whose result may have another layout than what they read."""


def row_major_tensors(
    network: DeviceGraph, arch: Architecture, plain: Collection[str] = ()
) -> set[str]:
    """The tensors that usually have blocks, and inside of this network should have none.

    Inputs and outputs keep the layout that all programs expect.

    Args:
        plain: inputs and outputs that have no blocks.
    """
    usual = {
        name
        for name, tensor in network.tensors.items()
        if name not in network.constants and name not in plain and usual_block(tensor, arch)
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


_PERMUTATIONS = ((0, 2, 3, 1), (0, 3, 1, 2))
"""Of the Transposes that put channels on the last axis, and back on the second one."""


def channels_last(
    network: DeviceGraph, arch: Architecture, blocks: Mapping[str, int]
) -> frozenset[str]:
    """The tensors in blocks that are to be stored as [N, H, W, C].

    A Transpose that puts channels on the last axis, or back, has nothing to do then. These are the
    tensors with such a Transpose that only convolutions and element-wise operators touch besides.

    Args:
        blocks: the block of a tensor, where it is not the usual one.
    """
    return frozenset(
        name
        for name, nodes in tensors_for_last(network, arch, blocks).items()
        if any(moves_channels(node.operator) for node in nodes)
    )


def tensors_for_last(
    network: DeviceGraph, arch: Architecture, blocks: Mapping[str, int]
) -> Mapping[str, Sequence[Node]]:
    """The tensors in blocks that could be stored as [N, H, W, C], with the nodes that touch them:
    these take it so, or put channels on the last axis, or back. Arguments as of `channels_last`."""
    touching: dict[str, list[Node]] = {}
    for node in network.nodes:
        for name in {*node.inputs, *node.outputs}:
            touching.setdefault(name, []).append(node)
    ends = {*network.inputs, *network.outputs, *network.constants}
    return {
        name: nodes
        for name, nodes in touching.items()
        if name in network.tensors
        and name not in ends
        and blocks.get(name, usual_block(network.tensors[name], arch))
        and network.tensors[name].shape[1] % arch.block == 0
        and all(moves_channels(n.operator) or _takes_channels_last(n, network) for n in nodes)
    }


def moves_channels(op: Operator) -> bool:
    """Whether an operator puts channels on the last axis, or back on the second one."""
    return op.op_type == "Transpose" and op.ints("perm", ()) in _PERMUTATIONS


def _takes_channels_last(node: Node, network: DeviceGraph) -> bool:
    """Whether its kernels take blocks in any order: some convolutions of images, and element-wise
    operators."""
    op = node.operator
    if op.op_type != "Conv":
        return op.op_type in VECTOR_SAFE
    weights, groups = network.tensors[op.inputs[1]].shape, op.int("group", 1)
    return len(weights) == 4 and (groups == 1 or weights[:2] == (groups, 1))


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
