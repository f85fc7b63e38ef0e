"""A rule looks at one node and returns an equivalent; `replace` puts it in the node's place.

A rule changes nothing itself: one that fails leaves the model as it was.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from coexec.arrays import Array

__all__ = [
    "Replacement",
    "Rule",
    "attributes_of",
    "constant",
    "equivalent",
    "inputs_of",
    "opset_of",
    "own_weight",
    "replace",
    "static_shape",
]


@dataclass(frozen=True, eq=False)
class Replacement:
    """One node that replaces those that compute a value now."""

    op_type: str
    inputs: Sequence[ir.Value | Array | None]
    """Arrays become new weights."""
    attributes: Mapping[str, ir.Attr] = field(default_factory=dict)
    covers: Sequence[ir.Node] = ()
    """The nodes whose work it does, in order; the last computes the value."""
    samples: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """For each input that is no weight, the shape with which it is compared, without the first
    axis."""


Rule = Callable[[ir.Node], Replacement | ir.Value | None]
"""An equivalent of the only used output of a node: another node, or an existing value. None: the
rule does not apply."""


def equivalent(rules: Mapping[str, Rule], node: ir.Node) -> Replacement | ir.Value | None:
    """The result of the rule for ``node``; None if there is no rule, or if it fails, as it may for
    unexpected nodes.

    Args:
        rules: by standard operator.
    """
    rule = None if node.domain or node.graph is None else rules.get(node.op_type)
    try:
        return None if rule is None else rule(node)
    except Exception:
        return None


def replace(node: ir.Node, new: Replacement | ir.Value) -> ir.Value | None:
    """Let ``new`` compute the first output of ``node``.

    Nodes that nothing reads any more stay.

    Returns:
        The value that is read in place of that output; None if nothing could be changed.
    """
    old, graph = node.outputs[0], node.graph
    if not isinstance(graph, ir.Graph):
        return None
    if isinstance(new, ir.Value):
        return new if _use(new, old) else None
    inputs = [_weight(v, old, graph) if isinstance(v, np.ndarray) else v for v in new.inputs]
    made = ir.Node("", new.op_type, inputs, new.attributes.values(), name=node.name)
    result = made.outputs[0]
    result.type, result.shape = old.type, old.shape
    graph.insert_before(node, made)
    name = old.name
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    old.name = None
    result.name = name
    graph.remove(node, safe=True)
    return result


def _use(new: ir.Value, old: ir.Value) -> bool:
    """Let all readers of ``old`` read ``new``; the model's outputs keep their names."""
    if old.is_graph_output():
        maker = new.producer()
        if maker is None or maker.graph is not old.graph or new.is_graph_output():
            return False
        name = old.name
        old.name = None
        new.name = name
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    return True


def _weight(array: Array, reader: ir.Value, graph: ir.Graph) -> ir.Value:
    """A new weight of ``graph``."""
    name, number = f"{reader.name}.constant", 0
    while name in graph.initializers:
        number += 1
        name = f"{reader.name}.constant.{number}"
    value = own_weight(name, ir.tensor(np.ascontiguousarray(array)))
    graph.register_initializer(value)
    return value


def constant(value: ir.Value | None) -> Array | None:
    """The values of a constant; None for anything else, and for texts."""
    tensor = None if value is None else ir.convenience.get_const_tensor(value)
    if tensor is None or value is None or value.is_graph_input():
        return None
    return None if tensor.dtype == ir.DataType.STRING else tensor.numpy()


def own_weight(name: str, tensor: ir.TensorProtocol) -> ir.Value:
    """A weight with the values of ``tensor``. ``tensor`` keeps its own name: it may be the
    user's."""
    content = ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=name)
    return ir.Value(
        name=name,
        const_value=content,
        shape=ir.Shape(tensor.shape.numpy()),
        type=ir.TensorType(tensor.dtype),
    )


def static_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The shape of a value if all of its sizes are known."""
    if value is None or value.shape is None or not value.shape.is_static():
        return None
    return tuple(int(size) for size in value.shape.numpy())


def inputs_of(nodes: Iterable[ir.Node]) -> list[ir.Value]:
    """The values that ``nodes`` read and do not make, each once."""
    made = {value for node in nodes for value in node.outputs}
    read = (v for node in nodes for v in node.inputs if v is not None and v not in made)
    return list(dict.fromkeys(read))


def attributes_of(node: ir.Node, *without: str, **changed: Any) -> dict[str, ir.Attr]:
    """The attributes of a node, without some, and with others changed to integers or lists."""
    kept = {a.name: a for a in node.attributes.values() if a.name not in (*without, *changed)}
    return kept | {a.name: a for a in ir.convenience.convert_attributes(changed)}


def opset_of(node: ir.Node) -> int:
    """The version of ONNX's own operators in the graph of ``node``; 0 where it is in none."""
    return 0 if node.graph is None else node.graph.opset_imports.get("", 0)
