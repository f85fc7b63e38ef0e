"""Reads the network of a module from its ONNX text: the only kernel file that imports onnx."""

import onnx
import onnx_ir as ir

from coexec.arrays import Array
from coexec.engines.kernels.base import Node
from coexec.engines.kernels.network import DeviceGraph
from coexec.graph.graph import Tensor
from coexec.lowering.module import Module
from coexec.model.operators import operator_of

__all__ = ["read_network"]


def read_network(module: Module) -> DeviceGraph:
    """The operators of a module, one node each."""
    model = ir.serde.deserialize_model(onnx.load_model_from_string(module.proto))
    graph = model.graph
    constants: dict[str, Array] = dict(module.weights)
    tensors = {t.name: t for t in (*module.inputs, *module.outputs)}
    for name, value in graph.initializers.items():
        tensor = value.const_value
        if tensor is None:
            continue
        if name not in constants:
            constants[name] = tensor.numpy()
        tensors[name] = Tensor(name, tuple(tensor.shape.numpy()), tensor.dtype.numpy().name, True)
    for node in graph:
        for value in node.outputs:
            shape, dtype = value.shape, value.dtype
            if value.name and value.name not in tensors and shape is not None and dtype is not None:
                size = tuple(shape.numpy())
                tensors[value.name] = Tensor(value.name, size, dtype.numpy().name)
    return DeviceGraph(
        tuple(Node(operator_of(node)) for node in graph),
        tensors,
        constants,
        tuple(t.name for t in module.inputs),
        tuple(t.name for t in module.outputs),
    )
