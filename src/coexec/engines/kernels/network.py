"""The network of a module: operators, tensors and constants, cleaned up and fused.

Clean-up, in this order: pads are merged into the convolution behind them, and identities are
removed. Then element-wise operators are fused into the kernel of the operator whose result they
read.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from coexec.arrays import Array
from coexec.engines.kernels.base import Kernel, Node
from coexec.engines.kernels.slicing import axis_slices
from coexec.graph.graph import Operator, Tensor

_LONGEST_EPILOGUE = 16


@dataclass(frozen=True, eq=False)
class DeviceGraph:
    """The operators that one program computes, with their tensors."""

    nodes: tuple[Node, ...]
    """In topological order."""
    tensors: Mapping[str, Tensor]
    constants: Mapping[str, Array]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


def clean_up(network: DeviceGraph) -> DeviceGraph:
    """An equivalent network with fewer nodes."""
    return _without_identities(_merge_pads(network))


def readers_of(network: DeviceGraph) -> dict[str, list[Node]]:
    """The nodes that read a tensor, by its name."""
    readers: dict[str, list[Node]] = {}
    for node in network.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    return readers


def _merge_pads(network: DeviceGraph) -> DeviceGraph:
    """Merge a Pad with zeros in front of a Conv into the padding of the Conv."""
    readers = readers_of(network)
    pads = {n.operator.outputs[0]: n.operator for n in network.nodes if n.operator.op_type == "Pad"}
    merged_pads: set[str] = set()
    nodes: list[Node] = []
    for node in network.nodes:
        op = node.operator
        pad = pads.get(op.inputs[0]) if op.inputs else None
        merged = None
        if (
            pad is not None
            and len(readers[pad.outputs[0]]) == 1
            and (pad.outputs[0] not in network.outputs)
        ):
            merged = _merged(pad, op)
        if merged is not None and pad is not None:
            merged_pads.add(pad.outputs[0])
            node = Node(merged)
        nodes.append(node)
    remaining = tuple(n for n in nodes if n.operator.outputs[0] not in merged_pads)
    return replace(network, nodes=remaining)


def _merged(pad: Operator, op: Operator) -> Operator | None:
    if op.op_type != "Conv" or pad.text("mode", "constant") != "constant":
        return None
    amounts = (
        pad.constants.get(1, pad.ints("pads", ()))
        if pad.version >= 11
        else (pad.ints("pads", pad.ints("paddings", ())))
    )
    value = pad.constants.get(2, (pad.attributes.get("value", 0.0),))
    computed = len(pad.inputs) > 2 and pad.inputs[2] and 2 not in pad.constants
    some_axes = len(pad.inputs) > 3 and pad.inputs[3]
    if computed or some_axes or not amounts or any(v != 0 for v in value):
        return None
    if op.text("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
        return None
    rank = len(amounts) // 2
    begin, end = [int(v) for v in amounts[:rank]], [int(v) for v in amounts[rank:]]
    if any(begin[:2] + end[:2]) or min(begin + end) < 0:
        return None
    conv_pads = op.ints("pads", (0,) * (2 * (rank - 2)))
    total = tuple(a + b for a, b in zip(begin[2:] + end[2:], conv_pads, strict=True))
    attributes = {k: v for k, v in op.attributes.items() if k != "auto_pad"} | {"pads": total}
    return replace(op, attributes=attributes, inputs=(pad.inputs[0], *op.inputs[1:]))


def _without_identities(network: DeviceGraph) -> DeviceGraph:
    """Remove operators that return their input, except those whose result leaves the program."""
    same: dict[str, str] = {}
    nodes: list[Node] = []
    for node in network.nodes:
        op = _renamed(node.operator, same)
        if _is_identity(op, network.tensors) and op.outputs[0] not in network.outputs:
            same[op.outputs[0]] = op.inputs[0]
        else:
            nodes.append(Node(op))
    return replace(network, nodes=tuple(nodes))


def _renamed(op: Operator, same: Mapping[str, str]) -> Operator:
    return replace(op, inputs=tuple(same.get(n, n) for n in op.inputs))


def _is_identity(op: Operator, tensors: Mapping[str, Tensor]) -> bool:
    read = [n for n in op.inputs if n]
    if op.op_type in ("Identity", "Dropout"):
        return len([n for n in op.outputs if n in tensors]) == 1
    if op.op_type in ("Concat", "Sum", "Mean", "Max", "Min"):
        return len(read) == 1
    result = op.outputs[0]
    unchanged = bool(read and result) and tensors[read[0]].shape == tensors[result].shape
    if op.op_type in ("Resize", "Upsample"):
        return unchanged and _keeps_scale(op)
    if op.op_type in ("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Expand"):
        return unchanged
    if op.op_type == "Cast":
        return tensors[read[0]].dtype == tensors[op.outputs[0]].dtype
    if op.op_type == "Slice":
        cuts = (axis_slices(op, tensors) or {}).get(result)
        return unchanged and cuts is not None and all(cut.step == 1 for cut in cuts)
    if op.op_type == "Pad":
        return unchanged and not any(op.constants.get(1, op.ints("pads", ())))
    return False


def _keeps_scale(op: Operator) -> bool:
    """Whether a Resize to the same shape is an identity. With a scale of 1.1, five pixels stay five
    and are resampled."""
    cropped = op.text("coordinate_transformation_mode", "") == "tf_crop_and_resize"
    last = len(op.inputs) - 1
    by_size = op.op_type == "Resize" and last == 3 and bool(op.inputs[3])
    scales = op.attributes.get("scales") or op.constants.get(min(last, 2), ())
    return not cropped and (by_size or (bool(scales) and all(s == 1 for s in scales)))  # type: ignore[union-attr]


def fuse(network: DeviceGraph, kernels: Mapping[str, Kernel]) -> DeviceGraph:
    """Fuse element-wise operators with the operator whose result they read.

    ``kernels``: rows by operator type, which say what may be fused.

    A group starts with a head. Element-wise operators that read the group, and whose output has the
    shape of the head's output, are added in order. The group ends with the last member behind which
    a single value leaves it; later members are removed again. The group runs in the position of its
    last member: by then all its other inputs have been computed.
    """
    return _Fusion(network, kernels).run()


class _Fusion:
    def __init__(self, network: DeviceGraph, kernels: Mapping[str, Kernel]) -> None:
        self._network = network
        self._kernels = kernels
        self._readers = readers_of(network)
        self._makers = {name: n for n in network.nodes for name in n.outputs}
        self._order = {id(n): i for i, n in enumerate(network.nodes)}
        self._taken: set[int] = set()

    def run(self) -> DeviceGraph:
        groups: dict[int, Node] = {}
        for node in self._network.nodes:
            if id(node) in self._taken:
                continue
            epilogue = self._epilogue(node) if self._may_head(node) else []
            self._taken.update(id(n) for n in epilogue)
            last = epilogue[-1] if epilogue else node
            groups[id(last)] = Node(node.operator, tuple(n.operator for n in epilogue))
        nodes = tuple(groups[id(n)] for n in self._network.nodes if id(n) in groups)
        return replace(self._network, nodes=nodes)

    def _may_head(self, node: Node) -> bool:
        kernel = self._kernels.get(node.operator.op_type)
        return kernel is not None and kernel.takes_epilogue and len(node.outputs) == 1

    def _epilogue(self, head: Node) -> list[Node]:
        group = [head]
        best = 1
        while len(group) <= _LONGEST_EPILOGUE:
            following = self._following(group)
            if following is None or self._needs_result_of(following, group):
                break
            group.append(following)
            if self._escaping(group) <= {following.output}:
                best = len(group)
        return group[1:best]

    def _following(self, group: Sequence[Node]) -> Node | None:
        """The first element-wise node that reads the group and may join it."""
        inside = {id(n) for n in group}
        readers = (r for member in group for r in self._readers.get(member.output, ()))
        fitting = (
            r
            for r in readers
            if id(r) not in inside and id(r) not in self._taken and self._may_join(r, group[0])
        )
        return min(fitting, key=lambda r: self._order[id(r)], default=None)

    def _may_join(self, node: Node, head: Node) -> bool:
        tensors, kernel = self._network.tensors, self._kernels.get(node.operator.op_type)
        if kernel is None or kernel.joins == "nothing" or len(node.outputs) != 1:
            return False
        first, out = tensors[head.output], tensors[node.output]
        if out.shape != first.shape:
            return False
        image = len(first.shape) == 4 and first.dtype == "float32"
        return not image or (kernel.joins == "vectors" and out.dtype == "float32")

    def _needs_result_of(self, node: Node, group: Sequence[Node]) -> bool:
        """Whether ``node`` reads a value that other operators compute from values of the group."""
        inside = {id(n) for n in group}
        start = self._order[id(group[0])]
        stack = [node]
        visited: set[int] = set()
        while stack:
            current = stack.pop()
            for name in current.inputs:
                producer = self._makers.get(name)
                if producer is None or id(producer) in visited or self._order[id(producer)] < start:
                    continue
                if id(producer) in inside:
                    if current is not node:
                        return True
                    continue
                visited.add(id(producer))
                stack.append(producer)
        return False

    def _escaping(self, group: Sequence[Node]) -> set[str]:
        """Values of the group that are outputs or are read outside of the group."""
        inside = {id(n) for n in group}
        return {
            n.output
            for n in group
            if n.output in self._network.outputs
            or any(id(r) not in inside for r in self._readers.get(n.output, ()))
        }
