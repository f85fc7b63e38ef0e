"""Compare the outputs of a plan with ONNX Runtime's. Before that, a plan answers no request.

Both run on the same made-up inputs: ordinary ones, and ones with zeros, negative, very small and
large numbers (`coexec.model.inputs.probes`). Outputs are alike if shapes, types and integers are
equal, and the largest difference of other numbers is within the tolerance. The result is in the
cache, next to the plan. Unusual numbers are not compared: no plan answers such a request
(`coexec.session.plan_backend`).

ONNX Runtime is no exact reference, because a model may amplify rounding. If its answers with and
without its optimisations differ by more than the tolerance, a plan's answers may differ twice as
much. In a quantized model, where rounding the other way is a step of the quantizer, its answers to
inputs that differ in the last digits count, too. If they differ by more than rounding explains,
these inputs do not decide. Inputs for which
the model has to choose among equal values, such as the greatest of many, do not decide either: in
that case ONNX Runtime's own choice changes when the last digits of the inputs change.

A model that runs with none of the made-up inputs cannot be compared in this way. Its plans are
compared with ONNX Runtime's answers to real requests (`coexec.selection.plan_selector`).
"""

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, reduce
from typing import Any, Final, NamedTuple

import numpy as np

from coexec.arrays import Array, is_finite
from coexec.cache import Entry
from coexec.codec import decode
from coexec.errors import CoexecError, ModelError, first_line
from coexec.model.difference import (
    Errors,
    errors_of,
    is_rounding,
    largest,
    moved,
    own_difference,
    quantises,
    unlike,
    worst_difference,
)
from coexec.model.main_memory import trim_memory
from coexec.plan.plan import Plan
from coexec.runtime.runner import Runner
from coexec.selection.planning_context import PlanningContext
from coexec.selection.prepared import Prepared

_KIND: Final = "comparisons"
_REPEATED = 1e-6
"""Allowed difference between two runs of ONNX Runtime: threads may add numbers in another order."""
_DECIDING = frozenset(
    {"ArgMax", "ArgMin", "Cast", "Ceil", "Equal", "Floor", "Greater",
     "GreaterOrEqual", "Hardmax", "Less", "LessOrEqual", "NonMaxSuppression", "NonZero",
     "Round", "Sign", "TopK", "Unique"}
)  # fmt: skip
"""Operators that can turn a difference in the last digits into a large one."""
_LEAST = 4
"""Number of inputs that are always tried: ordinary ones, zeros, some NaN, very large numbers."""
_LIMIT_S = 10.0
"""Seconds for ONNX Runtime's answers; after that no more inputs are tried for a model."""
_LEAST_S = 2.0
"""The same where the time for a choice is over."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """Result of comparing a plan with ONNX Runtime."""

    alike: int = 0
    """Number of inputs for which all outputs were alike."""
    differs: str | None = None
    """Which output differs, for which inputs, and by how much; None if none differs."""
    unknown: str | None = None
    """Why the outputs could not be compared; None if they were."""
    is_random: bool = False
    """Whether two runs of ONNX Runtime differ, so that a comparison is never possible."""
    allowed: float = 0.0
    """Largest difference that counts as rounding, relative to the largest value."""
    usual: Mapping[str, float] = field(default_factory=dict)
    """By name of an output, the largest value in ONNX Runtime's answer to ordinary inputs."""
    errors: Errors | None = None
    """Of a plan in a lower precision than float32; None for others."""
    inputs: str = ""
    """Digest of the user's inputs, of a plan in a lower precision; "": the inputs are made up."""

    @property
    def reason(self) -> str | None:
        """Why the plan may not answer; None if it may."""
        if self.differs is not None:
            return f"the plan does not compute what ONNX Runtime does: {self.differs}"
        if self.unknown is not None:
            return f"the plan cannot be compared with ONNX Runtime: {self.unknown}"
        return None

    @property
    def in_words(self) -> str:
        """The result as a sentence."""
        if self.differs is not None:
            return f"its outputs differ from ONNX Runtime's: {self.differs}"
        if self.unknown is not None:
            return f"its outputs cannot be compared with ONNX Runtime's: {self.unknown}"
        if not self.alike:
            return "it is ONNX Runtime's own session"
        inputs = "the given inputs" if self.inputs else f"{self.alike} inputs"
        text = f"its outputs agree with ONNX Runtime's for {inputs}"
        return text if self.errors is None else f"{text}: {self.errors} (limit {self.allowed:.2g})"

    @property
    def by_requests(self) -> bool:
        """Whether real requests can still show that the plan may answer."""
        return self.differs is None and self.unknown is not None and not self.is_random

    def why_unlike(
        self, outputs: Mapping[str, Any], expected: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """Names of the outputs of a plan that differ from ONNX Runtime's, and how each differs."""
        for name, value in expected.items():
            usual = self.usual.get(name, 0.0)
            text = unlike(outputs[name], value, self.allowed, usual=usual)
            if text is not None:
                yield name, text


@dataclass(frozen=True, eq=False)
class Expected:
    """ONNX Runtime's answer to made-up inputs."""

    what: str
    """The inputs in words, with the command that runs a plan on them."""
    feeds: Mapping[str, Any]
    outputs: Mapping[str, Any]


class ReferenceAnswers:
    """ONNX Runtime's own answers for one model, computed when they are first needed."""

    def __init__(self, work: PlanningContext, left_s: float = _LIMIT_S) -> None:
        """
        Args:
            left_s: seconds until the choice has to end. If they are few, fewer inputs are tried.
        """
        self._work = work
        self._plain: Any = None
        self.limit(left_s)

    def limit(self, left_s: float) -> None:
        """Try fewer inputs if the choice has to end in a few seconds and none were tried yet."""
        self._limit_s = min(_LIMIT_S, max(_LEAST_S, left_s))

    @cached_property
    def _found(self) -> tuple[Sequence[Expected], str | None, bool]:
        """The answers; or the reason why there are none, and whether it is randomness."""
        if self._work.model.random:
            return (), f"it draws random numbers in {self._work.model.random[0]!r}", True
        try:
            session = self._work.user_model.onnx_runtime(threads=0)
            return self._answers(session)
        except ModelError as error:
            return (), first_line(error), False

    @property
    def answers(self) -> Sequence[Expected]:
        return self._found[0]

    @property
    def impossible(self) -> Agreement | None:
        """Result for every plan if there are no answers to compare with; None if there are."""
        answers, why, is_random = self._found
        return None if answers else replace(rules_of(self._work), unknown=why, is_random=is_random)

    def _answers(self, session: Any) -> tuple[Sequence[Expected], str | None, bool]:
        from coexec.model.inputs import probes

        graph = self._work.graph
        end_s = time.monotonic() + self._limit_s
        why = "there are no inputs to try"
        for ordinary in self._work.model.candidates():
            try:
                first = self._run(session, ordinary)
                again = self._run(session, ordinary)
            except Exception as error:
                why = f"made-up inputs do not run ({first_line(error)})"
                continue
            if any(unlike(again[name], first[name], _REPEATED) for name in first):
                return (), "it draws random numbers: two runs with the same inputs differ", True
            if not all(map(is_finite, first.values())):
                return (), "its answers have NaN or infinity, which ONNX Runtime computes", True
            expected = [Expected("ordinary inputs (coexec check)", ordinary, first)]
            for probe in probes([graph.tensors[name] for name in graph.inputs], ordinary):
                if len(expected) >= _LEAST and time.monotonic() > end_s:
                    break
                what = f"{probe.what} (coexec check --probe {probe.name})"
                try:
                    outputs = self._run(session, probe.feeds)
                    expected.append(Expected(what, probe.feeds, outputs))
                except Exception:
                    continue  # the model does not accept such values
            return expected, None, False
        return (), why, False

    def _run(self, session: Any, feeds: Mapping[str, Any]) -> dict[str, Any]:
        from coexec.model.values import run_session

        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, run_session(session, names, feeds), strict=True))

    def plain(self, answer: Expected) -> Mapping[str, Any]:
        """ONNX Runtime's outputs for the same inputs without its optimisations.

        Raises:
            Exception: any error of ONNX Runtime.
        """
        if self._plain is None:
            self._plain = self._work.user_model.onnx_runtime(threads=0, optimised=False)
        return self._run(self._plain, answer.feeds)

    @cached_property
    def quantised(self) -> bool:
        """Whether the model rounds to whole numbers."""
        return quantises(op for task in self._work.graph.tasks for op in task.operators)

    def moved(self, answer: Expected) -> Mapping[str, Any] | None:
        """ONNX Runtime's outputs, without its optimisations, for inputs changed in the last digits.

        None if the model has no operator that can turn such a change into a large difference.

        Raises:
            Exception: any error of ONNX Runtime.
        """
        if not (self.quantised or _has(self._work, _DECIDING)):
            return None
        return self.plain(replace(answer, feeds=moved(answer.feeds, quantised=self.quantised)))

    def close(self) -> None:
        """Release the session that `plain` has opened, and the memory of the comparison."""
        self._plain = None
        trim_memory()


def is_exact(prepared: Prepared) -> bool:
    """Whether a plan runs the unchanged model with ONNX Runtime on CPU cores only."""
    plan = prepared.plan
    return plan.as_given and not prepared.beside and _is_onnx_runtime(plan)


def _is_onnx_runtime(plan: Plan) -> bool:
    return [place.engine for place in plan.places] == ["onnxruntime"]


def compared(
    prepared: Prepared, runner: Runner | None = None, reference: ReferenceAnswers | None = None
) -> Agreement:
    """Result of comparing a plan with ONNX Runtime: from the cache, or compared now.

    Args:
        runner: runner of the plan, if it has been started.
        reference: ONNX Runtime's answers for the same model, if several plans are compared.

    Raises:
        CoexecError: the plan does not start.
    """
    results = [
        _compared(plan, None if prepared.beside else runner, reference)
        for plan in (prepared, *prepared.beside)
    ]
    return next((result for result in results if result.reason is not None), results[0])


def _compared(
    prepared: Prepared, runner: Runner | None, reference: ReferenceAnswers | None
) -> Agreement:
    if prepared.plan.as_given and _is_onnx_runtime(prepared.plan):
        return Agreement()
    if (agreement := known(prepared)) is not None:
        return agreement
    reference = reference or ReferenceAnswers(prepared.work)
    return _keep(prepared, agreement_of(prepared, reference, runner))


def agreement_of(
    prepared: Prepared, reference: ReferenceAnswers, runner: Runner | None = None
) -> Agreement:
    """Result of comparing a plan with ONNX Runtime now. It is not kept.

    Args:
        runner: runner of the plan, if it has been started.

    Raises:
        CoexecError: the plan does not start.
    """
    work = prepared.work
    try:
        result = reference.impossible
        if result is None and runner is not None:
            result = _compare(work, prepared.plan, runner, reference)
        elif result is None:
            with work.start(prepared) as started:
                result = _compare(work, prepared.plan, started, reference)
    finally:
        reference.close()
    return result


def known(prepared: Prepared) -> Agreement | None:
    """Result of an earlier comparison of a plan, from the cache; None if there is none."""
    entry = prepared.work.cache.find(_KIND, prepared.key)
    if entry is None:
        return None
    try:
        found = decode(Agreement, json.loads(entry.files["comparison.json"]))
    except (ValueError, KeyError, TypeError):
        return None  # a damaged entry: the plan is compared again
    is_of_others = bool(prepared.plan.lower) and prepared.work.user_inputs not in ("", found.inputs)
    return None if is_of_others else found


def accept(prepared: Prepared, before: Agreement, alike: int) -> Agreement:
    """Store that a plan answers requests of the program as ONNX Runtime does."""
    return _keep(prepared, replace(before, alike=alike, unknown=None))


def refuse(prepared: Prepared, before: Agreement, differs: str) -> Agreement:
    """Store that the outputs of a plan differ, as a request of the program has shown."""
    return _keep(prepared, replace(before, differs=differs))


def _keep(prepared: Prepared, result: Agreement) -> Agreement:
    entry = Entry({"comparison.json": json.dumps(asdict(result)).encode()})
    prepared.work.cache.add(_KIND, prepared.key, entry, quiet=True)
    return result


def _compare(
    work: PlanningContext, plan: Plan, runner: Runner, reference: ReferenceAnswers
) -> Agreement:
    answers = reference.answers
    rules = replace(rules_of(work), usual=usual_values(answers[0].outputs))
    if plan.lower:
        rules = replace(rules, errors=Errors(), inputs=work.user_inputs)
        answers = answers[:1] if rules.inputs else answers
    alike, undecided, differs = 0, "", None
    for answer in answers:
        try:
            outputs: Mapping[str, Any] = runner.run(answer.feeds)
        except CoexecError as error:
            return replace(
                rules,
                differs=f"it fails with {answer.what}, for which ONNX Runtime "
                f"has an answer: {first_line(error)}",
            )
        if rules.errors is not None:
            found = (errors_of(outputs[n], e, rules.usual[n]) for n, e in answer.outputs.items())
            rules = replace(rules, errors=reduce(Errors.plus, found, rules.errors))
        judgement = judged(outputs, answer, reference, rules)
        if judgement.differs:
            differs = differs or f"with {answer.what}, output {judgement.differs}"
            if rules.errors is None:
                break
        undecided = judgement.undecided or undecided
        alike += not judgement.undecided
    if differs is not None:
        return replace(rules, differs=differs)
    return replace(rules, alike=alike) if alike else replace(rules, unknown=undecided)


class Judgement(NamedTuple):
    """The meaning of the differences of a plan's outputs from ONNX Runtime's. They are rounding
    if both texts are empty."""

    differs: str = ""
    """The first output that differs by more than ONNX Runtime's own rounding explains, and how."""
    undecided: str = ""
    """Why these inputs do not decide."""
    own: float = 0.0
    """Largest difference between ONNX Runtime's own answers, as far as they were compared."""
    unlike: tuple[str, ...] = ()
    """Names of the outputs that are unlike by more than the tolerance."""


def judged(
    outputs: Mapping[str, Array], answer: Expected, reference: ReferenceAnswers, rules: Agreement
) -> Judgement:
    """The one rule for outputs beside ONNX Runtime's, of sessions and of `check`."""
    differences = dict(rules.why_unlike(outputs, answer.outputs))
    if not differences:
        return Judgement()
    return _judged(differences, outputs, answer, reference, rules.allowed)._replace(
        unlike=tuple(differences)
    )


def _judged(
    differences: Mapping[str, str],
    outputs: Mapping[str, Array],
    answer: Expected,
    reference: ReferenceAnswers,
    allowed: float,
) -> Judgement:
    try:
        plain, moved = reference.plain(answer), reference.moved(answer)
    except Exception:
        name, text = next(iter(differences.items()))
        return Judgement(f"{name!r} {text}")
    quantised, most = reference.quantised, 0.0
    for name, text in differences.items():
        actual, expected = outputs[name], answer.outputs[name]
        answers = [each[name] for each in (plain, moved) if each is not None]
        # The scale is that of this answer: near 0, ONNX Runtime's own answers may be rounding only.
        of_itself = answers if quantised else answers[:1]
        own = own_difference(of_itself, expected, quantised=quantised)
        worst = worst_difference(actual, expected, quantised=quantised)
        most = max(most, own)
        without = unlike(plain[name], expected, allowed)
        if (quantised or without is not None) and is_rounding(worst, own, quantised=quantised):
            continue
        if without is not None and not quantised:
            text = (
                f"ONNX Runtime's own answers with and without its optimisations differ, as output "
                f"{name!r} {without}"
            )
            return Judgement(undecided=text, own=most)
        decides = quantised and is_rounding(0.0, own, quantised=True)
        if decides or not _is_choice(actual, answers, expected, allowed):
            return Judgement(f"{name!r} {text}", own=most)
        text = f"a change in the last digits of the inputs changes output {name!r}"
        return Judgement(undecided=text, own=most)
    return Judgement(own=most)


def _is_choice(actual: Any, answers: Sequence[Any], expected: Any, allowed: float) -> bool:
    """Whether a difference comes from another choice among equal values, as one of ONNX Runtime's
    own answers makes it. A new infinity or NaN never does."""
    fractions = isinstance(expected, np.ndarray) and expected.dtype.kind == "f"
    if fractions and np.isfinite(expected).all() and not np.isfinite(actual).all():
        return False
    return any(unlike(answer, expected, allowed) is not None for answer in answers)


def usual_values(ordinary: Mapping[str, Any]) -> dict[str, float]:
    """By name, the largest value of each output.

    Args:
        ordinary: ONNX Runtime's answers to ordinary inputs.
    """
    return {name: largest(value) for name, value in ordinary.items()}


def rules_of(work: PlanningContext) -> Agreement:
    """The rules by which outputs of plans on these devices count as alike."""
    return Agreement(allowed=work.tolerance)


def _has(work: PlanningContext, kinds: Collection[str]) -> bool:
    """Whether the model has an operator of these kinds."""
    return any(op.op_type in kinds for task in work.graph.tasks for op in task.operators)
