"""Small models for measuring or trying an engine, as modules that it compiles."""

import onnx

from coexec.graph.graph import Tensor
from coexec.lowering.module import Module

__all__ = ["products"]

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
    opset = [onnx.helper.make_opsetid("", _OPSET)]
    model = onnx.helper.make_model(graph, opset_imports=opset, ir_version=_IR_VERSION)
    return Module(model.SerializeToString(), {}, (before,), (after,), ("MatMul",) * len(nodes))
