"""Reads an ONNX model from a path, bytes or a ModelProto, and refuses models that cannot be run."""

import io
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import onnx
import onnx_ir as ir

from coexec.arrays import aligned_bytes
from coexec.errors import ModelError, first_line
from coexec.model.folders import ModelFolders, opened
from coexec.model.model import note_overridable
from coexec.model.sparse import with_dense_weights
from coexec.model.structure import check_proto, decoded, hollow_source
from coexec.model.types import hide_maps
from coexec.model.weightless import Hollow

ModelSource = str | os.PathLike[str] | bytes | onnx.ModelProto | ir.Model
"""Sources of a model. A string of the form "zoo:NAME" is resolved by the caller."""

_ANY_VERSION = 2**31
"""Versions of operator sets are below this."""
_DEFAULTS_SINCE = 4
"""IR version from which a weight that is also an input is only that input's default."""


def read(source: ModelSource) -> ir.Model:
    """The model in ``source``, checked; weights that nothing reads are left out.

    Nodes are sorted. Weights that are also listed as inputs, which a feed may replace, are weights;
    `coexec.model.model.Model.overridable` names them.

    Raises:
        ModelError: `coexec.model.structure` refuses the model, or it has unknown operators.
    """
    model = source.clone() if isinstance(source, ir.Model) else _parse(source)
    _drop_default_inputs(model)
    _check_operators(model)
    for value in (*model.graph.inputs, *(v for node in model.graph for v in node.outputs)):
        _make_dynamic(value)
    model.graph.sort()
    return model


def _parse(source: str | os.PathLike[str] | bytes | onnx.ModelProto) -> ir.Model:
    if isinstance(source, onnx.ModelProto):
        check_proto(source, "the ModelProto", None)
        model = _deserialize(source, "the ModelProto")
        _drop_unused_weights(model)
        return model
    what, path, small = hollow_source(source)
    proto = decoded(small.content, what)
    check_proto(proto, what, path, small)
    with _opened(source) as file:
        weights = _read_weights(proto, small, file, what)
    model = _deserialize(proto, what)
    for name, tensor in weights.items():
        model.graph.initializers[name].const_value = tensor
    _drop_unused_weights(model)
    if path is not None:
        _attach(model, path)
    return model


def _opened(source: str | os.PathLike[str] | bytes) -> BinaryIO:
    return io.BytesIO(source) if isinstance(source, bytes) else open(opened(Path(source)), "rb")


def _read_weights(
    proto: onnx.ModelProto, small: Hollow, file: BinaryIO, what: str
) -> dict[str, ir.TensorProtocol]:
    """The weights that were left out of ``proto``, each in memory once, where its numbers have
    whole bytes. The others are put into ``proto``.

    Raises:
        ModelError: the file has become shorter.
    """
    weights: dict[str, ir.TensorProtocol] = {}
    for initializer, part in zip(proto.graph.initializer, small.raw or (), strict=False):
        if part is None:
            continue
        data = aligned_bytes(part.stop - part.start)
        file.seek(part.start)
        if file.readinto(data.data) != data.nbytes:  # type: ignore[attr-defined]
            raise ModelError(
                f"{what} changes while it is read; wait until it is written completely"
            )
        dtype = ir.DataType(initializer.data_type)
        if dtype == ir.DataType.STRING or dtype.bitwidth < 8:
            initializer.raw_data = data.tobytes()
            continue
        array = data.view(dtype.numpy()).reshape(tuple(initializer.dims))
        weights[initializer.name] = ir.Tensor(array, dtype, name=initializer.name)
    return weights


def _attach(model: ir.Model, path: Path) -> None:
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
                value.const_value = _in_memory(locate(value.const_value))
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
        return _in_memory(locate(tensor)) if isinstance(tensor, ir.ExternalTensor) else tensor

    name = attribute.name
    if attribute.is_ref():
        return
    if attribute.type == ir.AttributeType.TENSOR:
        if isinstance(attribute.value, ir.ExternalTensor):
            node.attributes[name] = ir.AttrTensor(name, read(attribute.value))
    elif attribute.type == ir.AttributeType.TENSORS:
        node.attributes[name] = ir.AttrTensors(name, [read(t) for t in attribute.value])


def _in_memory(tensor: ir.ExternalTensor) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)


def _deserialize(proto: onnx.ModelProto, what: str) -> ir.Model:
    if not proto.graph.output or not proto.opset_import:
        raise ModelError(
            f"{what} is not a runnable ONNX model: it has {len(proto.graph.output)} outputs and "
            f"{len(proto.opset_import)} opset imports, and needs at least one of each; export or "
            f"download it again"
        )
    if any(not v.name for v in proto.graph.input):
        raise ModelError(f"{what} has an input without a name; export it again")
    try:
        with quiet():
            shown = hide_maps(with_dense_weights(proto))
            model = ir.from_proto(shown)
            for value, info in zip(model.graph.inputs, shown.graph.input, strict=True):
                # An output of the same name, which may have no type, has replaced this declaration.
                ir.serde.deserialize_value_info_proto(info, value)
            return model
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"{what} is not a valid ONNX model: {_reason(error)}; export or download it again"
        ) from None


@contextmanager
def quiet() -> Iterator[None]:
    """Silence logging in the ``with`` block: steps that an optimizer leaves out, with stack traces,
    and advice on damaged models."""
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    try:
        logger.setLevel(logging.CRITICAL)
        yield
    finally:
        logger.setLevel(level)


def _reason(error: BaseException) -> str:
    """The innermost error: onnx_ir wraps it once for each level of the model."""
    while (behind := error.__cause__ or error.__context__) is not None:
        error = behind
    return first_line(error)


def _drop_unused_weights(model: ir.Model) -> None:
    """Remove weights that nothing reads: they may be damaged, and ONNX Runtime ignores them,
    too."""
    weights = model.graph.initializers
    kept = {v.name for v in (*model.graph.inputs, *model.graph.outputs)}
    for name, value in list(weights.items()):
        if name not in kept and not value.uses():
            del weights[name]


def _drop_default_inputs(model: ir.Model) -> None:
    """Remove weights from the inputs, and note those that a feed may replace.

    Before IR version 4 every weight was listed, and none could be replaced.
    """
    inputs, weights = model.graph.inputs, model.graph.initializers
    defaults = [value for value in inputs if value.name in weights]
    for value in defaults:
        inputs.remove(value)
    replaceable = (model.ir_version or 0) >= _DEFAULTS_SINCE
    note_overridable(model, [v.name or "" for v in defaults] if replaceable else [])


def _make_dynamic(value: ir.Value) -> None:
    """Make sizes below zero unknown. Tensors of size 0 exist."""
    if value.shape is not None and any(isinstance(d, int) and d < 0 for d in value.shape):
        dims = [None if isinstance(d, int) and d < 0 else d for d in value.shape]
        value.shape = ir.Shape(dims)


def _check_operators(model: ir.Model) -> None:
    """Check that every operator is of a domain that the model imports, in a possible version.

    ONNX Runtime checks whether there is such an operator.
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
            raise ModelError(
                f"{at} is of version {version} of domain {node.domain!r}, which is "
                f"no version; export the model or download it again"
            )


def _first_output(node: ir.Node) -> str:
    return next((v.name for v in node.outputs if v.name), "?")
