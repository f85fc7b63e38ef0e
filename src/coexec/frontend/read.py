"""Read an ONNX model from a path, bytes or a ModelProto, and refuse what cannot be run."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir

from coexec.errors import ModelError, first_line
from coexec.frontend.digest import unreadable
from coexec.frontend.external import attach
from coexec.frontend.quiet import quiet
from coexec.frontend.sparse import with_dense_weights
from coexec.frontend.types import hide_maps

__all__ = ["ModelSource", "read"]

ModelSource = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model
"""What a model can be loaded from. A string of the form "zoo:NAME" is resolved by the caller."""

_ANY_VERSION = 2**31
"""Versions of operator sets are below."""


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
    _check_weights(model)
    _drop_default_inputs(model)
    for value in (*model.graph.inputs, *model.graph.outputs):
        _make_dynamic(value)
    return model


def _open(path: Path) -> ir.Model:
    try:
        mode = path.stat().st_mode
        if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode):
            raise OSError(0, "it is no file but a pipe or device")
        content = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        proto = onnx.load_model_from_string(content)
    except Exception:
        raise ModelError(_damaged(repr(str(path)), len(content))) from None
    model = _deserialize(proto, repr(str(path)), len(content))
    attach(model, path)
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
    attach(model, None)
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
    broken = next(_broken_texts(proto), None)
    if broken is not None:
        raise ModelError(f"{what} ({size} bytes) is damaged: {broken!r} is no text in UTF-8; "
                         f"export or download it again")  # fmt: skip
    _check_names(proto.graph, what)
    try:
        with quiet():
            return ir.from_proto(hide_maps(with_dense_weights(proto)))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{what} ({size} bytes) is not a valid ONNX model: {_reason(error)}; "
                         f"export or download it again") from None  # fmt: skip


def _broken_texts(message: Any) -> Iterator[bytes]:
    """Texts that are not UTF-8, at any depth: protobuf hands these out as bytes."""
    if isinstance(message, onnx.TensorProto):  # to list its fields would copy its values
        fields: list[Any] = [message.name, message.external_data]
    else:
        fields = [v for f, v in message.ListFields() if f.type in (f.TYPE_STRING, f.TYPE_MESSAGE)]
    for field in fields:
        single = isinstance(field, str | bytes) or hasattr(field, "ListFields")
        for value in [field] if single else field:
            if isinstance(value, bytes):
                yield value
            elif not isinstance(value, str):
                yield from _broken_texts(value)


def _reason(error: BaseException) -> str:
    """What is behind an error: onnx_ir wraps it once for each level of the model."""
    while (behind := error.__cause__ or error.__context__) is not None:
        error = behind
    return first_line(error)


def _check_names(graph: onnx.GraphProto, what: str) -> None:
    """Every value is made once and before it is read; outputs are named once."""
    if "" in _given(graph):
        raise ModelError(f"{what} has an input or weight without a name; export it again")
    known = _check_order(graph, set(), what)
    listed = [v.name for v in graph.output]
    for name in listed:
        if name not in known or not name:
            raise ModelError(f"{what} has the output {name!r}, which nothing computes; export it "
                             f"again")  # fmt: skip
        if listed.count(name) > 1:
            raise ModelError(f"{what} lists the output {name!r} twice; export it with each once")


def _given(graph: onnx.GraphProto) -> set[str]:
    """Names of inputs and weights."""
    weights = {t.name for t in graph.initializer} | {
        t.values.name for t in graph.sparse_initializer
    }
    return weights | {v.name for v in graph.input}


def _check_order(graph: onnx.GraphProto, outer: set[str], what: str) -> set[str]:
    """The names that are known at the end of ``graph``, after a look into its bodies."""
    known = outer | _given(graph)
    for node in graph.node:
        for name in node.input:
            if name and name not in known:
                raise ModelError(
                    f"{what}: the {node.op_type!r} node {node.name!r} reads {name!r}, which is no "
                    f"input or weight and which no earlier node computes; export the model again"
                )
        for attribute in node.attribute:
            for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                inside = _check_order(body, known, what)
                lost = next((v.name for v in body.output if v.name not in inside), None)
                if lost is not None:
                    raise ModelError(
                        f"{what}: a body of the {node.op_type!r} node {node.name!r} has the output "
                        f"{lost!r}, which nothing computes; export the model again"
                    )
        known.update(node.output)
    return known


def _drop_default_inputs(model: ir.Model) -> None:
    # Before IR version 4 every weight was also listed as an input that a caller could override.
    inputs = model.graph.inputs
    for value in [v for v in inputs if v.name in model.graph.initializers]:
        inputs.remove(value)


def _make_dynamic(value: ir.Value) -> None:
    """Some exporters write an unknown dimension as -1."""
    if value.shape is not None and any(isinstance(d, int) and d < 0 for d in value.shape):
        dims = [None if isinstance(d, int) and d < 0 else d for d in value.shape]
        value.shape = ir.Shape(dims)


def _check_operators(model: ir.Model) -> None:
    """Every operator is of a domain that the model imports, in a version that can be.

    Whether there is such an operator, ONNX Runtime says.
    """
    functions = {(f.domain, f.name) for f in model.functions.values()}
    for node in model.graph.all_nodes():
        domain = "" if node.domain == "ai.onnx" else node.domain
        if (domain, node.op_type) in functions:
            continue
        version = node.version or model.opset_imports.get(domain)
        at = f"node {node.name!r}" if node.name else f"the node computing {_first_output(node)!r}"
        if version is None:
            raise ModelError(
                f"{at} uses {node.op_type!r} of domain {node.domain!r}, which the model does not "
                f"import; add the domain's version to its opset imports"
            )
        if not 0 < version < _ANY_VERSION:
            raise ModelError(f"{at} is of version {version} of domain {node.domain!r}, which is "
                             f"no version; export the model or download it again")  # fmt: skip


def _check_weights(model: ir.Model) -> None:
    """Every weight in the model itself has as many values as its shape says."""
    for value in model.graph.initializers.values():
        tensor = value.const_value
        if tensor is None or isinstance(tensor, ir.ExternalTensor):
            continue  # `attach` has looked at the files
        try:
            tensor.numpy()
        except Exception as error:
            raise ModelError(
                f"weight {value.name!r} of shape {tensor.shape} does not hold what it should: "
                f"{first_line(error)}; export the model or download it again"
            ) from None


def _first_output(node: ir.Node) -> str:
    return next((v.name for v in node.outputs if v.name), "?")
