"""Nodes in the form that rules and kernels use: attributes and small constants as plain values."""

import onnx_ir as ir

from coexec.graph.graph import Operator, Scalars

_SMALL = 64
"""Constants of at most this many elements may decide shapes (pads, axes, sizes)."""


def operator_of(node: ir.Node) -> Operator:
    """``node`` in the form that shape rules and kernels use. Its graph has the operator set."""
    versions = {} if node.graph is None else node.graph.opset_imports
    attributes = {a.name: scalars_of(a) for a in node.attributes.values()}
    constants = {
        i: small_constant(value.const_value)
        for i, value in enumerate(node.inputs)
        if value is not None and value.const_value is not None
    }
    return Operator(
        op_type=node.op_type,
        inputs=tuple((v.name or "") if v is not None else "" for v in node.inputs),
        outputs=tuple(v.name or "" for v in node.outputs),
        attributes={name: value for name, value in attributes.items() if value is not None},
        constants={i: values for i, values in constants.items() if values is not None},
        domain=node.domain,
        version=versions.get(node.domain, 0),
    )


def scalars_of(attribute: ir.Attr) -> Scalars | None:
    """The value of an attribute; None if it is no number, no text and no list of these."""
    kind = ir.AttributeType
    if attribute.type in (kind.INT, kind.FLOAT, kind.STRING):
        value: Scalars = attribute.value
        return value
    if attribute.type in (kind.INTS, kind.FLOATS, kind.STRINGS):
        return tuple(attribute.value)
    return None


def small_constant(tensor: ir.TensorProtocol) -> tuple[float, ...] | None:
    """The values of a constant that may decide a shape; None for other constants."""
    if tensor.size > _SMALL or tensor.dtype == ir.DataType.STRING:
        return None
    return tuple(tensor.numpy().flatten().tolist())
