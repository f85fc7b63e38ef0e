"""Checks of a request against a plan, or against the model's inputs and outputs."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coexec.arguments import check_feeds, check_names
from coexec.arrays import Array
from coexec.errors import InputError
from coexec.exports import is_export
from coexec.graph.graph import Tensor
from coexec.selection.plan_selector import Running
from coexec.selection.settings import Settings
from coexec.session.feeds import as_array, dtype_of, shape_of
from coexec.session.model_source import declared_shapes, portable
from coexec.session.signature import NodeArg, Signature, fixed

__all__ = ["checked_request", "fits", "why_refused"]


def checked_request(
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


def fits(running: Running, feeds: Any) -> bool:
    """Whether the feeds have the shapes of a plan's inputs. True if a feed is missing or has no
    shape."""
    try:
        return all(shape_of(feeds[t.name]) == t.shape for t in running.prepared.compiled.inputs)
    except (KeyError, TypeError, ValueError, RuntimeError):
        return True  # `checked_request` raises an error that describes the problem


def why_refused(
    signature: Signature,
    output_names: Any,
    feeds: Any,
    source: Any,
    settings: Settings,
) -> InputError | None:
    """An error of coexec that describes an invalid request, which ONNX Runtime has refused; None if
    the checks pass.

    Args:
        source: the session's model.
    """
    declared = declared_shapes(portable(source))
    try:
        check_names([arg.name for arg in signature.outputs], output_names)
        inputs = [_tensor(arg, declared.get(arg.name)) for arg in signature.inputs]
        if isinstance(feeds, Mapping):
            for arg in signature.inputs:
                _check_shape(arg, feeds, declared.get(arg.name), settings)
            inputs = [t for t in inputs if t.name in feeds or not t.opaque]
        check_feeds({t.name: t for t in inputs}, feeds)
    except InputError as error:
        return error
    return None


def _check_shape(
    arg: NodeArg, feeds: Mapping[str, Any], declared: Sequence[Any] | None, settings: Settings
) -> None:
    """Check the shape of one feed. `check_feeds` reports a feed that is missing or has no shape.

    Args:
        declared: the input's sizes in the model's file, where session options fix none of them;
            None if they are unknown.

    Raises:
        InputError: the model takes other shapes.
    """
    try:
        shape = shape_of(feeds[arg.name])
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
        return
    differing = _differing(shape, arg, declared)
    if not differing:
        return
    text = f"input {arg.name!r} has shape {list(shape)}, {_taken(arg, settings)}"
    sizes = declared if declared is not None and len(declared) == len(shape) else ()
    if sizes and settings.plan is None and all(sizes[axis] is None for axis in differing):
        text += f"; for other shapes load the model with shapes={{{arg.name!r}: ...}}"
    raise InputError(text)


def _differing(shape: Sequence[int], arg: NodeArg, declared: Sequence[Any] | None) -> Sequence[int]:
    """The axes in which the model does not take a shape; all axes if the ranks differ."""
    if _is_of_unknown_rank(arg, declared):
        return ()
    if len(shape) != len(arg.shape):
        return range(max(len(shape), 1))
    pairs = enumerate(zip(shape, arg.shape, strict=True))
    return [axis for axis, (size, taken) in pairs if isinstance(taken, int) and size != taken]


def _is_of_unknown_rank(arg: NodeArg, declared: Sequence[Any] | None) -> bool:
    """ONNX Runtime reports no dimensions for a scalar, and for a tensor of unknown rank."""
    return not arg.shape and declared is None


def _taken(arg: NodeArg, settings: Settings) -> str:
    """The shape that model or export takes, and the shape of its plan if that is another one."""
    taken = _text(arg.shape)
    plan = settings.plan
    if plan is None:
        return f"the model takes {taken}"
    made_for = _text(fixed(arg, settings.shapes).shape)
    if is_export(Path(plan.path).parent):
        what, owner = "the export", "its plan"
    else:
        what, owner = "the model", plan.title
    return f"{what} takes {taken}" + (f"; {owner} is for {made_for}" if made_for != taken else "")


def _text(sizes: Sequence[Any]) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in sizes)}]"


def _tensor(arg: NodeArg, declared: Sequence[Any] | None) -> Tensor:
    """An input that ONNX Runtime describes, as a tensor; opaque if only ONNX Runtime can check
    it."""
    dtype = dtype_of(arg.type) if re.fullmatch(r"tensor\(\w+\)", arg.type) else None
    if dtype is None or _is_of_unknown_rank(arg, declared):
        return Tensor(arg.name, (), arg.type, opaque=True)
    return Tensor(arg.name, tuple(d if isinstance(d, int) else -1 for d in arg.shape), str(dtype))
