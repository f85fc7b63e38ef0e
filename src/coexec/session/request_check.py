"""Checks of a request against a plan, or against the model's inputs and outputs."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from coexec.arguments import check_feeds, check_names
from coexec.arrays import Array
from coexec.errors import InputError
from coexec.exports import is_export
from coexec.session.feeds import as_array, dtype_of, shape_of
from coexec.session.model_source import DeclaredShapes
from coexec.session.signature import NodeArg, Signature, fixed
from coexec.settings import Settings

if TYPE_CHECKING:
    from coexec.graph.graph import Tensor
    from coexec.selection.plan_states import Running


def checked_request(
    running: "Running", output_names: Sequence[str] | None, feeds: Mapping[str, Any]
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


def fits(running: "Running", feeds: Any) -> bool:
    """Whether the feeds have the shapes of a plan's inputs. True if a feed is missing or has no
    shape."""
    try:
        return all(shape_of(feeds[t.name]) == t.shape for t in running.prepared.compiled.inputs)
    except (KeyError, TypeError, ValueError, RuntimeError):
        return True  # `checked_request` raises an error that describes the problem


def why_refused(
    signature: Signature,
    declared: DeclaredShapes,
    output_names: Any,
    feeds: Any,
    settings: Settings,
    because: InputError | None,
) -> InputError | None:
    """An error of coexec that describes an invalid request, which ONNX Runtime has refused; None if
    the checks pass.

    Args:
        because: why a plan has refused the request; None if none has.
    """
    try:
        check_names([arg.name for arg in signature.outputs], output_names)
    except InputError as error:
        return error
    inputs = {arg.name: _tensor(arg, declared.get(arg.name)) for arg in signature.inputs}
    if isinstance(feeds, Mapping):
        inputs = {n: tensor for n, tensor in inputs.items() if n in feeds or not tensor.opaque}
    try:
        check_feeds(inputs, feeds)
    except InputError as error:
        same_names = isinstance(feeds, Mapping) and feeds.keys() == inputs.keys()
        wrong = _wrong_shape(signature, declared, feeds, settings) if same_names else None
        return wrong or because or error
    return because


def _wrong_shape(
    signature: Signature, declared: DeclaredShapes, feeds: Mapping[str, Any], settings: Settings
) -> InputError | None:
    """The error of `check_feeds` with the right remedy, if it concerns a shape."""
    for arg in signature.inputs:
        try:
            array = np.asarray(feeds.get(arg.name))
        except Exception:  # the object's own conversion may raise any exception
            return None
        sizes = declared.get(arg.name)
        tensor = _tensor(arg, sizes)
        if tensor.opaque:
            continue
        if array.dtype != tensor.dtype:
            return None
        if differing := _differing(array.shape, arg):
            text = f"input {arg.name!r} has shape {list(array.shape)}, {_taken(arg, settings)}"
            # Only sizes that the session's options fix may be others for a plan.
            same_rank = sizes if sizes is not None and len(sizes) == array.ndim else ()
            is_open = bool(same_rank) and all(same_rank[axis] is None for axis in differing)
            if is_open and settings.plan is None:
                text += f"; for other shapes load the model with shapes={{{arg.name!r}: ...}}"
            return InputError(text)
    return None


def _differing(shape: Sequence[int], arg: NodeArg) -> Sequence[int]:
    """The axes in which the model does not take a shape; all axes if the ranks differ."""
    if len(shape) != len(arg.shape):
        return range(max(len(shape), 1))
    pairs = enumerate(zip(shape, arg.shape, strict=True))
    return [axis for axis, (size, taken) in pairs if isinstance(taken, int) and size != taken]


def _taken(arg: NodeArg, settings: Settings) -> str:
    """The shape that model or export takes, and the shape of its plan if that is another one."""
    taken = _text(arg.shape)
    plan = settings.plan
    if plan is None:
        return f"the model takes {taken}"
    made_for = _text(fixed(arg, settings.shapes).shape)
    if plan.path and is_export(Path(plan.path).parent):
        what, owner = "the export", "its plan"
    else:
        what, owner = "the model", plan.title
    return f"{what} takes {taken}" + (f"; {owner} is for {made_for}" if made_for != taken else "")


def _text(sizes: Sequence[Any]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in sizes)}]"


def _tensor(arg: NodeArg, declared: Sequence[Any] | None) -> "Tensor":
    """An input that ONNX Runtime describes, as a tensor; opaque if only ONNX Runtime can check
    it."""
    from coexec.graph.graph import Tensor

    dtype = dtype_of(arg.type) if re.fullmatch(r"tensor\(\w+\)", arg.type) else None
    # ONNX Runtime reports no dimensions for a scalar, and for a tensor of unknown rank.
    if dtype is None or (not arg.shape and declared is None):
        return Tensor(arg.name, (), arg.type, opaque=True)
    return Tensor(arg.name, tuple(d if isinstance(d, int) else -1 for d in arg.shape), str(dtype))
