"""Checks that the simplified model computes the same as the given one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from coexec.arrays import Array
from coexec.errors import ModelError, first_line
from coexec.graph.graph import Graph
from coexec.model.difference import HALF_TOLERANCE, TOLERANCE, is_narrow, worst_difference
from coexec.model.nondeterministic import random_nodes
from coexec.model.reference_session import plain_session
from coexec.model.shapes import UncorrectedError, corrected_run
from coexec.model.values import run_session
from coexec.ort import OrtSession

_BUG = "this is a bug of the simplification, please report it with the model"


def check_same(
    original: ir.Model,
    simplified: ir.Model,
    graph: Graph,
    candidates: Iterable[Mapping[str, Array]],
) -> tuple[str | None, bool]:
    """Run both in ONNX Runtime on the first inputs that the original accepts, and compare.

    The run corrects the shapes of ``simplified``, whose tasks are ``graph``, in place.

    Returns:
        Why nothing could be compared, or None; and whether shapes were wrong, so that the graph has
            to be made again. Nothing can be compared if ONNX Runtime runs the original with none of
            the candidates, or gives two results for the same inputs.

    Raises:
        ModelError: ONNX Runtime does not accept the model; or an output differs.
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
        del session  # it has copies of weights, as the next one has
        try:
            outputs, reshaped = corrected_run(simplified, graph, inputs)
        except Exception as error:
            raise ModelError(
                f"ONNX Runtime runs the given model and not the simplified one "
                f"({first_line(error)}); {_BUG}"
            ) from None
        difference = _difference(names, [outputs[name] for name in names], expected)
        if difference is not None:  # the run for shapes may have prevented a fusion
            again = _run(plain_session(simplified), names, inputs)
            difference = _difference(names, again, expected)
        if difference is None:
            return None, reshaped
        if _is_random(original, names, inputs, expected):
            return (
                "two runs of it with the same inputs differ, as it draws random numbers",
                reshaped,
            )
        raise ModelError(f"the simplified model differs from the given one in {difference}; {_BUG}")
    return reason, False


def is_reshaped(model: ir.Model, graph: Graph, candidates: Iterable[Mapping[str, Array]]) -> bool:
    """Correct the shapes of ``model`` by a run on the first inputs that it accepts, in place;
    return whether any was wrong.

    Raises:
        UncorrectedError: a shape is wrong, and cannot be corrected.
    """
    for inputs in candidates:
        try:
            return corrected_run(model, graph, inputs)[1]
        except (UncorrectedError, MemoryError):
            raise
        except Exception:  # the next inputs may suit the model
            continue
    return False


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


def _run(session: OrtSession, names: Sequence[str], inputs: Mapping[str, Any]) -> list[Any]:
    try:
        return run_session(session, names, inputs)
    except Exception as error:
        raise ModelError(first_line(error)) from None


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
