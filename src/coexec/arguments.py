"""Checks of the arguments of a session and of `load`. A check that returns a value returns the
argument in the form that the program uses.

All raise UsageError (`check_feeds` and `check_names` InputError) with the value that was passed and
the values that are allowed. None reads a file or opens a device.
"""

import inspect
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from coexec.cache import Cache
from coexec.defaults import Mode, Waiting
from coexec.errors import InputError, UsageError, first_line, nearest
from coexec.graph.graph import Tensor

__all__ = [
    "check_background",
    "check_cache",
    "check_devices",
    "check_feeds",
    "check_keywords",
    "check_mode",
    "check_model",
    "check_names",
    "check_planner",
    "check_providers",
    "check_replan",
    "check_shapes",
    "check_texts",
    "check_values",
    "check_waiting",
    "check_without",
]

_Array = npt.NDArray[Any]
_WAITING: tuple[str, ...] = get_args(Waiting)
_MODES: tuple[str, ...] = get_args(Mode)


def check_keywords(
    given: Iterable[str], function: Callable[..., Any], others: Sequence[str]
) -> None:
    """Check that all keywords are parameters of a constructor, or among ``others``."""
    parameters = inspect.signature(function).parameters.values()
    allowed = [p.name for p in parameters if p.name != "self" and p.kind is not p.VAR_KEYWORD]
    allowed += others
    if unknown := [name for name in given if name not in allowed]:
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
        return _path(model, "the model's path")
    raise UsageError(
        f"the model is a {type(model).__name__}; give a path, bytes, "
        f"onnx.ModelProto or onnx_ir.Model"
    )


def _path(given: Any, what: str) -> Any:
    text = os.fspath(given)
    if not isinstance(text, str) or "\0" in text:
        raise UsageError(f"{what} is {text!r}; give a text without a zero character")
    return given


def check_cache(cache: Any) -> Cache | Path | str | None:
    """The cache: a folder, an opened cache, or None for the user's cache folder."""
    if cache is None or isinstance(cache, Cache):
        return cache
    if not isinstance(cache, str | os.PathLike):
        raise UsageError(
            f"cache={cache!r} is a {type(cache).__name__}; give the path of a folder "
            f"or a coexec.Cache, or leave it out"
        )
    path: Path | str = _path(cache, "cache")
    return path


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


def check_devices(devices: Any) -> list[str] | None:
    """The names of devices, or None for all devices of the machine."""
    if devices is None:
        return None
    if (
        not isinstance(devices, Sequence)
        or not devices
        or any(not isinstance(name, str) for name in devices)
    ):
        raise UsageError(
            f"devices={devices!r} names no devices; write for example "
            f"['cpu:0', 'cpu:1'], or leave it out"
        )
    return list(devices)


def check_planner(planner: Any, options: Any) -> dict[str, Any]:
    """The options of a planner. Whether the planner has these options is checked later."""
    if not isinstance(planner, str):
        raise UsageError(
            f"planner={planner!r} is a {type(planner).__name__}; give a name, such as 'auto'"
        )
    return _mapping("planner_options", options, "{'seed': 1}")


def check_shapes(shapes: Any) -> dict[str, tuple[int, ...] | int]:
    """Shapes by input name and sizes by name of a dimension, as Python integers."""
    checked: dict[str, tuple[int, ...] | int] = {}
    for name, shape in _mapping("shapes", shapes, "{'x': (1, 3, 224, 224)}").items():
        if _is_integer(shape):
            checked[name] = int(shape)
            continue
        dims: list[Any] = list(shape) if isinstance(shape, Sequence | np.ndarray) else [None]
        if isinstance(shape, str) or any(not _is_integer(d) for d in dims):
            raise UsageError(
                f"shapes[{name!r}] is {shape!r}; give a tuple of integers, such as "
                f"(1, 3, 224, 224), or one for a dimension of that name"
            )
        checked[name] = tuple(int(d) for d in dims)
    return checked


def check_values(values: Any) -> dict[str, Any]:
    """Values by input name, as Python scalars or nested lists, whose text identifies the value."""
    checked: dict[str, Any] = {}
    for name, value in _mapping("values", values, "{'sr': 16000}").items():
        try:
            array = np.asarray(value)
        except ValueError:  # lists of different lengths
            array = np.asarray(None)
        if array.dtype.kind not in "biufUV":
            raise UsageError(
                f"values[{name!r}] is {' '.join(repr(value).split())[:80]}; give a "
                f"number, a text, or an array of them"
            )
        checked[name] = array.tolist()
    return checked


def check_without(passes: Any) -> tuple[str, ...]:
    """Names of passes, sorted. Whether they exist is checked when the model is loaded."""
    if isinstance(passes, str) or not isinstance(passes, Iterable):
        passes = [None]
    names = list(passes)
    if any(not isinstance(name, str) for name in names):
        raise UsageError(
            f"without_passes={passes!r} names no passes; give a list, such as ['fold-constants']"
        )
    return tuple(sorted(set(names)))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def check_texts(what: str, given: Any, example: str) -> dict[str, str]:
    """The argument named ``what``: a mapping from strings to strings."""
    texts = _mapping(what, given, example)
    for key, value in texts.items():
        if not isinstance(value, str):
            raise UsageError(f"{what}[{key!r}] is {value!r}; give a text, as in {what}={example}")
    return texts


def check_engine_options(given: Any) -> dict[str, dict[str, str]]:
    """Options by engine. Whether an engine has these options is checked by the engine."""
    example = "{'opencl': {'precision': 'fp16'}}"
    options_of = _mapping("engine_options", given, example)
    return {
        engine: check_texts(f"engine_options[{engine!r}]", options, "{'precision': 'fp16'}")
        for engine, options in options_of.items()
    }


def _mapping(what: str, given: Any, example: str) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or any(not isinstance(key, str) for key in given):
        raise UsageError(f"{what}={given!r}; give a dict by name, as in {what}={example}")
    return dict(given)


def check_background(background: Any) -> None:
    """Check for True, False or None. A string is refused, because "no" would count as True."""
    if background is not None and not isinstance(background, bool | np.bool_):
        raise UsageError(f"background={background!r}; give True or False")


def check_replan(replan: Any) -> None:
    """Check for a share above zero, or None."""
    number = isinstance(replan, int | float | np.number) and not isinstance(replan, bool)
    if replan is not None and not (number and math.isfinite(replan) and replan > 0):
        raise UsageError(
            f"replan={replan!r}; give a share above 0, such as 0.25 for a quarter, or leave it out"
        )


def check_waiting(waiting: Any) -> None:
    """Check how threads wait for each other: "passive" or "active"."""
    if not isinstance(waiting, str) or waiting not in _WAITING:
        raise UsageError(f"waiting is {waiting!r}; it is {' or '.join(map(repr, _WAITING))}")


def check_mode(mode: Any, planner: str, auto: str) -> None:
    """Check the goal of planning, latency or throughput. Only planner ``auto`` supports both."""
    if not isinstance(mode, str) or mode not in _MODES:
        raise UsageError(f"mode is {mode!r}; it is {' or '.join(map(repr, _MODES))}")
    if mode != "latency" and planner != auto:
        raise UsageError(
            f"mode={mode!r} and planner={planner!r}: a planner lets all devices work "
            f"on one request; leave it out"
        )


def check_names(outputs: Sequence[str], asked: Any) -> list[str]:
    """The names of the requested outputs; without a request, the names of all outputs.

    Raises:
        InputError: the model has no output with such a name.
    """
    if isinstance(asked, str):
        raise InputError(f"output_names is the string {asked!r}; give a list of names")
    for name in asked or ():
        if name not in outputs:
            raise InputError(
                f"the model has no output {name!r}; it has {', '.join(map(repr, outputs))}"
            )
    return list(asked or outputs)


def check_feeds(inputs: Mapping[str, Tensor], feeds: Mapping[str, Any]) -> dict[str, Any]:
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
        what = (
            f"input {min(missing)!r} is missing"
            if missing
            else (f"the model has no input {min(unknown, key=str)!r}")
        )
        raise InputError(f"{what}; the model takes {listed}")
    return {name: _array(tensor, feeds[name]) for name, tensor in inputs.items()}


def _same(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return shape == wanted or (
        len(shape) == len(wanted) and all(b in (a, -1) for a, b in zip(shape, wanted, strict=True))
    )


def _array(tensor: Tensor, fed: Any) -> Any:
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
