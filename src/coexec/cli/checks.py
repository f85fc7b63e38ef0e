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
    Judgement,
    ReferenceAnswers,
    judged,
    rules_of,
    usual_values,
)
from coexec.selection.opened_model import OpenedModel
from coexec.selection.planning_context import PlanningContext

__all__ = [
    "OutputCheck",
    "accepted",
    "check_outputs",
    "judged_by",
    "own_answers",
    "refuse_pretended",
]

_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True)
class OutputCheck:
    """The outputs of a plan, compared with ONNX Runtime's by the rule of sessions."""

    differences: Mapping[str, float]
    """By output, relative to its largest value. At most the tolerance if the output is like ONNX
    Runtime's: NaN that spreads, and 0 in place of a number below the normal ones, are no faults."""
    allowed: float
    judgement: Judgement | None
    """Of outputs that are unlike; None: there are none."""
    unusual: bool = False
    """Whether a session would let ONNX Runtime answer these inputs."""

    def require_right(self, facts: Mapping[str, Any] = _NONE) -> str:
        """Text of the verdict.

        Args:
            facts: facts for the JSON document, printed with the error.

        Raises:
            CheckError: the outputs differ by more than rounding, or these inputs do not decide.
        """
        worst = max(self.differences.values(), default=0.0)
        if self.unusual:
            return (
                f"not judged: the inputs have NaN, infinities or numbers beyond "
                f"{MOST_ORDINARY:,.0f}, or ONNX Runtime's answer is not finite; a session lets "
                f"ONNX Runtime answer such a request"
            )
        if self.judgement is None:
            return _equal(worst, self.allowed)
        differs, undecided, own, _ = self.judgement
        if not (differs or undecided):
            return _amplified(worst, own)
        raise _wrong(worst, self.allowed, own, facts, undecided)


def check_outputs(
    work: PlanningContext, feeds: Mapping[str, Any], outputs: Mapping[str, Array]
) -> OutputCheck:
    """Compare ``outputs`` with those of ONNX Runtime on the original model
    (`coexec.selection.comparison`).

    Args:
        probe: the name of ``feeds``, if they are one of the probes.

    Raises:
        UsageError: a device computes nothing.
    """
    refuse_pretended(work)
    expected, rules = work.given.reference(feeds), rules_of(work)
    if not (all(map(is_ordinary, feeds.values())) and all(map(is_finite, expected.values()))):
        differences = {n: worst_difference(outputs[n], expected[n]) for n in outputs}
        return OutputCheck(differences, rules.allowed, None, unusual=True)
    reference = ReferenceAnswers(work)
    if any(rules.why_unlike(outputs, expected)):
        rules = replace(rules, usual=usual_values(accepted(work.given)[1]))
    judgement = judged(outputs, Expected("these inputs", feeds, expected), reference, rules)
    differences = {
        name: worst_difference(outputs[name], expected[name], quantised=reference.quantised)
        for name in outputs
    }
    clipped = {
        name: each if name in judgement.unlike else min(each, rules.allowed)
        for name, each in differences.items()
    }
    return OutputCheck(clipped, rules.allowed, judgement if judgement.unlike else None)


def refuse_pretended(work: PlanningContext) -> None:
    """
    Raises:
        UsageError: a device computes nothing.
    """
    idle = [d.spec.name for d in work.devices if is_pretended(d.spec)]
    if idle:
        raise UsageError(f"--check with {', '.join(idle)}, which computes nothing; leave one out")


def accepted(
    opened_model: OpenedModel, probe: ProbeName | None = None
) -> tuple[dict[str, Any], dict[str, Array]]:
    """The first inputs with which ONNX Runtime runs the original model, and its outputs.

    Args:
        probe: name of the variant of these inputs that is returned in their place.

    Raises:
        InputError: it runs with none, or not with the inputs of the user, or not with the variant.
        UsageError: the model has no float input, so there are no variants.
    """
    feeds, outputs = opened_model.model.accepted(opened_model.reference)
    return (feeds, outputs) if probe is None else _probed(opened_model, feeds, probe)


def _probed(
    opened_model: OpenedModel, ordinary: Mapping[str, Any], name: ProbeName
) -> tuple[dict[str, Any], dict[str, Array]]:
    """The variant of ordinary inputs, the same as in the comparison before a plan answers, and ONNX
    Runtime's outputs."""
    graph = opened_model.model.graph
    variants = probes([graph.tensors[each] for each in graph.inputs], ordinary)
    probe = next((each for each in variants if each.name == name), None)
    if probe is None:
        raise UsageError(
            f"--probe {name} gives other float values to the inputs, and {graph.name!r} has no "
            f"float input; leave it out"
        )
    try:
        return probe.feeds, opened_model.reference(probe.feeds)
    except Exception as error:
        raise InputError(
            f"ONNX Runtime does not run the model with {probe.what}: {first_line(error)}; plans "
            f"are not compared with them; leave --probe {name} out"
        ) from None


def own_answers(opened_model: OpenedModel, feeds: Mapping[str, Any]) -> float:
    """Largest difference between ONNX Runtime's own answers: with and without its optimisations,
    and, of a quantized model, to inputs changed in the last digits."""
    quantised = is_quantised(opened_model)
    expected = opened_model.reference(feeds)
    sets = [feeds, moved(feeds, quantised=True)] if quantised else [feeds]
    answers = [opened_model.reference(each, optimised=False) for each in sets]
    return max(
        own_difference([answer[name] for answer in answers], value, quantised=quantised)
        for name, value in expected.items()
    )


def is_quantised(opened_model: OpenedModel) -> bool:
    """Whether the model rounds to whole numbers."""
    return quantises(op for task in opened_model.model.graph.tasks for op in task.operators)


def judged_by(
    worst: float,
    allowed: float,
    model: OpenedModel,
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
    own = own_answers(model, feeds)
    if own > allowed and is_rounding(worst, own, quantised=is_quantised(model)):
        return _amplified(worst, own)
    raise _wrong(worst, allowed, own, facts)


def _equal(worst: float, allowed: float) -> str:
    return f"equal to ONNX Runtime within {allowed:.0e} of the largest value: {worst:.1e}"


def _amplified(worst: float, own: float) -> str:
    return (
        f"differs from ONNX Runtime by {worst:.1e} of the largest value; its own answers, without "
        f"its optimisations or for inputs changed in the last digits, differ by {own:.1e}, as this "
        f"model amplifies rounding for these inputs"
    )


def _wrong(
    worst: float, allowed: float, own: float, facts: Mapping[str, Any], undecided: str = ""
) -> CheckError:
    reason = (
        f"these inputs do not decide whether the plan is right: {undecided}; give it others"
        if undecided
        else "that is expected of random operators; otherwise please report it with the model"
    )
    error = CheckError(
        f"the outputs differ from ONNX Runtime's by {worst:.2g} of the largest value, "
        f"{allowed:.0e} is allowed, and its own with and without its optimisations by {own:.2g}; "
        f"{reason}"
    )
    error.facts = facts
    return error
