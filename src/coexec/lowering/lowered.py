"""A whole model in the operators of one engine.

It stays in protobuf messages, and weights stay mapped from their file.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import onnx
import onnx_ir as ir

from coexec.arrays import Array, numpy_type
from coexec.graph.graph import Tensor
from coexec.lowering.dialect import STANDARD, Dialect
from coexec.lowering.layout import NHWC, PADDED, PLAIN, WIDE, Layout
from coexec.model.reference_session import is_plain
from coexec.model.tensors import tensor_of
from coexec.model.types import type_proto, type_text

__all__ = [
    "BORDER",
    "LAYOUT",
    "Lowered",
    "as_it_is",
    "declared",
    "kind_of",
    "placeholder",
    "read_lowered",
    "reads",
]

BORDER = "border:"
"""Prefix of the names of the outputs that a device adds to a model while it lowers it."""

LAYOUT = "layout:"
"""Prefix of the names of nodes that a device adds and that only change the layout of a tensor."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """A whole model in an engine's own operators."""

    header: onnx.ModelProto
    """IR version and opset imports; no graph."""
    nodes: Sequence[onnx.NodeProto]
    weights: Mapping[str, ir.TensorProtocol]
    tensors: Mapping[str, Tensor]
    """Type and shape of every value."""
    stands_for: Mapping[str, str]
    """For each value that may cross a border: the part of a tensor that it holds, in some
    layout."""
    maker: Mapping[str, int] = field(default_factory=dict)
    """For each value: the index of the node that computes it."""
    otherwise: Mapping[str, Layout] = field(default_factory=dict)
    """Layouts of the values that hold a tensor neither in the model's layout nor in blocks: `NHWC`
    or `WIDE`."""
    annotated: bool = False
    """Whether modules declare the types of inner values; engines without this infer them."""
    dialect: Dialect = STANDARD

    def native(self, name: str) -> str:
        """The value in which the engine holds the tensor ``name``."""
        return self._natives.get(name, name)

    @cached_property
    def _natives(self) -> Mapping[str, str]:
        natives: dict[str, str] = {}
        for value, name in self.stands_for.items():
            if name not in natives or self._rank(value) > self._rank(natives[name]):
                natives[name] = value
        return natives

    def _rank(self, value: str) -> tuple[bool, bool]:
        layout = self.layout(value)
        return layout.is_blocked, layout != PLAIN

    def layout(self, value: str) -> Layout:
        """The layout of a value."""
        if value in self.blocked:
            tensor = self.tensors.get(BORDER + self.stands_for.get(value, value))
            return self.dialect.blocked_layout("float32" if tensor is None else tensor.dtype)
        return PADDED if value in self._filled else self.otherwise.get(value, PLAIN)

    def held(self, value: str, tensor: Tensor) -> Layout:
        """The engine's layout of ``tensor``, which it holds as ``value``."""
        layout = self.layout(value)
        return self.dialect.inner_layout(tensor) if layout == PLAIN else layout

    def native_layout(self, tensor: Tensor) -> Layout:
        """The layout in which the engine holds ``tensor``."""
        return self.held(self.native(tensor.name), tensor)

    def has_exactly(self, tensor: Tensor) -> bool:
        """Whether the engine holds the channels of ``tensor`` and none that fill blocks or gaps."""
        return self.filled(tensor.name, tensor.shape[1]) == tensor.shape[1]

    @cached_property
    def read_outside(self) -> frozenset[str]:
        """The tensors that the engine holds in blocks, but of which an operator reads the model's
        layout."""
        names = set[str]()
        for node in self.nodes:
            if not _is_layout(node, self.dialect):
                names.update(
                    self.stands_for[v]
                    for v in reads(node)
                    if v in self.stands_for and not self.layout(v).is_blocked
                )
        return frozenset(n for n in names if self.layout(self.native(n)).is_blocked)

    def filled(self, name: str, channels: int) -> int:
        """Number of channels of the whole tensor ``name``, with those that fill the last block."""
        native = self.native(name)
        if self.layout(native).padded:
            return self.tensors[native].shape[1]
        block = self.dialect.block
        return -(-channels // block) * block if block else channels

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
    def _filled(self) -> frozenset[str]:
        """The values outside of blocks that have more channels than the tensors that they hold."""
        return frozenset(
            value
            for value, name in self.stands_for.items()
            if value not in self.blocked
            and value not in self.otherwise
            and _has_more(self.tensors.get(value), self.tensors.get(BORDER + name))
        )

    @cached_property
    def places(self) -> Mapping[str, tuple[int, ...]]:
        """Positions of the channels in the blocks, for tensors with gaps between channels."""
        positions: dict[str, tuple[int, ...]] = {}
        for node in self.nodes:
            if node.name.startswith(LAYOUT) and node.op_type == "Gather":
                places = tuple(self.weights[node.input[1]].numpy().tolist())
                if places != tuple(range(len(places))):
                    positions[node.name.removeprefix(LAYOUT)] = places
        return positions


def as_it_is(model: ir.Model, borders: Iterable[str]) -> Lowered:
    """The lowered form for engines that run standard ONNX operators without rewriting the model."""
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
    return Lowered(
        header, nodes, weights, tensors, {n: n for n in borders}, _makers(nodes), annotated=True
    )


def read_lowered(
    proto: onnx.ModelProto,
    weights: Mapping[str, ir.TensorProtocol],
    borders: Iterable[str],
    dialect: Dialect,
) -> Lowered:
    """The lowered model in ``proto``, as `OpenEngine.lower` describes it.

    Raises:
        ValueError: a border is missing.
    """
    nodes = list(proto.graph.node)
    maker = _makers(nodes)
    infos = (*proto.graph.input, *proto.graph.output, *proto.graph.value_info)
    tensors = {info.name: _tensor(info) for info in infos}
    stands_for = {name: name for name in borders if name in maker}
    otherwise: dict[str, Layout] = {}
    for name in borders:
        if BORDER + name not in maker:
            raise ValueError(f"it lacks {BORDER + name!r}")
        for value, layout in _carrying(BORDER + name, nodes, maker, dialect):
            if stands_for.setdefault(value, name) != name:
                break
            if layout == WIDE and _has_more(tensors.get(value), tensors[BORDER + name]):
                del stands_for[value]  # wide and filled: only for the model's own operators
                break
            if layout != PLAIN:
                otherwise[value] = layout
            # ONNX Runtime may not give the shape of a value that differs by an Identity alone.
            elif value not in tensors or tensors[value].opaque:
                tensors[value] = replace(tensors[BORDER + name], name=value)
    for node in nodes:  # other layouts of the same tensor
        if _is_layout(node, dialect) and node.input[0] in stands_for:
            stands_for.setdefault(node.output[0], stands_for[node.input[0]])
    header = onnx.ModelProto(ir_version=proto.ir_version, opset_import=proto.opset_import)
    return Lowered(header, nodes, weights, tensors, stands_for, maker, otherwise, dialect=dialect)


def _has_more(value: Tensor | None, tensor: Tensor | None) -> bool:
    """Whether a value has channels that the tensor it stands for does not have."""
    if value is None or tensor is None or len(value.shape) != len(tensor.shape):
        return False
    return len(value.shape) > 1 and value.shape[1] > tensor.shape[1]


def _carrying(
    value: str, nodes: Sequence[onnx.NodeProto], maker: Mapping[str, int], dialect: Dialect
) -> Iterable[tuple[str, Layout]]:
    """The values from which ``value`` is made by changes of layout alone, from the last to the
    first, each with its layout: `NHWC`, `WIDE` or `PLAIN`."""
    layout = PLAIN
    while True:
        node = nodes[maker[value]]
        if not _is_layout(node, dialect):
            if layout != PLAIN:
                return
            if _is_nhwc(node, nodes, maker):
                layout = NHWC
            elif _narrows(node, dialect):
                layout = WIDE
            else:
                return
        value = node.input[0]
        if value not in maker:  # an input of the model is not the result of a task
            return
        yield value, layout


def _is_nhwc(
    node: onnx.NodeProto, nodes: Sequence[onnx.NodeProto], maker: Mapping[str, int]
) -> bool:
    """Whether it is the Transpose behind a quantised operator that ONNX Runtime runs in NHWC.

    Other Transposes belong to the model: a reader of such a Transpose's input would depend on a
    task that the plan may not list.
    """
    if node.op_type != "Transpose" or node.input[0] not in maker:
        return False
    before = nodes[maker[node.input[0]]]
    return before.op_type.startswith("QLinear") or before.domain == "com.ms.internal.nhwc"


def _narrows(node: onnx.NodeProto, dialect: Dialect) -> bool:
    """Whether it is the Cast that makes a tensor from the engine's float32 version of it."""
    if node.op_type != "Cast" or not dialect.widened or not node.name.startswith(dialect.widened):
        return False
    return any(a.name == "to" and a.i != onnx.TensorProto.FLOAT for a in node.attribute)


def _is_layout(node: onnx.NodeProto, dialect: Dialect) -> bool:
    return node.name.startswith(LAYOUT) or (node.domain, node.op_type) in dialect.layout_ops


def _makers(nodes: Sequence[onnx.NodeProto]) -> dict[str, int]:
    return {name: i for i, node in enumerate(nodes) for name in node.output if name}


def _tensor(info: onnx.ValueInfoProto) -> Tensor:
    kind = info.type.tensor_type
    static = kind.HasField("shape") and all(d.HasField("dim_value") for d in kind.shape.dim)
    shape = tuple(d.dim_value for d in kind.shape.dim) if static else ()
    dtype = ir.DataType(kind.elem_type)
    if not static or not is_plain(dtype):
        return Tensor(info.name, shape, type_text(info.type), opaque=True)
    return Tensor(info.name, shape, dtype.numpy().name)


def reads(node: onnx.NodeProto) -> list[str]:
    """The inputs of a node, and the outer values that its subgraphs read."""
    names = list(node.input)
    for attribute in node.attribute:
        for body in (attribute.g, *attribute.graphs):
            own = {t.name for t in body.initializer} | {v.name for v in body.input}
            own.update(name for inner in body.node for name in inner.output)
            outer = [name for inner in body.node for name in reads(inner)]
            outer += [v.name for v in body.output]
            names += [name for name in outer if name not in own]
    return names


def kind_of(node: onnx.NodeProto) -> str:
    return f"{node.domain.rpartition('.')[2]}.{node.op_type}" if node.domain else node.op_type


def declared(tensor: Tensor) -> onnx.ValueInfoProto:
    """The declaration of a value in a model; for an opaque value, its type without a shape."""
    if tensor.opaque:
        return onnx.ValueInfoProto(name=tensor.name, type=type_proto(tensor.dtype))
    kind = ir.DataType.from_numpy(numpy_type(tensor.dtype))
    return onnx.helper.make_tensor_value_info(tensor.name, int(kind), tensor.shape)


def placeholder(name: str, dtype: ir.DataType, array: Array) -> onnx.TensorProto:
    """A tensor that replaces a weight whose values are kept beside the model."""
    proto = onnx.TensorProto(name=name, data_type=int(dtype), dims=array.shape)
    proto.data_location = onnx.TensorProto.EXTERNAL
    for key, value in (("location", "weights"), ("offset", "0"), ("length", str(array.nbytes))):
        proto.external_data.add(key=key, value=value)
    return proto
