"""Small ONNX models for tests, with the structures of real ones: branches, residuals, padding."""

import numpy as np
import onnx
from onnx import helper, numpy_helper


def tensor_info(name: str, shape: list[int | str], kind: int = 1) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def from_nodes(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto],
    outputs: list[onnx.ValueInfoProto],
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(w, n) for n, w in (weights or {}).items()]
    graph = helper.make_graph(nodes, "small", inputs, outputs, initializers)
    imports = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def branches(width: int = 3, channels: int = 16, size: int = 20) -> onnx.ModelProto:
    """``width`` convolution branches after a stem, each with a residual, joined by Concat."""
    rng = np.random.default_rng(0)
    weights: dict[str, np.ndarray] = {}

    def conv(source: str, name: str, inner: int) -> onnx.NodeProto:
        scale = (2 / (9 * inner)) ** 0.5
        shape = (channels, inner, 3, 3)
        weights[f"{name}.w"] = (rng.standard_normal(shape) * scale).astype(np.float32)
        weights[f"{name}.b"] = (rng.standard_normal(channels) * 0.1).astype(np.float32)
        inputs = [source, f"{name}.w", f"{name}.b"]
        return helper.make_node("Conv", inputs, [name], name, pads=[1] * 4)

    nodes = [conv("x", "stem", 3), helper.make_node("Relu", ["stem"], ["stem.r"], "stem.relu")]
    for b in range(width):
        nodes += [
            conv("stem.r", f"b{b}.a", channels),
            helper.make_node("Relu", [f"b{b}.a"], [f"b{b}.ar"], f"b{b}.relu"),
            conv(f"b{b}.ar", f"b{b}.b", channels),
            helper.make_node("Add", [f"b{b}.b", "stem.r"], [f"b{b}.out"], f"b{b}.add"),
        ]
    joined = [f"b{b}.out" for b in range(width)]
    nodes += [
        helper.make_node("Concat", joined, ["joined"], "concat", axis=1),
        helper.make_node(
            "MaxPool", ["joined"], ["pool"], "pool", kernel_shape=[2, 2], strides=[2, 2]
        ),
        helper.make_node("GlobalAveragePool", ["pool"], ["mean"], "mean"),
        helper.make_node("Flatten", ["mean"], ["y"], "flatten"),
    ]
    shape = [1, width * channels]
    return from_nodes(
        nodes,
        [tensor_info("x", [1, 3, size, size])],
        [tensor_info("y", shape), tensor_info("joined", [1, width * channels, size, size])],
        weights,
    )
