"""Element-wise operators on GPUs move ahead of the Transposes and Reshapes behind a product.

Behind a product an element-wise operator costs no kernel (`epilogue`), but what moves elements
often stands between: the result of a head is transposed before a residual is added, a mask has an
axis more than the scores of attention. The operator then comes first, and its other operands are
moved the opposite way. These movements are views for the product (`views`) or aliases (`aliasing`),
so they cost no kernel.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from coexec.arrays import Array
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import Kernel, Node, usual_block
from coexec.engines.kernels.expressions import VECTOR_SAFE
from coexec.engines.kernels.layouts import (
    RESHAPES,
    moves_channels,
    row_major_tensors,
    tensors_for_last,
)
from coexec.engines.kernels.network import DeviceGraph, readers_of
from coexec.engines.kernels.transpose import permutation
from coexec.graph.graph import Operator, Tensor

_MOVED = " moved "


def original_name(name: str) -> str:
    """The name in the model of a tensor that may have been moved."""
    return name.partition(_MOVED)[0]


def move_ahead(
    network: DeviceGraph, arch: Architecture, kernels: Mapping[str, Kernel]
) -> DeviceGraph:
    """An equivalent network. No node has an epilogue yet."""
    return _Moving(network, arch, kernels).run()


class _Moving:
    def __init__(
        self, network: DeviceGraph, arch: Architecture, kernels: Mapping[str, Kernel]
    ) -> None:
        self._network = network
        self._tensors = dict(network.tensors)
        self._constants = dict(network.constants)
        self._readers = readers_of(network)
        row_major = row_major_tensors(network, arch)
        self._blocked = {
            name
            for name, tensor in network.tensors.items()
            if name not in row_major and name not in network.constants and usual_block(tensor, arch)
        }
        blocks = dict.fromkeys(row_major, 0)
        self._for_last = tensors_for_last(network, arch, blocks) if arch.family == "nvidia" else {}
        self._makers: dict[str, Operator] = {}
        """By result: the operators of the new network."""
        self._heads = {
            node.output
            for node in network.nodes
            if (kernel := kernels.get(node.operator.op_type)) and kernel.takes_views == "product"
        }
        """Results of products with what can be fused to them."""
        self._same: dict[str, str] = {}
        """By result of a Transpose that takes another one back: the input of the other one."""

    def run(self) -> DeviceGraph:
        for node in self._network.nodes:
            op = node.operator
            op = replace(op, inputs=tuple(self._same.get(name, name) for name in op.inputs))
            if self._takes_back(op):
                continue
            may_move = op.op_type in VECTOR_SAFE and len(node.outputs) == 1
            if not (may_move and self._moved(op)):
                self._add(op)
                if may_move and any(self._is_end(name, op) for name in op.inputs):
                    self._heads.add(op.outputs[0])
        unique = {id(op): op for op in self._makers.values()}
        return replace(
            self._network,
            nodes=tuple(Node(op) for op in unique.values()),
            tensors=self._tensors,
            constants=self._constants,
        )

    def _add(self, op: Operator) -> None:
        self._makers.update(dict.fromkeys(filter(None, op.outputs), op))

    def _moved(self, op: Operator) -> bool:
        """Add an element-wise operator ahead of what moves the elements that it reads, if it can
        be. Returns whether it was."""
        for number, name in enumerate(op.inputs):
            steps = self._steps(name)
            others = [n for n in op.inputs if n != name]
            once = len(others) == len(op.inputs) - 1
            if not (steps and once and self._is_like_result(name, op)):
                continue
            if all(self._can_be_taken_back(other, op, steps) for other in others):
                inputs = [self._taken_back(other, steps) for other in others]
                inputs.insert(number, steps[-1].inputs[0])
                self._put(op, inputs, steps)
                return True
        return False

    def _takes_back(self, op: Operator) -> bool:
        """Whether an operator is a Transpose that takes another one back, so that it is not needed.
        The other one is removed, too, if nothing else reads its result."""
        name = op.inputs[0] if op.op_type == "Transpose" else ""
        before = self._makers.get(name)
        if (
            before is None
            or before.op_type != "Transpose"
            or op.outputs[0] in self._network.outputs
        ):
            return False
        first, second = (permutation(o, len(self._tensors[name].shape)) for o in (before, op))
        if any(first[axis] != number for number, axis in enumerate(second)):
            return False
        self._same[op.outputs[0]] = before.inputs[0]
        if self._is_read_once(name):
            del self._makers[name]
        return True

    def _is_end(self, name: str, op: Operator) -> bool:
        """Whether ``op`` can be fused to the product behind which ``name`` is computed."""
        once = name in self._heads and self._is_read_once(name)
        return once and self._is_like_result(name, op)

    def _is_like_result(self, name: str, op: Operator) -> bool:
        """Whether a tensor has the shape and the type of an operator's result."""
        return self._tensors[name] == replace(self._tensors[op.outputs[0]], name=name)

    def _steps(self, name: str) -> list[Operator]:
        """What moves the elements of the result of a product that become ``name``, the last
        operator first; none if there is no such product, or if others read a tensor between."""
        steps: list[Operator] = []
        while self._is_read_once(name) and name not in self._heads:
            op = self._makers.get(name)
            if op is None or op.op_type not in ("Transpose", *RESHAPES):
                return []
            steps.append(op)
            name = op.inputs[0]
        return steps if self._is_read_once(name) else []

    def _is_read_once(self, name: str) -> bool:
        if name in self._network.outputs or name in self._same.values():
            return False
        # What was added here is read by what was added with it.
        return len(self._readers.get(name, ("",))) == 1

    def _can_be_taken_back(self, name: str, op: Operator, steps: Sequence[Operator]) -> bool:
        """Whether an operand can be had in front of ``steps`` without a kernel."""
        array, result = self._constants.get(name), op.outputs[0]
        if array is not None:
            return _array_taken_back(array, steps, self._tensors) is not None
        if not name or not self._is_like_result(name, op):
            return not name
        if self._blocked.isdisjoint((name, result)):
            return True
        both = name in self._for_last and result in self._for_last
        return both and len(steps) == 1 and moves_channels(steps[0])

    def _taken_back(self, name: str, steps: Sequence[Operator]) -> str:
        """The name of an operand as an element-wise operator needs it in front of ``steps``."""
        array = self._constants.get(name)
        if array is not None and array.size == 1:
            return name
        if array is not None:
            back = _array_taken_back(array, steps, self._tensors)
            assert back is not None
            new = self._new(name, back.shape, back.dtype.name, constant=True)
            self._constants[new] = back
            return new
        for step in steps if name else ():
            name = self._opposite(step, name, self._tensors[step.inputs[0]].shape)
        return name

    def _opposite(self, step: Operator, name: str, shape: Sequence[int]) -> str:
        """Move elements as they were in front of ``step``."""
        new = self._new(name, shape, self._tensors[name].dtype)
        if step.op_type == "Transpose":
            order = tuple(int(a) for a in np.argsort(permutation(step, len(shape))))
            op = replace(step, inputs=(name,), outputs=(new,), attributes={"perm": order})
        else:
            op = Operator("Reshape", (name,), (new,), {}, {})
        self._add(op)
        return new

    def _put(self, op: Operator, inputs: Sequence[str], steps: Sequence[Operator]) -> None:
        """Add ``op`` and what moves the elements of its result behind it."""
        for step in steps:
            del self._makers[step.outputs[0]]
        start = self._tensors[steps[-1].inputs[0]]
        name = self._new(op.outputs[0], start.shape, start.dtype)
        self._heads.add(name)
        self._add(replace(op, inputs=tuple(inputs), outputs=(name,)))
        for step in reversed(steps):
            result = step.outputs[0] if step is not steps[0] else op.outputs[0]
            self._add(replace(step, inputs=(name, *step.inputs[1:]), outputs=(result,)))
            name = result

    def _new(self, name: str, shape: Sequence[int], dtype: str, constant: bool = False) -> str:
        new = f"{original_name(name)}{_MOVED}{len(self._tensors)}"
        self._tensors[new] = Tensor(new, tuple(shape), dtype, constant)
        return new


def _array_taken_back(
    array: Array, steps: Sequence[Operator], tensors: Mapping[str, Tensor]
) -> Array | None:
    """A constant that is broadcast to the result of ``steps``, as one that is broadcast to what
    they start with; None if it would have to be repeated."""
    if array.size == 1:
        return array.reshape(())
    array = np.broadcast_to(array, tensors[steps[0].outputs[0]].shape)
    for step in steps:
        if step.op_type == "Transpose":
            array = array.transpose(np.argsort(permutation(step, array.ndim)))
        else:
            try:
                array = array.reshape(tensors[step.inputs[0]].shape, copy=False)
            except ValueError:
                return None
    once = (slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)
    return np.ascontiguousarray(array[tuple(once)])
