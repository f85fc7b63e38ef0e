"""Nodes whose results differ each time, because they draw random numbers.

They are never merged or folded, and no part of them is computed twice.
"""

from collections.abc import Iterator

import onnx_ir as ir

MERGING = "CommonSubexpressionElimination"
"""ONNX Runtime's optimizer of equal nodes; it merges nodes that draw random numbers, too."""

_RANDOM = frozenset(
    {
        ("", "Bernoulli"), ("", "Multinomial"), ("", "RandomNormal"), ("", "RandomNormalLike"),
        ("", "RandomUniform"), ("", "RandomUniformLike"), ("com.microsoft", "Sampling"),
    }
)  # fmt: skip
_DROPOUTS = {
    ("", "Dropout"): 2, ("com.microsoft", "BiasDropout"): 4,
    ("com.microsoft", "BitmaskBiasDropout"): 4, ("com.microsoft", "BitmaskDropout"): 2,
}  # fmt: skip
"""By operator, the input that decides whether it trains. Without that input it does not."""


def random_nodes(model: ir.Model) -> tuple[str, ...]:
    """The names of the nodes of the main graph that draw random numbers, in order.

    Nodes that do so in a function or in a body are included. A node without a name is listed by the
    name of its first output.
    """
    return tuple(
        node.name or next((v.name for v in node.outputs if v.name), "")
        for node in model.graph
        if is_random(node, model)
    )


def is_random(node: ir.Node, model: ir.Model | None = None) -> bool:
    """Whether ``node`` draws random numbers, itself, in its bodies or in functions of ``model``."""
    return any(_draws(inner) for inner in _inside(node, model, frozenset()))


def _draws(node: ir.Node) -> bool:
    kind = (_domain(node), node.op_type)
    if kind not in _DROPOUTS:
        return kind in _RANDOM
    position = _DROPOUTS[kind]
    training = node.inputs[position] if position < len(node.inputs) else None
    if training is None:
        return False
    tensor = ir.convenience.get_const_tensor(training)
    return tensor is None or training.is_graph_input() or bool(tensor.numpy().any())


def _domain(node: ir.Node) -> str:
    return "" if node.domain == "ai.onnx" else node.domain


def _inside(
    node: ir.Node, model: ir.Model | None, calls: frozenset[ir.OperatorIdentifier]
) -> Iterator[ir.Node]:
    """``node``, the nodes of its bodies and of the functions that they call."""
    yield node
    called = node.op_identifier()
    bodies: list[ir.Graph | ir.Function] = []
    if model is not None and called in model.functions and called not in calls:
        bodies.append(model.functions[called])
        calls = calls | {called}
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            bodies.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            bodies += attribute.as_graphs()
    for body in bodies:
        for inner in body:
            yield from _inside(inner, model, calls)
