"""How tensors enter and leave programs that compute on the host's arrays. Pure.

Such an array lies as the model has the tensor, or in blocks where the module says so. Kernels want
the layout that is usual inside, so tensors change it at the two ends, where it is another one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from coexec.engines.opencl.architecture import Architecture
from coexec.engines.opencl.kernels.base import Node, usual_block
from coexec.engines.opencl.kernels.border import ENTER, LEAVE
from coexec.engines.opencl.network import Network
from coexec.ir.graph import Operator

__all__ = ["Ends"]


class Ends:
    """The inputs and outputs of a network that lie as the model has them, and not in blocks."""

    def __init__(self, network: Network, layouts: Mapping[str, int], arch: Architecture) -> None:
        """``layouts``: of inputs and outputs that do not lie as the model has them."""

        def plain(names: Sequence[str]) -> list[str]:
            usual = (n for n in names if usual_block(network.tensors[n], arch))
            return [n for n in usual if not layouts.get(n)]

        self._network = network
        self._inputs, self._outputs = plain(network.inputs), plain(network.outputs)
        self._inside = {name: f"{name}, inside" for name in (*self._inputs, *self._outputs)}
        self.outer = {inside: name for name, inside in self._inside.items()}
        """By value inside of the program, the end that it comes from or goes to."""
        self.blocks = dict.fromkeys(self._inside, 0)
        """By end, the block of its layout where it is not the usual one."""

    def network(self) -> Network:
        """The network with a change of layout at these ends."""
        given, inside = self._network, self._inside
        tensors = {inside[n]: replace(given.tensors[n], name=inside[n]) for n in inside}
        entering = [_moved(ENTER, n, inside[n]) for n in self._inputs]
        leaving = [_moved(LEAVE, inside[n], n) for n in self._outputs]
        nodes = (*entering, *(self._renamed(node) for node in given.nodes), *leaving)
        return replace(given, nodes=nodes, tensors={**given.tensors, **tensors})

    def _renamed(self, node: Node) -> Node:
        def renamed(op: Operator) -> Operator:
            names = self._inside
            inputs, outputs = (tuple(names.get(n, n) for n in ns) for ns in (op.inputs, op.outputs))
            return replace(op, inputs=inputs, outputs=outputs)

        return Node(renamed(node.operator), tuple(renamed(op) for op in node.epilogue))


def _moved(kind: str, source: str, target: str) -> Node:
    return Node(Operator(kind, (source,), (target,), {}, {}))
