"""Lowered models and modules as text, one node a line, in the form of `model_text`.

The note of a value is its layout where this is not the model's, behind the tensor that it holds if
that has another name:

    lowered opset 17 (x: 1x4x8x8)
      w = tensor(8x4x3x3)
      r: 1x4x8x8 = com.microsoft.nchwc.ReorderInput(x) {in blocks of 4}
      c: 1x8x8x8 = com.microsoft.nchwc.Conv(r, w) pads=[1, 1, 1, 1] {y in blocks of 4}
      border:y: 1x8x8x8 = com.microsoft.nchwc.ReorderOutput(c) channels=8
    return border:y
"""

import onnx
import onnx_ir as ir

from coexec.graph.graph import Tensor
from coexec.lowering.dialect import Dialect
from coexec.lowering.layout import Layout
from coexec.lowering.lowered_model import (
    BORDER,
    LAYOUT,
    LoweredModel,
    kind_of,
    read_lowered,
    reads,
    tensor_of_info,
)
from coexec.lowering.module import Module
from tests.helpers.model_text import ModelText, parse_text


def format_lowered(lowered: LoweredModel) -> str:
    """A lowered model as text, with the tensors and layouts of its values as notes."""
    made = dict.fromkeys(name for node in lowered.nodes for name in node.output if name)
    read = dict.fromkeys(name for node in lowered.nodes for name in reads(node) if name)
    notes = {}
    for value in (*read, *made):
        tensor = lowered.tensor_of.get(value, "")
        shown = "" if tensor == value.removeprefix(BORDER) else tensor
        notes[value] = f"{shown} {lowered.layout_of(value)}".strip()
    prefixes = tuple(filter(None, (LAYOUT, lowered.dialect.widened)))
    versions = {o.domain: o.version for o in lowered.header.opset_import}
    named = {node.name for node in lowered.nodes if node.name.startswith(prefixes)}
    return ModelText(lowered.tensors, notes, named).of_model(
        f"lowered model opset {versions.get('', 1)}",
        [name for name in read if name not in made and name not in lowered.weights],
        lowered.weights,
        lowered.nodes,
        [name for name in made if name not in read],
    )


def parse_lowered(text: str, dialect: Dialect) -> LoweredModel:
    """The lowered model of which `format_lowered` is ``text``, but for weights not shown.

    Its borders are the values "border:NAME". Layouts follow from the nodes, not from the notes.

    Raises:
        ValueError: a line has another form.
    """
    proto = parse_text(text).proto
    weights = {t.name: ir.serde.deserialize_tensor(t) for t in proto.graph.initializer}
    made = (name for node in proto.graph.node for name in node.output)
    borders = [name.removeprefix(BORDER) for name in made if name.startswith(BORDER)]
    return read_lowered(proto, weights, borders, dialect)


def format_module(module: Module) -> str:
    """A module as text, with the layouts of its inputs and outputs as notes."""
    proto = onnx.load_model_from_string(module.proto)
    graph, versions = proto.graph, {o.domain: o.version for o in proto.opset_import}
    weights: dict[str, ir.TensorProtocol] = {}
    for weight in graph.initializer:
        array = module.weights.get(weight.name)
        weights[weight.name] = (
            ir.serde.deserialize_tensor(weight)
            if array is None
            else ir.Tensor(array, ir.DataType(weight.data_type), name=weight.name)
        )
    tensors = {info.name: tensor_of_info(info) for info in graph.value_info}
    tensors |= {tensor.name: tensor for tensor in (*module.inputs, *module.outputs)}
    notes = {name: str(layout) for name, layout in module.layouts.items()}
    return ModelText(tensors, notes).of_model(
        f"module {graph.name} opset {versions.get('', 1)}",
        [tensor.name for tensor in module.inputs],
        weights,
        graph.node,
        [tensor.name for tensor in module.outputs],
    )


def parse_module(text: str) -> Module:
    """The module of which `format_module` is ``text``, but for weights not shown.

    All weights are in its protobuf.

    Raises:
        ValueError: a line has another form, or a note is no layout.
    """
    proto, notes = parse_text(text)
    inputs, outputs = (
        tuple[Tensor, ...](map(tensor_of_info, infos))
        for infos in (proto.graph.input, proto.graph.output)
    )
    operators = tuple(map(kind_of, proto.graph.node))
    layouts = {name: Layout.parse(note) for name, note in notes.items()}
    return Module(proto.SerializeToString(), {}, inputs, outputs, operators, layouts=layouts)
