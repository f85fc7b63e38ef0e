"""Types of values as ONNX Runtime writes them: "tensor(float)", "seq(map(int64,tensor(float)))"."""

import re

import onnx
import onnx_ir as ir

__all__ = ["type_of", "type_proto", "type_text"]

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
        return ""
    return type_text(ir.serde.serialize_type(value.type))


def type_proto(text: str) -> onnx.TypeProto | None:
    """Inverse of `type_text`, of tensors of unknown shape; None for what ONNX has no type for."""
    found = re.fullmatch(r"(\w+)\((.*)\)", text)
    if found is None:
        return None
    kind, inner = found.groups()
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
