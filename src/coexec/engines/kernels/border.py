"""Conversion into this engine's blocks of channels and back, where a tensor enters or leaves.

A tensor in blocks is declared with all channels of its last block. A tensor in the layout of the
model is declared with its actual channels. If both sides have the same block, nothing moves
(`aliasing`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, usual_block
from coexec.engines.kernels.network import DeviceGraph
from coexec.engines.kernels.reorder import reorder
from coexec.graph.graph import Operator
from coexec.lowering.dialect import Dialect
from coexec.lowering.layout import Layout, blocks_of

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


class Ends:
    """The inputs and outputs with the layout of the model where the engine usually has blocks.

    They change their layout where a program that computes on host arrays begins and ends.
    """

    def __init__(
        self, network: DeviceGraph, layouts: Mapping[str, Layout], arch: Architecture
    ) -> None:
        """``layouts``: by name, for inputs and outputs whose layout differs from the model's."""

        def plain(names: Sequence[str]) -> list[str]:
            usual = (n for n in names if usual_block(network.tensors[n], arch))
            return [n for n in usual if n not in layouts]

        self._network = network
        self._inputs, self._outputs = plain(network.inputs), plain(network.outputs)
        self._inside = {name: f"{name}, inside" for name in (*self._inputs, *self._outputs)}
        self.outer = {inside: name for name, inside in self._inside.items()}
        """Name of the input or output, by name of the value inside of the program."""
        self.blocks = dict.fromkeys(self._inside, 0)
        """Block size of the inputs and outputs whose layout is not the usual one, by name."""

    def network(self) -> DeviceGraph:
        """The network with a node that changes the layout at each of these inputs and outputs."""
        graph, inside = self._network, self._inside
        tensors = {inside[n]: replace(graph.tensors[n], name=inside[n]) for n in inside}
        entering = [_moved(ENTER, n, inside[n]) for n in self._inputs]
        leaving = [_moved(LEAVE, inside[n], n) for n in self._outputs]
        nodes = (*entering, *(self._renamed(node) for node in graph.nodes), *leaving)
        return replace(graph, nodes=nodes, tensors={**graph.tensors, **tensors})

    def _renamed(self, node: Node) -> Node:
        def renamed(op: Operator) -> Operator:
            names = self._inside
            inputs, outputs = (tuple(names.get(n, n) for n in ns) for ns in (op.inputs, op.outputs))
            return replace(op, inputs=inputs, outputs=outputs)

        return Node(renamed(node.operator), tuple(renamed(op) for op in node.epilogue))


def _moved(kind: str, source: str, target: str) -> Node:
    return Node(Operator(kind, (source,), (target,), {}, {}))
