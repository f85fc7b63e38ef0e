"""Compare outputs with ONNX Runtime's, for `--check` and `coexec check`."""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from coexec.arrays import Array
from coexec.engines.registry import is_pretended
from coexec.errors import CheckError, InputError, UsageError, first_line
from coexec.model.difference import is_rounding, worst_difference
from coexec.model.inputs import probes
from coexec.model.probe_names import ProbeName
from coexec.selection.comparison import rules_of, usual_values
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
    value.

    At most the tolerance if the comparison before a plan answers accepts the output: NaN that
    spreads, and 0 in place of a number below the normal ones, are no faults
    (`coexec.selection.comparison`).
    """
    refuse_pretended(work)
    expected, rules = work.given.reference(feeds), rules_of(work)
    worst = {name: worst_difference(outputs[name], expected[name]) for name in outputs}
    faults = dict(rules.why_unlike(outputs, expected, feeds))
    if faults:
        rules = replace(rules, usual=usual_values(accepted(work.given)[1]))
        faults = dict(rules.why_unlike(outputs, expected, feeds))
    return {n: each if n in faults else min(each, rules.allowed) for n, each in worst.items()}


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
    if own > allowed and is_rounding(worst, own):
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
