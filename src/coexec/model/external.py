"""External weights of a model in memory: pointed at their files, or read from them."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
from onnx import external_data_helper

from coexec.model.folders import ModelFolders

__all__ = ["attach", "embed_in_bodies"]


def attach(model: ir.Model, path: Path) -> None:
    """Point external weights at their files, which `coexec.model.structure` has checked.

    Weights of the graph stay in their files; constants in nodes, bodies and functions are read.

    Args:
        path: of the model as the user named it.

    Raises:
        ModelError: a file may not be read any more.
    """
    folders = ModelFolders(path)

    def locate(tensor: ir.ExternalTensor) -> ir.ExternalTensor:
        name = tensor.name or ""
        file = folders.file(name, os.fspath(tensor.location))
        # Without a base folder, onnx_ir does not restrict which files may be read.
        return ir.ExternalTensor(
            str(file), tensor.offset, tensor.length, tensor.dtype, shape=tensor.shape, name=name
        )

    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = locate(value.const_value)
    for graph in _bodies(model):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _read(locate(value.const_value))
    for node in _nodes(model):
        for attribute in list(node.attributes.values()):
            _read_attribute(node, attribute, locate)


def _nodes(model: ir.Model) -> Iterator[ir.Node]:
    yield from model.graph.all_nodes()
    for function in model.functions.values():
        yield from function.all_nodes()


def _bodies(model: ir.Model) -> Iterator[ir.Graph]:
    """The graphs inside of nodes, at any depth."""
    for node in _nodes(model):
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.GRAPH:
                yield attribute.as_graph()
            elif attribute.type == ir.AttributeType.GRAPHS:
                yield from attribute.as_graphs()


def _read_attribute(
    node: ir.Node, attribute: ir.Attr, locate: Callable[[ir.ExternalTensor], ir.ExternalTensor]
) -> None:
    """Replace external tensors in an attribute by the content of their files."""

    def read(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
        return _read(locate(tensor)) if isinstance(tensor, ir.ExternalTensor) else tensor

    name = attribute.name
    if attribute.is_ref():
        return
    if attribute.type == ir.AttributeType.TENSOR:
        if isinstance(attribute.value, ir.ExternalTensor):
            node.attributes[name] = ir.AttrTensor(name, read(attribute.value))
    elif attribute.type == ir.AttributeType.TENSORS:
        node.attributes[name] = ir.AttrTensors(name, [read(t) for t in attribute.value])


def _read(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)


def embed_in_bodies(nodes: Iterable[onnx.NodeProto], folder: Path) -> None:
    """Read external weights of the bodies of ``nodes`` from ``folder``, whose files coexec wrote.

    When ONNX Runtime saves a model, it moves large constants of bodies there, too.
    """
    for node in nodes:
        for attribute in node.attribute:
            for body in (attribute.g, *attribute.graphs):
                for tensor in body.initializer:
                    if external_data_helper.uses_external_data(tensor):
                        external_data_helper.load_external_data_for_tensor(tensor, str(folder))
                        tensor.data_location = onnx.TensorProto.DEFAULT
                        del tensor.external_data[:]
                embed_in_bodies(body.node, folder)
