"""Merges equal constants and equal nodes, where they are sure to give the same."""

from collections.abc import Hashable

import onnx_ir as ir

from coexec.model.nondeterministic import may_merge

__all__ = ["merge_constants", "merge_nodes"]

_MOST_ELEMENTS = 1024
"""Most elements of a constant that is compared: weights are rarely equal, and large."""


def merge_constants(model: ir.Model) -> None:
    """Merge equal small constants of the main graph, in place."""
    kept: dict[Hashable, ir.Value] = {}
    for name, value in list(model.graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or value.is_graph_output():
            continue
        if tensor.size > _MOST_ELEMENTS or tensor.dtype == ir.DataType.STRING:
            continue
        key = (tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes())
        first = kept.setdefault(key, value)
        if first is not value:
            value.replace_all_uses_with(first)
            del model.graph.initializers[name]


def merge_nodes(model: ir.Model) -> None:
    """Merge equal nodes of the main graph, in place: common subexpressions.

    Nodes that draw random numbers stay, and those with bodies. So does a later node with an output
    of the model, because that output has a name of its own.
    """
    kept: dict[Hashable, ir.Node] = {}
    for node in list(model.graph):
        key = _key(node) if may_merge(node) else None
        if key is None:
            continue
        first = kept.setdefault(key, node)
        if first is node or any(v.is_graph_output() for v in node.outputs):
            continue
        for value, same in zip(node.outputs, first.outputs, strict=True):
            value.replace_all_uses_with(same)
        model.graph.remove(node, safe=True)


def _key(node: ir.Node) -> Hashable | None:
    """A key that is equal for nodes that compute the same; None for nodes that are not compared."""
    attributes = []
    for name in sorted(node.attributes):
        attribute = node.attributes[name]
        content = _content(attribute)
        if content is None:
            return None
        attributes.append((name, attribute.type, content))
    inputs = tuple(None if value is None else id(value) for value in node.inputs)
    return node.op_identifier(), len(node.outputs), inputs, tuple(attributes)


def _content(attribute: ir.Attr) -> Hashable | None:
    """The value of an attribute bit by bit, so that 0.0 and -0.0 differ."""
    kind = ir.AttributeType
    if attribute.is_ref():
        return None
    if attribute.type == kind.TENSOR:
        tensor = attribute.as_tensor()
        if tensor.size > _MOST_ELEMENTS or tensor.dtype == ir.DataType.STRING:
            return None
        return tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()
    if attribute.type == kind.FLOAT:
        return float(attribute.value).hex()
    if attribute.type == kind.FLOATS:
        return tuple(float(number).hex() for number in attribute.value)
    if attribute.type in (kind.INT, kind.STRING):
        value: Hashable = attribute.value
        return value
    return tuple(attribute.value) if attribute.type in (kind.INTS, kind.STRINGS) else None
