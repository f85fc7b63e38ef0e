"""Small ONNX models without simplification, and ONNX Runtime on one thread to run them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
from onnx import helper, numpy_helper

from coexec.graph.graph import Graph, Piece, tensor_part
from coexec.graph.receptive import needed_inputs
from coexec.graph.region import Region
from coexec.graph.stitch import missing
from coexec.lowering.layout import PLAIN
from coexec.lowering.lowered_model import LoweredModel, without_lowering
from coexec.lowering.module import Module
from coexec.lowering.module_writer import ModuleWriter
from coexec.model.check import is_reshaped
from coexec.model.group import build_graph
from coexec.model.inputs import candidates
from coexec.model.model import Model
from coexec.model.shapes import infer
from tests.helpers.operator_cases import Case

Array = np.ndarray[Any, Any]
Part = tuple[str, Region]


def tensor(name: str, shape: Sequence[int], kind: str = "float32") -> onnx.ValueInfoProto:
    dtype = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(case: Case) -> Model:
    """A model with the single node "node", from x0, x1, ... to "y"."""
    return _grouped(proto_of(case))


def proto_of(case: Case) -> onnx.ModelProto:
    """The same model as a protobuf, without shapes of computed tensors."""
    inputs, weights, names = [], {}, []
    for i, value in enumerate(case.inputs):
        names.append("" if value is None else f"x{i}")
        if isinstance(value, tuple):
            inputs.append(tensor(f"x{i}", value, case.dtypes.get(i, "float32")))
        elif value is not None:
            weights[f"x{i}"] = value
    node = helper.make_node(case.op_type, names, ["y"], name="node", **case.attributes)
    output = tensor("y", case.shape) if case.shape else "y"
    return _proto([node], inputs, [output], weights, case.opset)


def direct(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Iterable[str | onnx.ValueInfoProto],
    weights: Mapping[str, Array],
    opset: int = 17,
) -> Model:
    """A model without the simplifications of `load`, which would fold and fuse nodes."""
    return _grouped(_proto(nodes, inputs, outputs, weights, opset))


def _proto(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Iterable[str | onnx.ValueInfoProto],
    weights: Mapping[str, Array],
    opset: int,
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(v, name) for name, v in weights.items()]
    results = [onnx.ValueInfoProto(name=o) if isinstance(o, str) else o for o in outputs]
    graph = helper.make_graph(nodes, "small", inputs, results, initializers)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _grouped(proto: onnx.ModelProto) -> Model:
    source = ir.from_proto(proto)
    infer(source)
    graph = build_graph(source, "small")
    if is_reshaped(source, graph, candidates(graph)):
        graph = build_graph(source, "small")
    return Model(source, graph, "digest")


def run(model: ir.Model, feeds: Mapping[str, Array]) -> list[Array]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = ort.InferenceSession(
        ir.to_proto(model).SerializeToString(), options, ["CPUExecutionProvider"]
    )
    outputs: list[Array] = session.run(None, dict(feeds))
    return outputs


def written(
    model: Model,
    pieces: Sequence[Piece],
    outputs: Sequence[Part],
    inputs: Sequence[Part] | None = None,
) -> ir.Model:
    """The module of ``pieces`` in the model's own operators, with its weights, as a model."""
    module = module_of_pieces(model, plain_of(model), pieces, outputs, inputs)
    proto = onnx.load_model_from_string(module.proto)
    for weight in proto.graph.initializer:
        if weight.name in module.weights:
            weight.CopyFrom(numpy_helper.from_array(module.weights[weight.name], weight.name))
    return ir.from_proto(proto)


def plain_of(model: Model) -> LoweredModel:
    """The model in its own operators, with all tasks separate."""
    return without_lowering(model.source, [n for t in model.graph.tasks for n in t.outputs])


def module_of_pieces(
    model: Model,
    plain: LoweredModel,
    pieces: Sequence[Piece],
    outputs: Sequence[Part],
    inputs: Sequence[Part] | None = None,
) -> Module:
    """The module that computes ``outputs`` from ``pieces``. By default, ``inputs`` are all other
    parts of tensors that this needs."""
    graph = model.graph
    writer = ModuleWriter(graph, plain, plain)
    for part in segment_inputs(graph, pieces, outputs) if inputs is None else inputs:
        writer.read(*part, PLAIN, tensor_part(*part, graph))
    for piece in pieces:
        task = graph.task[piece.task]
        if piece == graph.whole_piece(task):
            writer.add_whole([task], task.outputs)
        else:
            writer.add(piece)
    return writer.module("pieces", [(*part, PLAIN) for part in outputs])


def segment_inputs(
    graph: Graph, pieces: Sequence[Piece], outputs: Sequence[tuple[str, Region]] = ()
) -> tuple[tuple[str, Region], ...]:
    """The parts of tensors that ``pieces`` need and do not compute, in order of use."""
    computed: dict[str, list[Region]] = {}
    external_parts: dict[tuple[str, Region], None] = {}

    def need(name: str, region: Region) -> None:
        if not graph.tensors[name].constant:
            boxes = missing(region, computed.get(name, ()))
            external_parts.update({(name, box): None for box in boxes})

    for piece in pieces:
        task = graph.task[piece.task]
        for name, region in needed_inputs(graph, task, piece.region).items():
            need(name, region)
        for name in task.outputs:
            main = name == task.outputs[0]
            part = piece.region if main else graph.tensors[name].whole
            computed.setdefault(name, []).append(part)
    for name, region in outputs:
        need(name, region)
    return tuple(external_parts)


def random_feeds(model: Model) -> dict[str, Array]:
    """Pseudo-random values for all inputs; equal in every call."""
    feeds: dict[str, Array] = {}
    for name in model.graph.inputs:
        info = model.graph.tensors[name]
        values = np.random.default_rng(len(feeds)).standard_normal(info.shape)
        feeds[name] = np.asarray(values > 0 if info.dtype == "bool" else values, info.dtype)
    return feeds


def part_feeds(model: Model, parts: Iterable[Part], whole: Mapping[str, Array]) -> dict[str, Array]:
    """The feeds of an extracted model: ``parts`` cut out of whole tensors."""
    return {
        tensor_part(name, region, model.graph): np.asarray(whole[name][region.slices])
        for name, region in parts
    }
