"""Aliases: several tensors of a network may share one piece of memory.

A Reshape in row-major layout changes nothing in memory, so its result uses the memory of its input.
The outputs of Split and Slice stay in the memory of their input, and the inputs of Concat are
computed in the memory of its output, which may be the beginning of a larger Concat's. All of these
are possible if the part is contiguous there and starts at a whole block of channels.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from coexec.engines.kernels.base import Context, Node, Value
from coexec.engines.kernels.border import BORDERS
from coexec.engines.kernels.network import DeviceGraph
from coexec.engines.kernels.slicing import AxisSlice, axis_slices
from coexec.engines.kernels.transpose import permutation

_VECTOR = 4
"""Scalars in a vector of a GPU. Kernels read row-major tensors by vectors, which are aligned."""
_VIEWS = frozenset(
    {"Dropout", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze", *BORDERS}
)


@dataclass(frozen=True, slots=True)
class Location:
    """Position of a tensor in memory: ``offset`` scalars behind the start of the root's memory."""

    root: str
    offset: int


class Aliases:
    """Location of each tensor. Roots are tensors too."""

    def __init__(self, network: DeviceGraph, context: Context) -> None:
        self._network = network
        self._context = context
        self._parent: dict[str, Location] = {}
        self._members: dict[str, list[str]] = {}
        self._external = {*network.inputs, *network.outputs, *network.constants}

        for name, view in context.views.items():
            self._parent[name] = Location(view.source, view.offset)
            self._members.setdefault(view.source, []).append(name)

    def of(self, name: str) -> Location:
        offset = 0
        while name in self._parent:
            step = self._parent[name]
            name, offset = step.root, offset + step.offset
        return Location(name, offset)

    def may_move(self, name: str, into: str, offset: int) -> bool:
        """Whether the memory of ``name``, with all tensors in it, may be a part of the memory of
        ``into``."""
        own, target = self.of(name), self.of(into)
        if own.root in self._external or own.offset or own.root == target.root:
            return False
        if target.root in self._network.constants:
            return False
        if self._context.arch.family != "cpu" and (target.offset + offset) % _VECTOR:
            return False
        there = self._context.value(target.root)
        if there.ctype != self._context.value(own.root).ctype:
            return False  # small tensors stay in 32 bits where large ones are stored in 16
        room = there.items
        needed = target.offset + offset + self.items(own.root)
        return target.root not in self._external or needed <= room

    def move(self, name: str, into: str, offset: int) -> bool:
        """Put the memory of ``name`` into the memory of ``into``, if `may_move` allows it. Returns
        whether it does."""
        if not self.may_move(name, into, offset):
            return False
        own, target = self.of(name), self.of(into)
        self._parent[own.root] = Location(target.root, target.offset + offset)
        members = [own.root, *self._members.pop(own.root, [])]
        self._members.setdefault(target.root, []).extend(members)
        return True

    def alone(self, name: str) -> bool:
        """Whether no other tensor shares the memory of ``name``."""
        return name not in self._parent and not self._members.get(name)

    def items(self, root: str) -> int:
        """Number of scalars in the memory of a root."""
        values = (self._context.value(n) for n in (root, *self._members.get(root, ())))
        return max(self.of(v.name).offset + v.items for v in values)


def alias(
    network: DeviceGraph, context: Context, skipped: Collection[str] = ()
) -> tuple[Aliases, set[str]]:
    """The aliases, and the outputs of nodes that need no kernel because of them, or are ``skipped``
    because of `views`.

    Also writes to ``context.in_place`` which inputs of a Concat are computed in place.
    """
    aliases = Aliases(network, context)
    done = set(skipped)
    for node in network.nodes:
        view = _parts if node.operator.op_type in ("Slice", "Split") else _view
        if not node.epilogue and node.output not in done and view(node, aliases, context):
            done.add(node.output)
    joined: list[Node] = []
    for node in reversed(network.nodes):  # a Concat before the Concats that it reads
        if node.operator.op_type == "Concat":
            begun = _begun(node, joined, aliases, context)
            context.in_place[node.output] = begun or _join(node, aliases, context)
            joined.append(node)
    return aliases, done


def _view(node: Node, aliases: Aliases, context: Context) -> bool:
    """Make the result of a node an alias of its input, if both are equal in memory. Returns whether
    they are."""
    op = node.operator
    if op.op_type not in _VIEWS or not _keeps_order(node, context):
        return False
    source, result = op.inputs[0], op.outputs[0]
    if not _same_sequence(context.value(source), context.value(result)):
        return False
    return aliases.move(result, source, 0) or aliases.move(source, result, 0)


def _keeps_order(node: Node, context: Context) -> bool:
    """Whether elements keep their order in memory. A Transpose keeps it if it only moves axes of
    size 1, or makes the order of axes that is there already."""
    if node.operator.op_type != "Transpose":
        return True
    source, result = (context.value(n) for n in (node.operator.inputs[0], node.output))
    axes = permutation(node.operator, len(source.shape))
    there = [axis for axis in _order(source) if source.shape[axis] > 1]
    return there == [axes[axis] for axis in _order(result) if result.shape[axis] > 1]


def _order(value: Value) -> Sequence[int]:
    """The axes in the order of memory, the outermost first."""
    return (0, 2, 3, 1) if value.last else range(len(value.shape))


def _parts(node: Node, aliases: Aliases, context: Context) -> bool:
    """Make the outputs of a Split or Slice aliases of parts of its input, if that is possible for
    all of them."""
    op = node.operator
    whole = context.value(op.inputs[0])
    offsets: dict[str, int] = {}
    for name, cuts in (axis_slices(op, context.tensors) or {}).items():
        if name in context.views:
            continue
        offset = _offset(context.value(name), whole, cuts)
        if offset is None or not aliases.may_move(name, whole.name, offset):
            return False
        offsets[name] = offset
    return all(aliases.move(name, whole.name, offset) for name, offset in offsets.items())


def _offset(part: Value, whole: Value, cuts: Iterable[AxisSlice]) -> int | None:
    """Start of a part in a tensor, in scalars; None if the part is not contiguous."""
    changed = [w for w in cuts if w.step != 1 or part.shape[w.axis] != whole.shape[w.axis]]
    if not changed:
        return 0 if part.block == whole.block else None
    axis, start, step = changed[0]
    if len(changed) > 1 or step != 1 or math.prod(whole.shape[:axis]) != 1:
        return None
    if part.block != whole.block or (whole.block and (axis != 1 or start % whole.block)):
        return None
    return start * math.prod(whole.shape[axis + 1 :])


def _same_sequence(a: Value, b: Value) -> bool:
    if a.dtype != b.dtype:
        return False
    alike = a.block == b.block and not (a.last or b.last)
    if a.block and alike and a.shape[0] == b.shape[0] and a.slices == b.slices:
        return a.items == b.items
    return _dense(a) and _dense(b)


def _dense(value: Value) -> bool:
    """Whether scalars are stored in the order of ONNX; padding is allowed at the end only."""
    if not value.block or value.last:
        return True
    n, c, h, w = value.shape
    return h * w == 1 and (n == 1 or c % value.block == 0)


def _begun(
    node: Node, joined: Iterable[Node], aliases: Aliases, context: Context
) -> frozenset[int]:
    """All inputs of a Concat, if it is the beginning of a later one, in whose memory they are
    computed; else none. Dense networks join all results so far in front of each layer."""
    op = node.operator
    inputs = range(len(op.inputs))
    for later in joined:
        whole = later.operator
        if (
            whole.inputs[: len(inputs)] == op.inputs
            and whole.int("axis", 1) == op.int("axis", 1)
            and context.in_place[later.output].issuperset(inputs)
            and aliases.alone(node.output)  # a memory that moves takes all tensors in it along
            and aliases.move(node.output, later.output, 0)
        ):
            return frozenset(inputs)
    return frozenset()


def _join(node: Node, aliases: Aliases, context: Context) -> frozenset[int]:
    """The inputs of a Concat that are computed in place, by position.

    An input in blocks may end inside of a block. The next input is then not in place: the kernel of
    the Concat copies it.
    """
    out = context.value(node.output)
    axis = node.operator.int("axis", 1) % len(out.shape)
    in_place: set[int] = set()
    start = 0
    names = node.operator.inputs
    for position, name in enumerate(names):
        value = context.value(name)
        offset = _offset(value, out, [AxisSlice(axis, start)])
        alone = aliases.items(aliases.of(name).root) == value.items and names.count(name) == 1
        alone = alone and name not in context.views
        if offset is not None and alone and aliases.move(name, node.output, offset):
            in_place.add(position)
        start += value.shape[axis]
    return frozenset(in_place)
