"""A model as text, one node a line: for people, and for tests to compare with."""

from collections.abc import Iterable

import onnx_ir as ir

_MOST_NUMBERS = 4
"""Most elements of a weight that are printed instead of its name."""


def text_of(model: ir.Model) -> str:
    """Inputs, nodes in order with shapes and attributes, outputs."""
    return "\n".join(_lines(model.graph))


def _line(node: ir.Node) -> str:
    """Outputs, operator, inputs and attributes and name of a node."""
    results = ", ".join(_declared(value) for value in node.outputs if value.name)
    operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    inputs = ", ".join("-" if value is None else _read(value) for value in node.inputs)
    attributes = ", ".join(f"{a.name}={_setting(a)}" for a in node.attributes.values())
    return (
        f"{results} = {operator}({inputs})"
        + (f" {{{attributes}}}" if attributes else "")
        + (f"  # {node.name}" if node.name else "")
    )


def _lines(graph: ir.Graph) -> Iterable[str]:
    yield f"graph {graph.name or ''} ({', '.join(map(_declared, graph.inputs))})"
    for node in graph:
        yield f"  {_line(node)}"
    yield f"return {', '.join(value.name or '-' for value in graph.outputs)}"


def _declared(value: ir.Value) -> str:
    """Name, shape and type; float32 goes without saying."""
    shape = "?" if value.shape is None else "x".join(map(str, value.shape)) or "scalar"
    kind = "" if value.dtype in (None, ir.DataType.FLOAT) else f" {value.dtype.name.lower()}"
    return f"{value.name}: {shape}{kind}"


def _read(value: ir.Value) -> str:
    """Name of an input; a weight with its shape, or with its numbers if these are few."""
    tensor = None if value.is_graph_input() else value.const_value
    if tensor is None:
        return value.name or "-"
    is_here = not isinstance(tensor, ir.ExternalTensor) and tensor.dtype != ir.DataType.STRING
    if is_here and tensor.size <= _MOST_NUMBERS:
        return str(tensor.numpy().tolist())
    return f"{value.name}[{'x'.join(map(str, tensor.shape)) or 'scalar'}]"


def _setting(attribute: ir.Attr) -> str:
    """Value of an attribute; graphs and tensors by their type."""
    kind = ir.AttributeType
    if attribute.is_ref():
        return f"@{attribute.ref_attr_name}"
    if attribute.type in (kind.INT, kind.STRING, kind.FLOAT):
        return str(attribute.value)
    if attribute.type in (kind.INTS, kind.STRINGS, kind.FLOATS):
        return str(list(attribute.value))
    return f"<{attribute.type.name.lower()}>"
