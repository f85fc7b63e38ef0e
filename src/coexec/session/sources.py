"""A model as a program gives it: for ONNX Runtime, for another process, and what its file says."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxruntime.capi.onnxruntime_pybind11_state import (
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    NoSuchFile,
)

from coexec.errors import ModelError
from coexec.frontend.digest import serialized, unreadable

# Imports ONNX, in some 30 ms: with coexec, and not with the first session, which answers at once.
from coexec.frontend.structure import check_structure, without_weights
from coexec.ort import both
from coexec.session.options import may_give_weights
from coexec.workbench.given import ZOO

__all__ = ["for_ort_constructor", "open_inputs", "portable", "with_values"]


def for_ort_constructor(source: Any, checked: bool) -> str | bytes:
    """The model as ONNX Runtime's constructor takes it.

    Args:
        checked: its structure is checked before.

    Raises:
        ModelError: the file does not exist, or is no sound model. The former is also of ONNX
            Runtime's own class.
    """
    built = _built(source)
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
    """What ONNX Runtime calls a model that is not sound."""
    kind: type[Exception] = InvalidGraph
    try:
        without_weights(model)
    except ModelError:
        kind = InvalidProtobuf
    return kind if model else InvalidArgument


def is_checked(source: Any, options: Any) -> bool:
    """Whether a model's structure is checked before ONNX Runtime opens it: it can be, unless it is
    in another format than ONNX, or its weights may be handed over beside it."""
    if isinstance(source, str | os.PathLike):
        return not os.fspath(source).endswith(".ort")
    return not may_give_weights(options)


def _built(source: Any) -> Any:
    """The model; one of the zoo is built."""
    if isinstance(source, str) and source.startswith(ZOO):
        from coexec.zoo import build

        return build(source.removeprefix(ZOO))
    return source


def portable(source: Any) -> str | bytes:
    """The model as another process can be told of it."""
    if isinstance(source, bytes | str):
        return source
    return os.fspath(source) if isinstance(source, os.PathLike) else serialized(source)


def with_values(source: Any, values: Mapping[str, Any]) -> bytes:
    """The model with constants in the place of inputs, its weights with it.

    Raises:
        ModelError: it cannot be read.
        UsageError: it has no such input, or the value is none for it.
    """
    import onnx_ir as ir

    from coexec.frontend.fixed import fix
    from coexec.frontend.read import read

    model = read(_built(source))
    fix(model, {}, values, all_known=False)
    return serialized(ir.external_data.load_to_model(model))


def open_inputs(source: str | bytes) -> set[str]:
    """Names of the inputs of which the model itself leaves a dimension open."""
    if isinstance(source, str) and source.startswith(ZOO):
        return set()
    try:
        inputs = without_weights(source).graph.input
    except ModelError:  # whoever opens it reports it
        return set()
    return {
        value.name for value in inputs
        if any(not d.HasField("dim_value") for d in value.type.tensor_type.shape.dim)
    }  # fmt: skip
