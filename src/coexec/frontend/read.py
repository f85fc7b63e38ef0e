"""Read an ONNX model from a path, bytes or a ModelProto, and refuse what cannot be run."""

import os
from collections.abc import Iterable
from pathlib import Path

import onnx
import onnx_ir as ir

from coexec.errors import ModelError
from coexec.frontend.digest import unreadable

__all__ = ["ModelSource", "read"]

ModelSource = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model
"""What a model can be loaded from. A string of the form "zoo:NAME" is resolved by the caller."""


def read(source: ModelSource) -> ir.Model:
    """The model as it stands in ``source``, checked but not changed.

    Raises:
        ModelError: not an ONNX model, unknown operators, or external data outside its folder.
    """
    if isinstance(source, ir.Model):
        model = source.clone()
    elif isinstance(source, (bytes, onnx.ModelProto)):
        model = _parse(source)
    else:
        model = _open(Path(source))
    _check_operators(model)
    return model


def _open(path: Path) -> ir.Model:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        proto = onnx.load_model_from_string(content)
    except Exception:
        raise ModelError(_damaged(repr(str(path)), len(content))) from None
    model = _deserialize(proto, repr(str(path)), len(content))
    _check_external(model, path)
    return model


def _parse(source: bytes | onnx.ModelProto) -> ir.Model:
    if isinstance(source, onnx.ModelProto):
        model = _deserialize(source, "the ModelProto", source.ByteSize())
    else:
        try:
            proto = onnx.load_model_from_string(source)
        except Exception:
            raise ModelError(_damaged("the model given as bytes", len(source))) from None
        model = _deserialize(proto, "the model given as bytes", len(source))
    _check_external(model, None)
    return model


def _damaged(what: str, size: int) -> str:
    return (
        f"{what} ({size} bytes) is not an ONNX model or is cut off: its protobuf cannot be "
        f"decoded; export or download it again"
    )


def _deserialize(proto: onnx.ModelProto, what: str, size: int) -> ir.Model:
    if not proto.graph.node or not proto.graph.output or not proto.opset_import:
        raise ModelError(
            f"{what} ({size} bytes) is not a runnable ONNX model: it has {len(proto.graph.node)} "
            f"nodes, {len(proto.graph.output)} outputs and {len(proto.opset_import)} opset "
            f"imports, and needs at least one of each; export or download it again"
        )
    _check_names(proto.graph, what)
    try:
        return ir.from_proto(proto)
    except Exception as error:
        raise ModelError(f"{what} ({size} bytes) is not a valid ONNX model: {error}; export or "
                         f"download it again") from None  # fmt: skip


def _check_names(graph: onnx.GraphProto, what: str) -> None:
    """Every value is made once and before it is read; outputs are named once."""
    known = {t.name for t in graph.initializer} | {t.values.name for t in graph.sparse_initializer}
    known.update(v.name for v in graph.input)
    if "" in known:
        raise ModelError(f"{what} has an input or weight without a name; export it again")
    for node in graph.node:
        for name in node.input:
            if name and name not in known:
                raise ModelError(
                    f"{what}: {node.op_type} node {node.name!r} reads {name!r}, which is no input "
                    f"or weight and which no earlier node computes; export the model again"
                )
        known.update(node.output)
    listed = [v.name for v in graph.output]
    for name in listed:
        if name not in known or not name:
            raise ModelError(f"{what} has the output {name!r}, which nothing computes; export it "
                             f"again")  # fmt: skip
        if listed.count(name) > 1:
            raise ModelError(f"{what} lists the output {name!r} twice; export it with each once")


def _tensors(graph: ir.Graph) -> Iterable[ir.TensorProtocol]:
    for value in graph.initializers.values():
        if value.const_value is not None:
            yield value.const_value
    for node in graph.all_nodes():
        for attribute in node.attributes.values():
            if attribute.type == ir.AttributeType.TENSOR:
                yield attribute.value
            elif attribute.type == ir.AttributeType.TENSORS:
                yield from attribute.value
            elif attribute.type == ir.AttributeType.GRAPH:
                yield from (v.const_value for v in attribute.value.initializers.values()
                            if v.const_value is not None)  # fmt: skip


def _check_external(model: ir.Model, path: Path | None) -> None:
    """Point external weights at the model's folder, after making sure that they lie inside it."""
    folder = path.parent.resolve() if path else None
    for tensor in _tensors(model.graph):
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        location = str(tensor.location)
        if folder is None:
            raise ModelError(
                f"weight {tensor.name!r} lies in the external file {location!r}, but the model "
                f"was given as an object without a folder; load it from its path instead"
            )
        file = (folder / location).resolve()
        if os.path.isabs(location) or not file.is_relative_to(folder):
            raise ModelError(
                f"weight {tensor.name!r} points to {location!r}, outside of the model's folder "
                f"{str(folder)!r}; refused, since such a path could read any file of the machine: "
                f"move the data beside the model and save it again"
            )
        need = (tensor.offset or 0) + (tensor.length or tensor.nbytes)
        have = file.stat().st_size if file.is_file() else -1
        if have < need:
            found = "missing" if have < 0 else f"only {have} bytes long"
            raise ModelError(
                f"weight {tensor.name!r} needs {need} bytes of {str(file)!r}, which is {found}; "
                f"copy the model together with all of its data files"
            )
        tensor.base_dir = str(folder)


def _check_operators(model: ir.Model) -> None:
    functions = {(f.domain, f.name) for f in model.functions.values()}
    for node in model.graph.all_nodes():
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) in functions:
            continue
        version = node.version or model.opset_imports.get(domain)
        at = f"node {node.name!r}" if node.name else f"the node computing {_first_output(node)!r}"
        if version is None:
            raise ModelError(
                f"{at} uses {node.op_type} of domain {node.domain!r}, which the model does not "
                f"import; coexec runs the standard ONNX operators: export it without custom ones"
            )
        if not onnx.defs.has(node.op_type, max_inclusive_version=version, domain=domain):
            where = f"domain {node.domain!r}" if domain else f"opset {version}"
            raise ModelError(
                f"{at} uses the unknown operator {node.op_type!r} ({where}); coexec runs the "
                f"standard ONNX operators up to opset {onnx.defs.onnx_opset_version()}: export "
                f"the model without custom operators"
            )


def _first_output(node: ir.Node) -> str:
    return next((v.name for v in node.outputs if v.name), "?")
