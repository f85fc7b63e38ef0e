"""Small models for measuring or trying an engine, as modules that it compiles."""

from itertools import pairwise
from typing import Any

import numpy as np
import onnx

from coexec.graph.graph import Tensor
from coexec.lowering.module import Module

_OPSET, _IR_VERSION = 17, 8


def products(numbers: range, size: int) -> Module:
    """Square products, each the previous one times itself: "v1" is "v0" times "v0", and so on.

    Args:
        numbers: range(2, 4) reads "v2" and makes "v4"; all are of ``size`` x ``size``, float32.
    """
    shape = (size, size)
    before, after = (Tensor(f"v{n}", shape, "float32") for n in (numbers.start, numbers.stop))
    infos = [
        onnx.helper.make_tensor_value_info(f"v{n}", onnx.TensorProto.FLOAT, shape)
        for n in range(numbers.start, numbers.stop + 1)
    ]
    nodes = [onnx.helper.make_node("MatMul", [f"v{n}"] * 2, [f"v{n + 1}"]) for n in numbers]
    graph = onnx.helper.make_graph(nodes, "products", infos[:1], infos[-1:], value_info=infos[1:-1])
    model = _model(graph).SerializeToString()
    return Module(model, {}, (before,), (after,), ("MatMul",) * len(nodes))


def convolutions(layers: int, channels: int, height: int, kernel: int) -> onnx.ModelProto:
    """A chain of equal convolutions from "x" to "y", of height and width ``height``, float32."""
    rng, shape = np.random.default_rng(0), (1, channels, height, height)
    values = ["x", *(f"layer{n}" for n in range(layers - 1)), "y"]
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    for number, (before, after) in enumerate(pairwise(values)):
        name = f"layer{number}"
        weight = rng.standard_normal((channels, channels, kernel, kernel), np.float32)
        weight *= np.float32((channels * kernel**2) ** -0.5)  # keeps the activations in range
        bias = rng.standard_normal(channels, np.float32)
        weights += [
            onnx.numpy_helper.from_array(weight, f"{name}/weight"),
            onnx.numpy_helper.from_array(bias, f"{name}/bias"),
        ]
        inputs = [before, f"{name}/weight", f"{name}/bias"]
        window: dict[str, Any] = {
            "kernel_shape": [kernel] * 2,
            "strides": [1] * 2,
            "pads": [kernel // 2] * 4,
            "group": 1,
        }
        nodes.append(onnx.helper.make_node("Conv", inputs, [after], name, **window))
    infos = [
        onnx.helper.make_tensor_value_info(value, onnx.TensorProto.FLOAT, shape) for value in values
    ]
    return _model(
        onnx.helper.make_graph(nodes, "chain", infos[:1], infos[-1:], weights, None, infos[1:-1])
    )


def vector_products(chains: int, matrices: int, size: int) -> onnx.ModelProto:
    """Chains of products of a vector with matrices, from "x0" to "y0", from "x1" to "y1" and so on.

    Every chain reads the same ``matrices`` matrices of ``size`` x ``size``, float32.
    """
    rng, kind = np.random.default_rng(0), onnx.TensorProto.FLOAT
    values = rng.standard_normal((matrices, size, size), np.float32) * np.float32(size**-0.5)
    weights = [onnx.numpy_helper.from_array(v, f"weight{n}") for n, v in enumerate(values)]
    nodes: list[onnx.NodeProto] = []
    for chain in range(chains):
        names = [f"x{chain}", *(f"y{chain}/{n}" for n in range(1, matrices)), f"y{chain}"]
        for number, (before, after) in enumerate(pairwise(names)):
            read = [before, f"weight{number}"]
            nodes.append(onnx.helper.make_node("MatMul", read, [after], f"{after}/product"))
    inputs, outputs = (
        [onnx.helper.make_tensor_value_info(f"{end}{n}", kind, (1, size)) for n in range(chains)]
        for end in "xy"
    )
    return _model(onnx.helper.make_graph(nodes, "vectors", inputs, outputs, weights))


def _model(graph: onnx.GraphProto) -> onnx.ModelProto:
    opset = [onnx.helper.make_opsetid("", _OPSET)]
    return onnx.helper.make_model(graph, opset_imports=opset, ir_version=_IR_VERSION)
