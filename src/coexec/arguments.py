"""Checks of arguments of a session that are no settings (`coexec.settings`). A check that returns
a value returns the argument in the form that the program uses.

All raise UsageError (`check_feeds` and `check_names` InputError) with the value that was passed and
the values that are allowed. None reads a file or opens a device.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from coexec.errors import InputError, UsageError, first_line, nearest
from coexec.settings import check_path

if TYPE_CHECKING:
    from coexec.graph.graph import Tensor


def check_keywords(
    keywords: Iterable[str], function: Callable[..., Any], further: Sequence[str]
) -> None:
    """Check that all keywords are parameters of a constructor, or among ``further``."""
    parameters = inspect.signature(function).parameters.values()
    allowed = [p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD]
    allowed += further
    if unknown := [name for name in keywords if name not in allowed]:
        named = ", ".join(f"{name!r}{nearest(name, allowed)}" for name in unknown)
        owner = function.__qualname__.removesuffix(".__init__")
        raise UsageError(f"{owner} takes no {named}; it takes {', '.join(allowed)}")


def check_model(model: Any) -> Any:
    """The model: a path, serialized bytes, or a model object of onnx or onnx_ir."""
    kinds = [
        getattr(sys.modules[module], name)  # a caller with such a model has imported its module
        for module, name in (("onnx", "ModelProto"), ("onnx_ir", "Model"))
        if module in sys.modules
    ]
    if isinstance(model, (bytes, *kinds)):
        return model
    if isinstance(model, str | os.PathLike):
        return check_path(model, "the model's path")
    raise UsageError(
        f"the model is a {type(model).__name__}; give a path, bytes, "
        f"onnx.ModelProto or onnx_ir.Model"
    )


def check_providers(providers: Any) -> None:
    """Check ``providers``: the values that onnxruntime.InferenceSession accepts."""
    if providers is None:
        return
    names = list(providers) if isinstance(providers, Sequence) else [None]
    names = [p[0] if isinstance(p, tuple) and p else p for p in names]
    if isinstance(providers, str) or any(not isinstance(name, str) for name in names):
        raise UsageError(
            f"providers={providers!r}; give a list of names, such as "
            f"['CPUExecutionProvider'], or leave it out"
        )


def check_names(outputs: Sequence[str], requested: Any) -> list[str]:
    """The names of the requested outputs; without a request, the names of all outputs.

    Raises:
        InputError: the model has no output with such a name.
    """
    if isinstance(requested, str):
        raise InputError(f"output_names is the string {requested!r}; give a list of names")
    for name in requested or ():
        if name not in outputs:
            raise InputError(
                f"the model has no output {name!r}; it has {', '.join(map(repr, outputs))}"
            )
    return list(requested or outputs)


def check_feeds(inputs: Mapping[str, "Tensor"], feeds: Mapping[str, Any]) -> dict[str, Any]:
    """The feeds as contiguous arrays.

    A dimension of -1 in ``inputs`` accepts any size.

    Raises:
        InputError: an input is missing, unknown, or has a wrong type or shape.
    """
    if not isinstance(feeds, Mapping):
        raise InputError(
            f"the feeds are a {type(feeds).__name__}; give a dict from input names to arrays"
        )
    listed = ", ".join(f"{t.name!r} {list(t.shape)} {t.dtype}" for t in inputs.values())
    missing, unknown = inputs.keys() - feeds.keys(), feeds.keys() - inputs.keys()
    if missing or unknown:
        faults = [f"input {min(missing)!r} is missing"] if missing else []
        faults += [f"the model has no input {min(unknown, key=str)!r}"] if unknown else []
        raise InputError(f"{' and '.join(faults)}; the model takes {listed}")
    return {name: _array(tensor, feeds[name]) for name, tensor in inputs.items()}


def _same(shape: tuple[int, ...], declared: tuple[int, ...]) -> bool:
    return shape == declared or (
        len(shape) == len(declared)
        and all(b in (a, -1) for a, b in zip(shape, declared, strict=True))
    )


def _array(tensor: "Tensor", fed: Any) -> Any:
    name = tensor.name
    if tensor.opaque:  # checked by ONNX Runtime itself
        return fed
    try:
        array = np.asarray(fed)
    except Exception as error:  # the object's own conversion may raise any exception
        raise InputError(f"input {name!r} is not an array: {first_line(error)}") from None
    if array.dtype != tensor.dtype:
        raise InputError(
            f"input {name!r} has dtype {array.dtype}, the model takes "
            f"{tensor.dtype}; use .astype({tensor.dtype!r})"
        )
    if not _same(array.shape, tensor.shape):
        raise InputError(
            f"input {name!r} has shape {list(array.shape)}, the model takes "
            f"{list(tensor.shape)}; for other shapes load the model with "
            f"shapes={{{name!r}: ...}}"
        )
    # np.ascontiguousarray would add an axis to a scalar, so contiguous arrays are not converted.
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)
