"""Rewrites that help every engine and that ONNX Runtime does not do itself.

Each looks at the operators of the main graph and changes the model in place.
"""

from collections.abc import Iterator

import numpy as np
import onnx_ir as ir

from coexec.arrays import Array
from coexec.model.group import only_read

_MOVING = frozenset({"Relu"})
"""Activations that give the same before and behind a Concat, and that engines fuse."""
_HARD_SWISH_SINCE = 14
"""The operator set that brought HardSwish."""
_SIXTH = 1 / 6
_ROUNDED = 3e-8
"""Tolerance for 1/6: two neighbouring float32 numbers there differ by 1.5e-8."""


def activate_before_concat(model: ir.Model) -> None:
    """Move activations behind a Concat in front of it, where they fuse with the operators before.

    Behind a Concat, engines run them outside of their blocked layouts. Results stay bit by bit."""
    for node in list(model.graph):
        if (node.domain, node.op_type) == ("", "Concat"):
            _activate_before(node)


def rewrite(model: ir.Model) -> None:
    """Write gates as HardSwish, and give the readers of quantised values conversions of their own.

    Args:
        model: optimised by ONNX Runtime, which takes a HardSwish apart.
    """
    for node in list(model.graph):
        if node.domain:
            continue
        if node.op_type in ("Div", "Mul"):
            _hard_swish(node, model.opset_imports.get("", 0))
        elif node.op_type == "DequantizeLinear":
            _separate(node)


def _hard_swish(node: ir.Node, opset: int) -> None:
    """x * Clip(x + 3, 0, 6) / 6 and x * HardSigmoid(x) become HardSwish, and the same without the
    first factor HardSigmoid. They round otherwise."""
    if opset < _HARD_SWISH_SINCE:
        return
    if node.op_type == "Mul":
        for gate, value in _orders(node):
            sigmoid = _maker(gate, "HardSigmoid")
            if sigmoid is not None and sigmoid.inputs[0] is value and _is_hard_swish(sigmoid):
                _replace(node, ir.node("HardSwish", [value]))
                break
        return
    if not _is_number(node.inputs[1], 6):
        return
    source = _limited(node.inputs[0])
    if source is not None:
        attributes = {"alpha": _SIXTH, "beta": 0.5}
        _replace(node, ir.node("HardSigmoid", [source], attributes))
    elif (product := _maker(node.inputs[0], "Mul")) is not None:
        for limited, value in _orders(product):
            if value is not None and _limited(limited) is value:
                _replace(node, ir.node("HardSwish", [value]))
                return


def _is_hard_swish(sigmoid: ir.Node) -> bool:
    alpha = sigmoid.attributes.get_float("alpha", 0.2)
    return abs(alpha - _SIXTH) <= _ROUNDED and sigmoid.attributes.get_float("beta", 0.5) == 0.5


def _limited(value: ir.Value | None) -> ir.Value | None:
    """x, if ``value`` is Clip(x + 3, 0, 6) and nothing else reads the steps."""
    clip = _maker(value, "Clip")
    if clip is None or len(clip.inputs) != 3:
        return None
    add = _maker(clip.inputs[0], "Add")
    if add is None or not (_is_number(clip.inputs[1], 0) and _is_number(clip.inputs[2], 6)):
        return None
    return next((x for three, x in _orders(add) if _is_number(three, 3)), None)


def _orders(node: ir.Node) -> Iterator[tuple[ir.Value | None, ir.Value | None]]:
    yield node.inputs[0], node.inputs[1]
    yield node.inputs[1], node.inputs[0]


def _maker(value: ir.Value | None, op_type: str) -> ir.Node | None:
    """The standard node of this type that makes ``value`` for a single reader."""
    node = None if value is None else value.producer()
    if node is None or value is None or (node.domain, node.op_type) != ("", op_type):
        return None
    return node if only_read(value) else None


def _is_number(value: ir.Value | None, number: float) -> bool:
    """Whether a value is a constant with one element, of rank 0 or 1, that is this number."""
    tensor = None if value is None or value.is_graph_input() else value.const_value
    if tensor is None or tensor.size != 1 or len(tensor.shape) > 1:
        return False
    array: Array = tensor.numpy()
    return float(np.asarray(array, np.float64).item()) == number


def _replace(node: ir.Node, new: ir.Node) -> None:
    """Let ``new`` compute the output of ``node``; what only that node read is removed."""
    old, result, graph = node.outputs[0], new.outputs[0], node.graph
    if not isinstance(graph, ir.Graph):
        return
    new.name, result.type, result.shape = node.name, old.type, old.shape
    graph.insert_before(node, new)
    name = old.name
    old.replace_all_uses_with(result, replace_graph_outputs=True)
    old.name, result.name = None, name
    unread = [node]
    while unread:
        gone = unread.pop()
        makers = [v.producer() for v in gone.inputs if v is not None]
        graph.remove(gone, safe=True)
        unread += [m for m in makers if m is not None and not any(map(_is_read, m.outputs))]


def _is_read(value: ir.Value) -> bool:
    return bool(value.uses()) or value.is_graph_output()


def _separate(node: ir.Node) -> None:
    """Give every reader of a dequantised value a DequantizeLinear of its own.

    Engines fuse it with its reader, and the quantised value is a quarter of the size to move.
    """
    value, graph = node.outputs[0], node.graph
    readers = [n for n in value.consumers() if n.graph is graph]
    kept = value.is_graph_output() or len(readers) < len(list(value.consumers()))
    for number, reader in enumerate(readers if kept else readers[1:]):
        own = ir.Node(
            "",
            node.op_type,
            node.inputs,
            node.attributes.values(),
            name=f"{node.name}.{number}",
            version=node.version,
        )
        copy = own.outputs[0]
        copy.name = f"{value.name}.{number}"
        copy.shape, copy.type = value.shape, value.type
        if isinstance(graph, ir.Graph):
            graph.insert_after(node, own)
        for position, read in enumerate(reader.inputs):
            if read is value:
                reader.replace_input_with(position, copy)


def _activate_before(concat: ir.Node) -> None:
    """Move the activations behind a Concat to its inputs, if all its readers are the same one.

    Only if most of the inputs have no other reader: otherwise nothing fuses.
    """
    joined, graph = concat.outputs[0], concat.graph
    readers = list(joined.consumers())
    kinds = {(n.domain, n.op_type) for n in readers}
    if joined.is_graph_output() or graph is None or len(kinds) != 1:
        return
    if any(reader.graph is not graph for reader in readers):
        return
    domain, kind = kinds.pop()
    parts = [v for v in concat.inputs if v is not None]
    if domain or kind not in _MOVING or len(set(parts)) < len(concat.inputs):
        return
    alone = [v for v in parts if v.producer() is not None and only_read(v)]
    if 2 * len(alone) < len(parts) or any(v.producer() is None for v in parts):
        return
    for index, part in enumerate(parts):
        node = ir.node(kind, [part], name=f"{readers[0].name}.{index}")
        activated = node.outputs[0]
        activated.name = f"{joined.name}.{kind}.{index}"
        activated.shape, activated.type = part.shape, part.type
        graph.insert_before(concat, node)
        concat.replace_input_with(index, activated)
    for reader in readers:
        if reader.outputs[0].is_graph_output():
            continue  # it changes nothing any more, but its result is an output
        reader.outputs[0].replace_all_uses_with(joined)
        graph.remove(reader, safe=True)
