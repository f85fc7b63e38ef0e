"""Rewrites that help every engine and that no engine does itself.

Activations move in front of a concatenation, where they fuse with the operators that make its
inputs: behind it, engines run them outside of their blocked layouts. Each reader of a quantised
value gets a DequantizeLinear of its own. Both give the same results, bit by bit.
"""

import onnx_ir as ir

from coexec.model.group import only_read

__all__ = ["activate_before_concat", "separate_dequantised"]

_MOVING = frozenset({"Relu"})
"""Activations that give the same before and behind a Concat, and that engines fuse."""


def activate_before_concat(model: ir.Model) -> None:
    """Move activations behind a Concat in front of it, in place."""
    for node in list(model.graph):
        if (node.domain, node.op_type) == ("", "Concat"):
            _activate_before(node)


def separate_dequantised(model: ir.Model) -> None:
    """Give every reader of a dequantised value a DequantizeLinear of its own, in place.

    Engines fuse it with its reader, and the quantised value is a quarter of the size to move.
    """
    for node in list(model.graph):
        if node.op_type != "DequantizeLinear" or node.domain:
            continue
        value = node.outputs[0]
        readers = [n for n in value.consumers() if n.graph is model.graph]
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
            model.graph.insert_after(node, own)
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
