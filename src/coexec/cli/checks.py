"""Compare outputs with ONNX Runtime's, for `--check` and `coexec check`."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from coexec.arrays import Array
from coexec.engines.registry import is_pretended
from coexec.errors import CheckError, InputError, UsageError, first_line
from coexec.model.difference import is_rounding, worst_difference
from coexec.selection.opened_model import OpenedModel
from coexec.selection.planning_context import PlanningContext

__all__ = [
    "accepted",
    "differences",
    "judged",
    "judged_by",
    "own_difference",
    "refuse_pretended",
]

_NONE: Mapping[str, Any] = MappingProxyType({})


def differences(
    work: PlanningContext, feeds: Mapping[str, Array], outputs: Mapping[str, Array]
) -> dict[str, float]:
    """Difference of each output from ONNX Runtime's on the original model, relative to its largest
    value."""
    refuse_pretended(work)
    expected = work.given.reference(feeds)
    return {name: worst_difference(outputs[name], expected[name]) for name in outputs}


def refuse_pretended(work: PlanningContext) -> None:
    """
    Raises:
        UsageError: a device computes nothing.
    """
    idle = [d.spec.name for d in work.devices if is_pretended(d.spec)]
    if idle:
        raise UsageError(f"--check with {', '.join(idle)}, which computes nothing; leave one out")


def accepted(opened_model: OpenedModel) -> tuple[dict[str, Any], dict[str, Array]]:
    """The first inputs with which ONNX Runtime runs the original model, and its outputs.

    Raises:
        InputError: it runs with none, or not with the inputs of the user.
    """
    model = opened_model.model
    tried = [model.examples] if model.examples else model.candidates()
    reason = ""
    for feeds in tried:
        try:
            return dict(feeds), opened_model.reference(feeds)
        except Exception as error:
            reason = first_line(error)
    whose = "these inputs" if model.examples else "made-up inputs"
    raise InputError(
        f"ONNX Runtime does not run the model with {whose}: {reason}; give it others with --inputs "
        f"FILE.npz"
    )


def own_difference(opened_model: OpenedModel, feeds: Mapping[str, Any]) -> float:
    """Largest difference between ONNX Runtime's answers with and without its optimisations."""
    optimised, plain = (opened_model.reference(feeds, optimised=each) for each in (True, False))
    return max(worst_difference(plain[name], optimised[name]) for name in optimised)


def judged(
    worst: float,
    work: PlanningContext,
    feeds: Mapping[str, Array],
    facts: Mapping[str, Any] = _NONE,
) -> str:
    """Text of the verdict on outputs with the largest difference ``worst``; see `judged_by`."""
    return judged_by(worst, work.tolerance, work.given, feeds, facts)


def judged_by(
    worst: float,
    allowed: float,
    model: OpenedModel,
    feeds: Mapping[str, Array],
    facts: Mapping[str, Any] = _NONE,
) -> str:
    """Text of the verdict on outputs with the largest difference ``worst``.

    Some models amplify rounding: see `coexec.model.difference.is_rounding`.

    Args:
        facts: facts for the JSON document, printed with the error.

    Raises:
        CheckError: the outputs differ by more than rounding.
    """
    if worst <= allowed:
        return f"equal to ONNX Runtime within {allowed:.0e} of the largest value: {worst:.1e}"
    own = own_difference(model, feeds)
    if is_rounding(worst, own):
        return (
            f"differs from ONNX Runtime by {worst:.1e} of the largest value; its own answers "
            f"with and without its optimisations differ by {own:.1e}, as this model amplifies "
            f"rounding for these inputs"
        )
    error = CheckError(
        f"the outputs differ from ONNX Runtime's by {worst:.2g} of the largest value, "
        f"{allowed:.0e} is allowed, and its own with and without its optimisations by {own:.2g}; "
        f"that is expected of random operators; otherwise please report it with the model"
    )
    error.facts = facts
    raise error
