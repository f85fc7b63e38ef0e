"""Compare outputs with ONNX Runtime's, for `--check` and `coexec check`."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from coexec.arrays import MOST_ORDINARY, Array, is_finite, is_ordinary
from coexec.engines.registry import is_pretended
from coexec.errors import CheckError, InputError, UsageError, first_line
from coexec.model.difference import (
    is_rounding,
    moved,
    own_difference,
    quantises,
    worst_difference,
)
from coexec.model.inputs import probes
from coexec.model.probe_names import ProbeName
from coexec.selection.comparison import (
    Expected,
    ReferenceAnswers,
    judged,
    rules_of,
    usual_values,
)
from coexec.selection.planning_context import PlanningContext
from coexec.selection.user_model import UserModel

_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class OutputCheck:
    """The outputs of a plan, compared with ONNX Runtime's by the rule of sessions."""

    differences: Mapping[str, float]
    """By output, relative to its largest value. At most the tolerance if the output is like ONNX
    Runtime's: NaN that spreads, and 0 in place of a number below the normal ones, are no faults."""
    verdict: str = ""
    """How they agree."""
    error: CheckError | None = None
    """The outputs differ by more than rounding, or these inputs do not decide."""


def check_outputs(
    work: PlanningContext, feeds: Mapping[str, Any], outputs: Mapping[str, Array]
) -> OutputCheck:
    """Compare ``outputs`` with those of ONNX Runtime on the original model
    (`coexec.selection.comparison`).

    Raises:
        UsageError: a device computes nothing.
    """
    refuse_pretended(work)
    expected, rules = work.user_model.reference(feeds), rules_of(work)
    if not (all(map(is_ordinary, feeds.values())) and all(map(is_finite, expected.values()))):
        differences = {n: worst_difference(outputs[n], expected[n]) for n in outputs}
        return OutputCheck(
            differences,
            f"not judged: the inputs have NaN, infinities or numbers beyond {MOST_ORDINARY:,.0f}, "
            f"or ONNX Runtime's answer is not finite; a session lets ONNX Runtime answer such a "
            f"request",
        )
    reference, allowed = ReferenceAnswers(work), rules.allowed
    if any(rules.why_unlike(outputs, expected)):
        rules = replace(rules, usual=usual_values(accepted(work.user_model)[1]))
    judgement = judged(outputs, Expected("these inputs", feeds, expected), reference, rules)
    differences = {
        name: worst_difference(outputs[name], expected[name], quantised=reference.quantised)
        for name in outputs
    }
    differences = {
        name: each if name in judgement.unlike else min(each, allowed)
        for name, each in differences.items()
    }
    worst = max(differences.values(), default=0.0)
    if not judgement.unlike:
        return OutputCheck(differences, _equal(worst, allowed))
    if not (judgement.differs or judgement.undecided):
        return OutputCheck(differences, _amplified(worst, judgement.own))
    error = _wrong(
        worst, allowed, judgement.own, judgement.undecided, is_lower=work.has_lower_precision
    )
    return OutputCheck(differences, error=error)


def refuse_pretended(work: PlanningContext) -> None:
    """
    Raises:
        UsageError: a device computes nothing.
    """
    idle = [d.spec.name for d in work.devices if is_pretended(d.spec)]
    if idle:
        raise UsageError(f"--check with {', '.join(idle)}, which computes nothing; leave one out")


def accepted(
    user_model: UserModel, probe: ProbeName | None = None
) -> tuple[Mapping[str, Any], Mapping[str, Array]]:
    """The first inputs with which ONNX Runtime runs the original model, and its outputs.

    Args:
        probe: name of the variant of these inputs that is returned in their place, the same as in
            the comparison before a plan answers.

    Raises:
        InputError: it runs with none, or not with the inputs of the user, or not with the variant.
        UsageError: the model has no float input, so there are no variants.
    """
    feeds, outputs = user_model.model.accepted(user_model.reference)
    if probe is None:
        return feeds, outputs
    graph = user_model.model.graph
    variants = probes([graph.tensors[each] for each in graph.inputs], feeds)
    variant = next((each for each in variants if each.name == probe), None)
    if variant is None:
        raise UsageError(
            f"--probe {probe} gives other float values to the inputs, and {graph.name!r} has no "
            f"float input; leave it out"
        )
    try:
        return variant.feeds, user_model.reference(variant.feeds)
    except Exception as error:
        raise InputError(
            f"ONNX Runtime does not run the model with {variant.what}: {first_line(error)}; plans "
            f"are not compared with them; leave --probe {probe} out"
        ) from None


def judged_by(
    worst: float,
    allowed: float,
    model: UserModel,
    feeds: Mapping[str, Array],
    facts: Mapping[str, Any] = _NONE,
) -> str:
    """Text of the verdict on outputs of a pipeline with the largest difference ``worst``.

    Some models amplify rounding: see `coexec.model.difference.is_rounding`.

    Args:
        facts: facts for the JSON document, printed with the error.

    Raises:
        CheckError: the outputs differ by more than rounding.
    """
    if worst <= allowed:
        return _equal(worst, allowed)
    # Its answers with and without optimisations and, if it rounds to whole numbers, to inputs
    # changed in the last digits.
    quantised = quantises(op for task in model.model.graph.tasks for op in task.operators)
    sets = [feeds, moved(feeds, quantised=True)] if quantised else [feeds]
    answers = [model.reference(each, optimised=False) for each in sets]
    own = max(
        own_difference([answer[name] for answer in answers], value, quantised=quantised)
        for name, value in model.reference(feeds).items()
    )
    if own > allowed and is_rounding(worst, own, quantised=quantised):
        return _amplified(worst, own)
    error = _wrong(worst, allowed, own)
    error.facts = facts
    raise error


def _equal(worst: float, allowed: float) -> str:
    return f"equal to ONNX Runtime within {allowed:.0e} of the largest value: {worst:.1e}"


def _amplified(worst: float, own: float) -> str:
    return (
        f"differs from ONNX Runtime by {worst:.1e} of the largest value; its own answers, without "
        f"its optimisations or for inputs changed in the last digits, differ by {own:.1e}, as this "
        f"model amplifies rounding for these inputs"
    )


def _wrong(
    worst: float, allowed: float, own: float, undecided: str = "", *, is_lower: bool = False
) -> CheckError:
    reason = "that is expected of random operators; otherwise please report it with the model"
    if undecided:
        reason = (
            f"these inputs do not decide whether the plan is right: {undecided}; give it others"
        )
    elif is_lower:
        reason = (
            "a device computes in a lower precision: allow more with --tolerance, or use it in "
            "float32"
        )
    return CheckError(
        f"the outputs differ from ONNX Runtime's by {worst:.2g} of the largest value, "
        f"{allowed:.0e} is allowed, and its own with and without its optimisations by {own:.2g}; "
        f"{reason}"
    )
