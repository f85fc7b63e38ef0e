"""Compare a plan with ONNX Runtime's own session, if that session may have other weights."""

import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from coexec.model.difference import unlike
from coexec.model.inputs import to_try
from coexec.selection.plan_states import Running
from coexec.session.ort_backend import OrtBackend

__all__ = ["why_different", "why_other_weights"]

_SHARE = 1e-2
"""Allowed difference relative to the largest value. Other weights cause larger differences, other
kernels smaller ones."""


def why_different(
    running: Running, own: Callable[[Mapping[str, Any]], Sequence[Any]]
) -> str | None:
    """The reason why a plan may not take over.

    None if plan and session have equal answers to made-up inputs, or if one of them fails.

    Args:
        own: returns the outputs of ONNX Runtime's own session for feeds, in the model's order.
    """
    compiled = running.prepared.compiled
    for feeds in to_try(compiled.inputs):
        with suppress(Exception):  # some of them do not suit the model
            expected, again, answers = own(feeds), own(feeds), running.runner.run(feeds)
            break
    else:
        return None
    if not all(map(_alike, again, expected)):
        return (
            "the model draws random numbers, so that no plan can be compared with ONNX "
            "Runtime's session and its options"
        )
    if all(map(_alike, (answers[t.name] for t in compiled.outputs), expected)):
        return None
    return (
        "ONNX Runtime's session answers otherwise than the model says, as if its options gave "
        "other weights; take coexec.SessionOptions, which remember what was set"
    )


def _alike(actual: Any, expected: Any) -> bool:
    """Whether an output is close to the expected one. Only floating-point outputs are compared:
    others are equal for most weights."""
    fractions = isinstance(expected, np.ndarray) and expected.dtype.kind == "f"
    return not fractions or unlike(actual, expected, _SHARE) is None


def why_other_weights(ort: "weakref.ref[OrtBackend]", running: Running) -> str | None:
    """`why_different` for a session that may be collected already; None if it is."""
    alive = ort()
    return None if alive is None else why_different(running, partial(alive.open().run, None))
