"""Reads an ONNX model from a path, bytes or a ModelProto, and refuses models that cannot be run."""

import os
from pathlib import Path

import onnx
import onnx_ir as ir

from coexec.errors import ModelError, first_line
from coexec.model.external import attach
from coexec.model.folders import opened
from coexec.model.model import note_overridable
from coexec.model.onnx_logging import quiet
from coexec.model.sparse import with_dense_weights
from coexec.model.structure import check_proto, decoded
from coexec.model.types import hide_maps
from coexec.model.weightless import hollow, require_encodable

__all__ = ["ModelSource", "read"]

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
    path, small = None, None
    if isinstance(source, onnx.ModelProto):
        what, proto = "the ModelProto", source
    else:
        if isinstance(source, bytes):
            what, content = "the model given as bytes", source
            require_encodable(len(content), what)
        else:
            path = Path(source)
            what, content = repr(str(path)), _content(path)
        proto, small = decoded(content, what), hollow(memoryview(content))
    check_proto(proto, what, path, small)
    model = _deserialize(proto, what)
    _drop_unused_weights(model)
    if path is not None:
        attach(model, path)
    return model


def _content(path: Path) -> bytes:
    with open(opened(path), "rb") as file:
        require_encodable(os.fstat(file.fileno()).st_size, repr(str(path)))
        return file.read()


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
