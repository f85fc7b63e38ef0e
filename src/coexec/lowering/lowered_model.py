"""A whole model in the operators of one engine.

It stays in protobuf messages, and weights stay mapped from their file.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

import onnx
import onnx_ir as ir

from coexec.arrays import Array
from coexec.graph.graph import Tensor
from coexec.lowering.dialect import STANDARD, Dialect
from coexec.lowering.layout import NHWC, PADDED, PLAIN, WIDE, Layout
from coexec.model.reference_session import is_plain
from coexec.model.tensors import tensor_of
from coexec.model.types import type_text

BORDER = "border:"
"""Prefix of the names of the outputs that a device adds to a model while it lowers it."""

LAYOUT = "layout:"
"""Prefix of the names of nodes that a device adds and that only change the layout of a tensor."""


@dataclass(frozen=True, eq=False)
class LoweredModel:
    """A whole model in an engine's own operators."""

    header: onnx.ModelProto
    """IR version and opset imports; no graph."""
    nodes: Sequence[onnx.NodeProto]
    weights: Mapping[str, ir.TensorProtocol]
    tensors: Mapping[str, Tensor]
    """Type and shape of every value."""
    tensor_of: Mapping[str, str]
    """The tensor of the model that a value holds in some layout, for values that may cross a
    border."""
    producer: Mapping[str, int] = field(default_factory=dict)
    """Index of the node that computes a value."""
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    """`NHWC` or `WIDE`, for values in these layouts. Blocks and padding follow from the nodes."""
    annotated: bool = False
    """Whether modules declare the types of inner values; engines without this infer them."""
    dialect: Dialect = STANDARD

    def value_of(self, name: str) -> str:
        """The value in which the engine holds the tensor ``name``: in blocks if it has one."""
        return self._values.get(name, name)

    @cached_property
    def _values(self) -> Mapping[str, str]:
        def rank(value: str) -> tuple[bool, bool]:
            layout = self.layout_of(value)
            return layout.is_blocked, layout != PLAIN

        best: dict[str, str] = {}
        for value, name in self.tensor_of.items():
            if name not in best or rank(value) > rank(best[name]):
                best[name] = value
        return best

    def layout_of(self, value: str) -> Layout:
        """The layout of a value, as the nodes read and write it."""
        if value in self.blocked:
            tensor = self.tensors.get(BORDER + self.tensor_of.get(value, value))
            return self.dialect.blocked_layout("float32" if tensor is None else tensor.dtype)
        return PADDED if value in self._padded else self.layouts.get(value, PLAIN)

    def inner_layout(self, value: str, tensor: Tensor) -> Layout:
        """The engine's layout of ``tensor``, which it holds as ``value``."""
        layout = self.layout_of(value)
        return self.dialect.inner_layout(tensor) if layout == PLAIN else layout

    def tensor_layout(self, tensor: Tensor) -> Layout:
        """The layout in which the engine holds ``tensor``."""
        return self.inner_layout(self.value_of(tensor.name), tensor)

    def has_no_padding(self, tensor: Tensor) -> bool:
        """Whether the engine holds the channels of ``tensor`` and none that fill blocks or gaps."""
        return self.padded_channels(tensor) == tensor.shape[1]

    @cached_property
    def read_unblocked(self) -> frozenset[str]:
        """The tensors that the engine holds in blocks, but of which an operator reads the model's
        layout."""
        names = set[str]()
        for node in self.nodes:
            if not _only_changes_layout(node, self.dialect):
                names.update(
                    self.tensor_of[v]
                    for v in reads(node)
                    if v in self.tensor_of and not self.layout_of(v).is_blocked
                )
        return frozenset(n for n in names if self.layout_of(self.value_of(n)).is_blocked)

    def padded_channels(self, tensor: Tensor) -> int:
        """Number of channels of ``tensor`` in the engine, with those that fill blocks and gaps."""
        value = self.value_of(tensor.name)
        if self.layout_of(value).padded:
            return self.tensors[value].shape[1]
        block = self.dialect.block or 1
        return -(-tensor.shape[1] // block) * block

    @cached_property
    def blocked(self) -> frozenset[str]:
        """The values in the dialect's blocked layout."""
        dialect, values = self.dialect, set[str]()
        if not dialect.block:
            return frozenset()
        for node in self.nodes:
            if (node.domain, node.op_type) == dialect.leave:
                continue
            if node.domain == dialect.domain or not values.isdisjoint(node.input):
                values.update(name for name in node.output if name)
        return frozenset(values)

    @cached_property
    def _padded(self) -> frozenset[str]:
        """The values outside of blocks that have more channels than the tensors that they hold."""
        return frozenset(
            value
            for value, name in self.tensor_of.items()
            if value not in self.blocked
            and value not in self.layouts
            and _has_more(self.tensors.get(value), self.tensors.get(BORDER + name))
        )

    @cached_property
    def channel_positions(self) -> Mapping[str, tuple[int, ...]]:
        """Positions of the channels in the blocks, for tensors with gaps between channels."""
        positions: dict[str, tuple[int, ...]] = {}
        for node in self.nodes:
            if node.name.startswith(LAYOUT) and node.op_type == "Gather":
                channels = tuple(self.weights[node.input[1]].numpy().tolist())
                if channels != tuple(range(len(channels))):
                    positions[node.name.removeprefix(LAYOUT)] = channels
        return positions


def without_lowering(model: ir.Model, borders: Iterable[str]) -> LoweredModel:
    """The model in its own operators, for engines that do not rewrite it."""
    nodes = [ir.serde.serialize_node(node) for node in model.graph]
    opsets = model.opset_imports.items()
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets]
    header = onnx.ModelProto(ir_version=model.ir_version, opset_import=imports)
    weights = {
        name: value.const_value
        for name, value in model.graph.initializers.items()
        if value.const_value is not None
    }
    values = [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]
    tensors = {v.name: tensor_of(v) for v in values if v.name}
    header.functions.extend(ir.serde.serialize_function(f) for f in model.functions.values())
    return LoweredModel(
        header, nodes, weights, tensors, {n: n for n in borders}, _producers(nodes), annotated=True
    )


def read_lowered(
    proto: onnx.ModelProto,
    weights: Mapping[str, ir.TensorProtocol],
    borders: Iterable[str],
    dialect: Dialect,
) -> LoweredModel:
    """The lowered model in ``proto``, as `OpenEngine.lower` describes it.

    Raises:
        ValueError: a border is missing.
    """
    infos = (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)
    tensors = {info.name: tensor_of_info(info) for info in infos}
    nodes = list(_transposes_apart(proto.graph.node, tensors, dialect))
    producer = _producers(nodes)
    tensor_of = {name: name for name in borders if name in producer}
    layouts: dict[str, Layout] = {}
    for name in borders:
        if BORDER + name not in producer:
            raise ValueError(f"it lacks {BORDER + name!r}")
        for value, layout in _carrying(BORDER + name, nodes, producer, dialect):
            if tensor_of.setdefault(value, name) != name:
                break
            if layout == WIDE and _has_more(tensors.get(value), tensors[BORDER + name]):
                del tensor_of[value]  # wide and padded: only for the model's own operators
                break
            if layout != PLAIN:
                layouts[value] = layout
            # ONNX Runtime may not give the shape of a value that differs by an Identity alone.
            elif value not in tensors or tensors[value].opaque:
                tensors[value] = replace(tensors[BORDER + name], name=value)
    for node in nodes:  # other layouts of the same tensor
        if _only_changes_layout(node, dialect) and node.input[0] in tensor_of:
            tensor_of.setdefault(node.output[0], tensor_of[node.input[0]])
    header = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    return LoweredModel(
        header, nodes, weights, tensors, tensor_of, producer, layouts, dialect=dialect
    )


def _transposes_apart(
    nodes: Iterable[onnx.NodeProto], tensors: dict[str, Tensor], dialect: Dialect
) -> Iterator[onnx.NodeProto]:
    """The nodes, with the Transposes that an operator which enters or leaves blocks has absorbed
    as nodes of their own: they belong to the model, and what changes a layout does not."""
    for node in nodes:
        kind = (node.domain, node.op_type)
        last = [a for a in node.attribute if a.name == "channels_last" and a.i]
        if kind not in (dialect.enter, dialect.leave) or not last:
            yield node
            continue
        node.attribute.remove(last[0])
        leaves = kind == dialect.leave
        names = node.output if leaves else node.input
        rank = len(tensors[names[0]].shape)
        to_last, to_first = [0, *range(2, rank), 1], [0, rank - 1, *range(1, rank - 1)]
        outer, plain = names[0], f"{node.output[0]} with channels first"
        shape = tuple(tensors[outer].shape[axis] for axis in to_first)
        tensors[plain] = replace(tensors[outer], name=plain, shape=shape)
        names[0] = plain
        if leaves:
            yield node
            yield onnx.helper.make_node("Transpose", [plain], [outer], perm=to_last)
        else:
            yield onnx.helper.make_node("Transpose", [outer], [plain], perm=to_first)
            yield node


def _has_more(value: Tensor | None, tensor: Tensor | None) -> bool:
    """Whether a value has channels that the tensor it stands for does not have."""
    if value is None or tensor is None or len(value.shape) != len(tensor.shape):
        return False
    return len(value.shape) > 1 and value.shape[1] > tensor.shape[1]


def _carrying(
    value: str, nodes: Sequence[onnx.NodeProto], producer: Mapping[str, int], dialect: Dialect
) -> Iterable[tuple[str, Layout]]:
    """The values from which ``value`` is made by changes of layout alone, from the last to the
    first, each with its layout: `NHWC`, `WIDE` or `PLAIN`."""
    layout = PLAIN
    while True:
        node = nodes[producer[value]]
        if not _only_changes_layout(node, dialect):
            if layout != PLAIN:
                return
            if _is_nhwc(node, nodes, producer):
                layout = NHWC
            elif _narrows(node, dialect):
                layout = WIDE
            else:
                return
        value = node.input[0]
        if value not in producer:  # an input of the model is not the result of a task
            return
        yield value, layout


def _is_nhwc(
    node: onnx.NodeProto, nodes: Sequence[onnx.NodeProto], producer: Mapping[str, int]
) -> bool:
    """Whether it is the Transpose behind a quantised operator that ONNX Runtime runs in NHWC.

    Other Transposes belong to the model: a reader of such a Transpose's input would depend on a
    task that the plan may not list.
    """
    if node.op_type != "Transpose" or node.input[0] not in producer:
        return False
    before = nodes[producer[node.input[0]]]
    return before.op_type.startswith("QLinear") or before.domain == "com.ms.internal.nhwc"


def _narrows(node: onnx.NodeProto, dialect: Dialect) -> bool:
    """Whether it is the Cast that makes a tensor from the engine's float32 version of it."""
    if node.op_type != "Cast" or not dialect.widened or not node.name.startswith(dialect.widened):
        return False
    return any(a.name == "to" and a.i != onnx.TensorProto.FLOAT for a in node.attribute)


def _only_changes_layout(node: onnx.NodeProto, dialect: Dialect) -> bool:
    return node.name.startswith(LAYOUT) or (node.domain, node.op_type) in dialect.layout_ops


def _producers(nodes: Sequence[onnx.NodeProto]) -> dict[str, int]:
    return {name: i for i, node in enumerate(nodes) for name in node.output if name}


def tensor_of_info(info: onnx.ValueInfoProto) -> Tensor:
    kind = info.type.tensor_type
    static = kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim)
    shape = tuple(d.dim_value for d in kind.shape.dim) if static else ()
    dtype = ir.DataType(kind.elem_type)
    if not static or not is_plain(dtype):
        return Tensor(info.name, shape, type_text(info.type), opaque=True)
    return Tensor(info.name, shape, dtype.numpy().name)


def reads(node: onnx.NodeProto) -> list[str]:
    """The inputs of a node, and the outer values that its bodies read."""
    return [*node.input, *(name for name, _ in captured(node))]


def captured(
    node: onnx.NodeProto, inside: frozenset[str] = frozenset()
) -> Iterable[tuple[str, Callable[[str], None]]]:
    """The outer values that the bodies of a node read, each with a function that renames it there.

    Args:
        inside: values of surrounding bodies, which are not outer ones.
    """
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            own = inside.union(
                (t.name for t in body.initializer),
                (v.name for v in body.input),
                (name for inner in body.node for name in inner.output),
            )
            for inner in body.node:
                for position, name in enumerate(inner.input):
                    if name and name not in own:
                        yield name, partial(inner.input.__setitem__, position)
                yield from captured(inner, own)
            for output in body.output:
                if output.name not in own:
                    yield output.name, partial(setattr, output, "name")


def kind_of(node: onnx.NodeProto) -> str:
    return f"{node.domain.rpartition('.')[2]}.{node.op_type}" if node.domain else node.op_type


def placeholder(name: str, dtype: ir.DataType, array: Array) -> onnx.TensorProto:
    """A tensor that replaces a weight whose values are kept beside the model."""
    proto = onnx.TensorProto(name=name, data_type=int(dtype), dims=array.shape)
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "weights"), ("offset", "0"), ("length", str(array.nbytes))):
        proto.external_data.add(key=key, value=value)
    return proto
