"""Types of values as ONNX Runtime writes them: "tensor(float)", "seq(map(int64,tensor(float)))"."""

import re
from collections.abc import Iterator

import onnx
import onnx_ir as ir

_HIDDEN = "coexec.type"
"""Key in the metadata of a value whose type onnx_ir cannot hold."""

_ELEMENT = onnx.TensorProto.DataType


def type_text(proto: onnx.TypeProto) -> str:
    """A type as ONNX Runtime writes it; "" if it is not given."""
    kind = proto.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        element = getattr(proto, kind).elem_type
        name = kind.removesuffix("_type")
        return f"{name}({_ELEMENT.Name(element).lower()})" if element else ""
    if kind == "sequence_type":
        return f"seq({type_text(proto.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({type_text(proto.optional_type.elem_type)})"
    if kind == "map_type":
        key = _ELEMENT.Name(proto.map_type.key_type).lower()
        return f"map({key},{type_text(proto.map_type.value_type)})"
    return ""


def type_of(value: ir.Value) -> str:
    """The type of a value as ONNX Runtime writes it; "" if it is unknown."""
    if value.type is None or value.type.dtype == ir.DataType.UNDEFINED:
        return value.metadata_props.get(_HIDDEN, "")
    return type_text(ir.serde.serialize_type(value.type))


def type_proto(text: str) -> onnx.TypeProto | None:
    """Inverse of `type_text`, with tensors of unknown shape; None if ONNX has no such type."""
    match = re.fullmatch(r"(\w+)\((.*)\)", text)
    if match is None:
        return None
    kind, inner = match.groups()
    helper = onnx.helper
    if kind in ("tensor", "sparse_tensor"):
        if inner.upper() not in _ELEMENT.keys():  # noqa: SIM118 - an enum of protobuf
            return None
        element = _ELEMENT.Value(inner.upper())
        if kind == "tensor":
            return helper.make_tensor_type_proto(element, None)
        return helper.make_sparse_tensor_type_proto(element, None)
    if kind == "map":
        key, _, inner = inner.partition(",")
        value = type_proto(inner)
        return value and helper.make_map_type_proto(_ELEMENT.Value(key.upper()), value)
    inside = type_proto(inner)
    if inside is None or kind not in ("seq", "optional"):
        return None
    if kind == "seq":
        return helper.make_sequence_type_proto(inside)
    return helper.make_optional_type_proto(inside)


def hide_maps(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto``, or a copy with the types of maps as metadata: onnx_ir reads no model with maps."""
    if not any("map(" in type_text(info.type) for info in declared_values(proto.graph)):
        return proto
    hidden = onnx.ModelProto()
    hidden.CopyFrom(proto)
    for info in declared_values(hidden.graph):
        text = type_text(info.type)
        if "map(" in text:
            info.ClearField("type")
            info.metadata_props.add(key=_HIDDEN, value=text)
    return hidden


def show_maps(proto: onnx.ModelProto) -> None:
    """Undo `hide_maps`, in place."""
    for info in declared_values(proto.graph):
        for item in info.metadata_props:
            if item.key == _HIDDEN:
                info.type.CopyFrom(type_proto(item.value))


def declared_values(graph: onnx.GraphProto) -> Iterator[onnx.ValueInfoProto]:
    """Declared values, also of bodies."""
    yield from (*graph.input, *graph.output, *graph.value_info)
    for node in graph.node:
        for attribute in node.attribute:
            for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from declared_values(body)
