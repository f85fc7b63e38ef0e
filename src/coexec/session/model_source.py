"""Conversions of a model as a program passes it: for ONNX Runtime, and for another process."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from onnxruntime.capi.onnxruntime_pybind11_state import (
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
)

from coexec.errors import ModelError
from coexec.model.digest import serialized
from coexec.model.folders import unreadable

# Imports ONNX in about 30 ms. It is imported with coexec, so that the first session starts faster.
from coexec.model.structure import check_structure, without_weights
from coexec.model.weightless import require_encodable
from coexec.ort import both
from coexec.research_loader import resolved_model, zoo_name
from coexec.session.options import may_give_weights


def for_ort_constructor(source: Any, checked: bool) -> str | bytes:
    """The model as ONNX Runtime's constructor takes it.

    Args:
        checked: whether its structure is checked first.

    Raises:
        ModelError: the file does not exist, or is no valid model. The error is also of ONNX
            Runtime's own class.
    """
    built = resolved_model(source)
    model: str | bytes = built if isinstance(built, bytes) else ""
    if isinstance(built, str | os.PathLike):
        model = os.fspath(built)
        if not os.path.exists(model):
            missing = unreadable(Path(os.path.abspath(model)), FileNotFoundError())
            raise both(ModelError, NoSuchFile)(str(missing))
    elif not isinstance(built, bytes):
        model = serialized(built)
    if checked:
        try:
            check_structure(model)
        except ModelError as error:
            raise both(ModelError, _kind_of(model))(str(error)) from None
    return model


def _kind_of(model: str | bytes) -> type[Exception]:
    """The error class that ONNX Runtime raises for an invalid model."""
    kind: type[Exception] = InvalidGraph
    try:
        without_weights(model)
    except ModelError:
        kind = InvalidProtobuf
    return kind if model else InvalidArgument


def is_checked(source: Any, options: Any) -> bool:
    """Whether a model's structure is checked before ONNX Runtime opens it.

    It cannot be checked if the model has another format than ONNX, or if the options may hold its
    weights."""
    if isinstance(source, str | os.PathLike):
        return not os.fspath(source).endswith(".ort")
    return not may_give_weights(options)


def portable(source: Any) -> str | bytes:
    """The model in a form that can be sent to another process: a path, "zoo:NAME" or bytes."""
    if isinstance(source, bytes | str):
        return source
    return os.fspath(source) if isinstance(source, os.PathLike) else serialized(source)


class InFiles(NamedTuple):
    """A serialized model whose weights stay in files."""

    content: bytes
    folder: str
    """The folder of these files."""


def in_files(source: Any, values: Mapping[str, Any]) -> InFiles | None:
    """The model with constants in place of some inputs, if it has weights in files of one folder.

    Raises:
        ModelError, UsageError: as for `with_values`.
    """
    from coexec.model.reference_session import folder_of_weights, without_weights

    model = _fixed(source, values)
    folder = folder_of_weights(model)
    if folder is None:
        return None
    proto, others = without_weights(model, in_files=True)
    if others:
        return None
    return InFiles(proto.SerializeToString(), folder)


def with_values(source: Any, values: Mapping[str, Any]) -> bytes:
    """The serialized model, weights included, with constants in place of some inputs.

    Raises:
        ModelError: the model cannot be read, or is too large to be serialized.
        UsageError: the model has no such input, or the value does not fit the input.
    """
    import onnx_ir as ir

    model = _fixed(source, values)
    weights = [value.const_value for value in model.graph.initializers.values()]
    sizes = (t.nbytes for t in weights if t is not None and t.dtype != ir.DataType.STRING)
    require_encodable(sum(sizes), "the model, whose weights are read to fix values")
    return serialized(ir.external_data.load_to_model(model))


def _fixed(source: Any, values: Mapping[str, Any]) -> Any:
    from coexec.model.fixed import fix
    from coexec.model.read import read

    model = read(resolved_model(source))
    fix(model, {}, values, all_known=False)
    return model


DeclaredShapes = Mapping[str, Sequence[int | None] | None]
"""Shapes of a model's inputs as its file declares them, by name: None for an open dimension, and in
place of a shape of unknown rank."""


def declared_shapes(source: str | bytes) -> DeclaredShapes:
    """The shapes of the model's inputs in its file; empty if it cannot be read."""
    if zoo_name(source) is not None:
        return {}
    try:
        inputs = without_weights(source).graph.input
    except ModelError:  # reported when the model is opened
        return {}
    types = {value.name: value.type.tensor_type for value in inputs}
    return {
        name: [d.dim_value if d.HasField("dim_value") else None for d in kind.shape.dim]
        if kind.HasField("shape")
        else None
        for name, kind in types.items()
    }
