"""Checks of a request against a plan, or against the model's inputs and outputs."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from coexec.arguments import check_feeds, check_names
from coexec.arrays import Array
from coexec.errors import InputError
from coexec.graph.graph import Tensor
from coexec.selection.plan_selector import Running
from coexec.session.feeds import as_array, dtype_of, shape_of
from coexec.session.signature import Signature

__all__ = ["asked_of", "fit", "is_dynamic", "why_not"]


def asked_of(
    running: Running, output_names: Sequence[str] | None, feeds: Mapping[str, Any]
) -> tuple[list[str], dict[str, Array]]:
    """The names of the requested outputs and the feeds as arrays, both checked against a plan.

    Raises:
        InputError: the plan has no such output, or does not take these feeds.
    """
    compiled = running.prepared.compiled
    names = check_names([t.name for t in compiled.outputs], output_names)
    inputs = {t.name: t for t in compiled.inputs}
    if isinstance(feeds, Mapping):
        feeds = {
            name: as_array(fed, inputs[name].dtype) if name in inputs else fed
            for name, fed in feeds.items()
        }
    return names, check_feeds(inputs, feeds)


def fit(running: Running, feeds: Any) -> bool:
    """Whether the feeds have the shapes of a plan's inputs. True if a feed is missing or has no
    shape."""
    try:
        return all(shape_of(feeds[t.name]) == t.shape for t in running.prepared.compiled.inputs)
    except (KeyError, TypeError, ValueError, RuntimeError):
        return True  # `asked_of` raises an error that describes the problem


def is_dynamic(arg: Any, shapes: Mapping[str, Any]) -> bool:
    """Whether an input's shape is unknown before the first request."""
    return arg.name not in shapes and any(
        not isinstance(d, int) and d not in shapes for d in arg.shape
    )


def why_not(signature: Signature, output_names: Any, feeds: Any) -> InputError | None:
    """An error of coexec that describes an invalid request, which ONNX Runtime has refused; None if
    the checks pass."""
    tensors = [_tensor(arg) for arg in signature.inputs]
    try:
        check_names([arg.name for arg in signature.outputs], output_names)
        check_feeds({t.name: t for t in tensors if t is not None}, feeds)
    except InputError as error:
        return error
    return None


def _tensor(arg: Any) -> Tensor | None:
    """An input that ONNX Runtime describes, as a tensor; None for a type that NumPy lacks."""
    dtype = dtype_of(arg.type) if re.fullmatch(r"tensor\(\w+\)", arg.type) else None
    if dtype is None:
        return None
    shape = tuple(d if isinstance(d, int) else -1 for d in arg.shape)
    return Tensor(arg.name, shape, str(dtype))
