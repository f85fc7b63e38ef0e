"""Networks for tests of the OpenCL engine, and a function that runs them on a device."""

from typing import Any

import numpy as np
import onnx
from onnx import helper

from coexec.engines.base import OpenEngine
from coexec.hardware.hardware import Place
from coexec.lowering.lowered_model import without_lowering
from coexec.lowering.module import Module
from coexec.lowering.pieces import cut_pieces
from coexec.model.load import load
from coexec.model.model import Model
from coexec.plan.derive import derive
from coexec.plan.plan import Plan, Provenance
from tests.helpers.small_models import from_nodes, tensor_info


class _Maker:
    """Nodes and random weights of a network under construction."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(0)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}

    def conv(
        self,
        source: str,
        name: str,
        ins: int,
        outs: int,
        kernel: tuple[int, int] = (1, 1),
        **attributes: Any,
    ) -> str:
        shape = (outs, ins // attributes.get("group", 1), *kernel)
        scale = np.sqrt(1 / np.prod(shape[1:]))
        self.weights[f"{name}.w"] = (self._rng.standard_normal(shape) * scale).astype(np.float32)
        self.weights[f"{name}.b"] = self._rng.standard_normal(outs).astype(np.float32)
        return self.node("Conv", [source, f"{name}.w", f"{name}.b"], name, **attributes)

    def node(self, op_type: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [name], name, **attributes))
        return name

    def constant(self, name: str, values: Any, dtype: Any = np.float32) -> str:
        self.weights[name] = np.asarray(values, dtype)
        return name


def mixed_network() -> onnx.ModelProto:
    """A network with all variants of convolution, pools, residuals, gates, Concat in and out of
    place, and Gemm."""
    m = _Maker()
    y = m.conv("x", "stem", 3, 20, (3, 3), strides=[2, 2], pads=[1, 1, 1, 1])
    y = m.node("Relu", [y], "stem.r")
    y = m.conv(y, "wide", 20, 48, (3, 3), pads=[1, 1, 1, 1])
    y = m.node("LeakyRelu", [y], "wide.r", alpha=0.1)
    side = m.conv(y, "rows", 48, 32, (1, 5), pads=[0, 2, 0, 2])
    near = m.conv(y, "dilated", 48, 16, (3, 3), pads=[2, 2, 2, 2], dilations=[2, 2])
    y = m.node("Concat", [side, near], "joined", axis=1)
    y = m.conv(y, "depthwise", 48, 48, (5, 5), group=48, strides=[1, 2], pads=[2, 2, 2, 2])
    gate = m.node("GlobalAveragePool", [y], "gate.pool")
    gate = m.node("HardSigmoid", [m.conv(gate, "gate.conv", 48, 48)], "gate")
    y = m.node("Mul", [y, gate], "gated")
    inner = m.conv(y, "grouped", 48, 48, (3, 3), group=3, pads=[1, 1, 1, 1])
    y = m.node("Add", [inner, y], "residual")
    pooled = m.node("MaxPool", [y], "max", kernel_shape=[3, 3], strides=[2, 2])
    mean = m.node("AveragePool", [y], "mean", kernel_shape=[3, 3], strides=[2, 2])
    odd = m.conv(mean, "odd", 48, 10)
    y = m.node("Concat", [pooled, odd, mean], "uneven", axis=1)
    y = m.conv(y, "last", 106, 64, (3, 3))
    m.constant("shape", [1, -1], np.int64)
    y = m.node("Reshape", [y, "shape"], "flat")
    m.constant("fc.w", m._rng.standard_normal((64 * 6, 37)) * 0.05)
    m.constant("fc.b", m._rng.standard_normal(37))
    y = m.node("Gemm", [y, "fc.w", "fc.b"], "fc")
    m.node("Softmax", [y], "y", axis=1)
    return from_nodes(
        m.nodes,
        [tensor_info("x", [1, 3, 34, 26])],
        [tensor_info("y", [1, 37]), tensor_info("residual", [1, 48, 17, 7])],
        m.weights,
    )


def in_float16(proto: onnx.ModelProto) -> onnx.ModelProto:
    """The same network in float16: inputs, weights and outputs."""
    halves = onnx.ModelProto()
    halves.CopyFrom(proto)
    for tensor in halves.graph.initializer:
        values = onnx.numpy_helper.to_array(tensor)
        if values.dtype.kind == "f":
            new = onnx.numpy_helper.from_array(values.astype(np.float16), tensor.name)
            tensor.CopyFrom(new)
    for info in (*halves.graph.input, *halves.graph.output):
        info.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    return halves


def small_network(kind: str, as_model: bool = False) -> Any:
    """A small network, as a module of one segment or as an ONNX model.

    Args:
        kind: "swish", "concat" or "pad".
    """
    m = _Maker()
    if kind == "swish":
        m.conv("x", "c", 8, 8)
        m.node("Sigmoid", ["c"], "s")
        m.node("Mul", ["c", "s"], "g")
        m.node("Add", ["g", "x"], "y")
    elif kind == "concat":
        m.conv("x", "left", 8, 8)
        m.conv("x", "right", 8, 12, (3, 3), pads=[1, 1, 1, 1])
        m.node("Concat", ["left", "right"], "y", axis=1)
    else:
        m.constant("pads", [0, 0, 1, 1, 0, 0, 1, 1], np.int64)
        m.node("Pad", ["x", "pads"], "p")
        m.conv("p", "y", 8, 8, (3, 3))
    channels = 20 if kind == "concat" else 8
    proto = from_nodes(
        m.nodes,
        [tensor_info("x", [1, 8, 9, 7])],
        [tensor_info("y", [1, channels, 9, 7])],
        m.weights,
    )
    return proto if as_model else module_of(load(proto))


def module_of(model: Model) -> Module:
    """The whole model as one segment."""
    graph = model.graph
    place = Place("gpu:0", "opencl")
    pieces = tuple(graph.whole_piece(t) for t in graph.tasks)
    plan = Plan.of_places(graph.fingerprint, {place: pieces}, Provenance("test"))
    lowered = without_lowering(
        model.source, [name for task in graph.tasks for name in task.outputs]
    )
    (module,), _ = cut_pieces(derive(plan, graph), {place: lowered}, lowered)
    return module


def run_on(engine: OpenEngine, model: Model, feeds: Any, only_compile: bool = False) -> Any:
    """The outputs by name; with ``only_compile``, the program."""
    module = module_of(model)
    program = engine.compile(module)
    if only_compile:
        return program
    outputs = {t.name: engine.allocate(t) for t in module.outputs}
    program.bind({n: engine.upload(a) for n, a in feeds.items()}, outputs).run()
    return {name: engine.download(tensor).copy() for name, tensor in outputs.items()}
