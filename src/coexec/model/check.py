"""Checks that the simplified model computes the same as the given one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from coexec.arrays import Array
from coexec.errors import ModelError, first_line
from coexec.model.difference import HALF_TOLERANCE, TOLERANCE, is_narrow, worst_difference
from coexec.model.nondeterministic import random_nodes
from coexec.model.reference_session import plain_session
from coexec.model.values import run_session
from coexec.ort import OrtSession

__all__ = ["check_same", "plain_session", "worst_difference"]

_BUG = "this is a bug of the simplification, please report it with the model"


def check_same(
    original: ir.Model, simplified: ir.Model, candidates: Iterable[Mapping[str, Array]]
) -> str | None:
    """Run both in ONNX Runtime on the first inputs that the original accepts, and compare.

    Returns:
        Why nothing could be compared, or None. Nothing can be compared if ONNX Runtime runs the
            original with none of the candidates, or if it gives a result of another shape than
            declared (a fed value decides it), or two results for the same inputs.

    Raises:
        ModelError: ONNX Runtime does not accept the model; or an output differs, or has another
            shape than the given model states and ONNX Runtime computes.
    """
    names = [v.name or "" for v in original.graph.outputs]
    session = plain_session(original)
    reason = "there are no inputs to try"
    for inputs in candidates:
        try:
            expected = _run(session, names, inputs)
        except ModelError as error:
            reason = f"ONNX Runtime does not run it with made-up inputs ({error})"
            continue
        reason = _other_shape(simplified, expected) or ""
        if reason:
            if _states_shapes(original, expected):
                raise ModelError(
                    f"the simplified model has another shape than the given one: {reason}; {_BUG}"
                )
            continue
        del session  # it has copies of weights, as the next one has
        difference = _difference(names, _run_simplified(simplified, names, inputs), expected)
        if difference is None:
            return None
        if _is_random(original, names, inputs, expected):
            return "two runs of it with the same inputs differ, as it draws random numbers"
        raise ModelError(f"the simplified model differs from the given one in {difference}; {_BUG}")
    return reason


def _is_random(
    model: ir.Model, names: Sequence[str], inputs: Mapping[str, Any], expected: Sequence[Any]
) -> bool:
    """Whether the model draws random numbers, or gives another result again. ONNX Runtime merges
    equal nodes that draw; with a seed in the model, only the second run of a session differs."""
    if random_nodes(model):
        return True
    session = plain_session(model)
    runs = (_run(session, names, inputs) for _ in range(2))
    return any(_difference(names, outputs, expected) is not None for outputs in runs)


def _run_simplified(model: ir.Model, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
    """Results of the simplified model for inputs that the given model accepts."""
    try:
        return _run(plain_session(model), names, inputs)
    except ModelError as error:
        raise ModelError(
            f"ONNX Runtime runs the given model and not the simplified one ({error}); {_BUG}"
        ) from None


def _run(session: OrtSession, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
    try:
        return run_session(session, names, inputs)
    except Exception as error:
        raise ModelError(first_line(error)) from None


def _other_shape(model: ir.Model, outputs: Sequence[Any]) -> str | None:
    """A message about the first output whose shape is not the declared one; None if there is
    none."""
    for value, array in zip(model.graph.outputs, outputs, strict=True):
        static = value.shape is not None and value.shape.is_static()
        if static and isinstance(array, np.ndarray) and value.shape != array.shape:
            return (
                f"with made-up inputs, output {value.name!r} has the shape "
                f"{list(array.shape)} and not {value.shape}"
            )
    return None


def _states_shapes(model: ir.Model, outputs: Sequence[Any]) -> bool:
    """Whether the model declares the shapes of all outputs, and they have these shapes."""
    shapes = [value.shape for value in model.graph.outputs]
    is_stated = all(shape is not None and shape.is_static() for shape in shapes)
    return is_stated and _other_shape(model, outputs) is None


def _difference(
    names: Sequence[str], outputs: Sequence[Any], expected: Sequence[Any]
) -> str | None:
    """The first output that differs, and by how much; None if none does."""
    for name, a, b in zip(names, outputs, expected, strict=True):
        worst = worst_difference(a, b)
        half = isinstance(b, np.ndarray) and is_narrow(b.dtype)
        allowed = HALF_TOLERANCE if half else TOLERANCE
        if worst > allowed:
            return f"output {name!r}: by {worst:.2g} of its largest value, {allowed:.0e} is allowed"
    return None
