"""Does a plan compute what ONNX Runtime computes? A plan answers no request before that is known.

Both run on the same made-up inputs: ordinary ones, and ones with zeros, negative, very small and
very large numbers, infinity and NaN (`coexec.frontend.inputs.probes`). Outputs are alike if shapes,
types and integers are equal, NaN and infinity stand in the same places, and the largest difference
of other numbers is within the tolerance. What came of it lies in the cache beside the plan.

ONNX Runtime is no exact reference: a model may amplify rounding. Where its answers with and without
its optimisations differ by more than the tolerance, a plan's may differ twice as much; and where
they differ by more than rounding explains, these inputs decide nothing. Nor do inputs for which the
model has to choose among equals, such as the greatest of many equal values: there ONNX Runtime's
own choice is another one after a change of the inputs in their last digits.

A model that takes none of the made-up inputs cannot be compared in this way. Its plans are compared
with ONNX Runtime's answers to real requests (`coexec.choosing.serving`).
"""

import json
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any, Final

import numpy as np

from coexec.arrays import Array
from coexec.cache import Entry
from coexec.errors import CoexecError, ModelError, first_line
from coexec.frontend.difference import is_rounding, unlike, worst_difference
from coexec.plans.plan import Plan
from coexec.runtime.runner import Runner
from coexec.workbench import Prepared, Workbench

__all__ = [
    "Agreement",
    "ReferenceAnswers",
    "accept",
    "compared",
    "is_exact",
    "known",
    "refuse",
    "why_not",
]

_KIND: Final = "comparisons"
_REPEATED = 1e-6
"""Allowed difference of two runs of ONNX Runtime: threads may add numbers in another order."""
_DECIDING = frozenset(
    {"ArgMax", "ArgMin", "Cast", "Ceil", "DynamicQuantizeLinear", "Equal", "Floor", "Greater",
     "GreaterOrEqual", "Hardmax", "Less", "LessOrEqual", "NonMaxSuppression", "NonZero",
     "QuantizeLinear", "Round", "Sign", "TopK", "Unique"}
)  # fmt: skip
"""Operators that make a step of a difference in the last digits."""
_SPREADING = frozenset(
    {"Conv", "GRU", "GlobalMaxPool", "LSTM", "MaxPool", "RNN", "ReduceMax", "ReduceMin"}
)
"""Operators that may make NaN of numbers: see `Agreement.spreads`."""
_LAST_DIGITS = 1e-6
_LEAST = 4
"""Inputs that are made up in any case: ordinary ones, zeros, some NaN, very large numbers."""
_LIMIT_S = 10.0
"""For ONNX Runtime's answers: after as many seconds no more inputs are made up for a model."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What came of comparing a plan with ONNX Runtime."""

    alike: int = 0
    """Inputs for which all outputs were alike."""
    differs: str | None = None
    """Which output differs for which inputs, and by how much."""
    unknown: str | None = None
    """Why nothing could be compared."""
    is_random: bool = False
    """Two runs of ONNX Runtime differ, so that nothing can ever be compared."""
    allowed: float = 0.0
    """Difference of numbers that is rounding, relative to the largest value."""
    spreads: bool = False
    """NaN may reach more elements than with ONNX Runtime: in the tiles of Winograd's convolutions,
    and in maxima, minima and recurrent operators, where ONNX Runtime forgets some (docs/gpu.md).
    This holds for requests with NaN or infinity in what is fed or in an answer."""

    @property
    def reason(self) -> str | None:
        """Why the plan may not answer; None if it may."""
        if self.differs is not None:
            return f"the plan does not compute what ONNX Runtime does: {self.differs}"
        if self.unknown is not None:
            return f"the plan cannot be compared with ONNX Runtime: {self.unknown}"
        return None

    @property
    def by_requests(self) -> bool:
        """Whether real requests can still show that the plan may answer."""
        return self.differs is None and self.unknown is not None and not self.is_random

    def why_unlike(
        self, found: Mapping[str, Any], expected: Mapping[str, Any], feeds: Mapping[str, Any]
    ) -> Iterator[tuple[str, str]]:
        """Names of the outputs that are not those of ONNX Runtime, and how they differ.

        Args:
            expected: ONNX Runtime's answers to ``feeds``.
        """
        spreads = self.spreads and not (_is_finite(feeds) and _is_finite(expected))
        for name, value in expected.items():
            text = unlike(found[name], value, self.allowed, spreads=spreads)
            if text is not None:
                yield name, text


@dataclass(frozen=True, eq=False)
class _Expected:
    """ONNX Runtime's answer to made-up inputs."""

    what: str
    feeds: Mapping[str, Any]
    outputs: Mapping[str, Any]


class ReferenceAnswers:
    """ONNX Runtime's own answers for one model, computed when they are first needed."""

    def __init__(self, work: Workbench) -> None:
        self._work = work
        self._plain: Any = None

    @cached_property
    def _found(self) -> tuple[Sequence[_Expected], str | None, bool]:
        """The answers; or why there are none, and whether that is because they are random."""
        if self._work.model.random:
            return (), f"it draws random numbers in {self._work.model.random[0]!r}", True
        try:
            session = self._work.given.onnx_runtime(threads=0)
            return self._answers(session)
        except ModelError as error:
            return (), first_line(error), False

    @property
    def answers(self) -> Sequence[_Expected]:
        return self._found[0]

    @property
    def impossible(self) -> Agreement | None:
        """What is known of every plan if ONNX Runtime's answers are of no use."""
        answers, why, is_random = self._found
        return None if answers else replace(_rules(self._work), unknown=why, is_random=is_random)

    def _answers(self, session: Any) -> tuple[Sequence[_Expected], str | None, bool]:
        from coexec.frontend.inputs import probes

        graph = self._work.graph
        end_s = time.monotonic() + _LIMIT_S
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
            found = [_Expected("ordinary", ordinary, first)]
            for what, feeds in probes([graph.tensors[name] for name in graph.inputs], ordinary):
                if len(found) >= _LEAST and time.monotonic() > end_s:
                    break
                try:
                    found.append(_Expected(what, feeds, self._run(session, feeds)))
                except Exception:
                    continue  # it does not let such values through
            return found, None, False
        return (), why, False

    def _run(self, session: Any, feeds: Mapping[str, Any]) -> dict[str, Any]:
        from coexec.frontend.values import run_session

        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, run_session(session, names, feeds), strict=True))

    def plain(self, answer: _Expected) -> Mapping[str, Any]:
        """What ONNX Runtime computes for the same inputs without its optimisations.

        Raises:
            Exception: whatever ONNX Runtime raises.
        """
        if self._plain is None:
            self._plain = self._work.given.onnx_runtime(threads=0, optimised=False)
        return self._run(self._plain, answer.feeds)

    def moved(self, answer: _Expected) -> Mapping[str, Any] | None:
        """What ONNX Runtime computes without its optimisations for inputs that differ in their last
        digits; None of a model for which that is no more than rounding.

        Raises:
            Exception: whatever ONNX Runtime raises.
        """
        if not _has(self._work, _DECIDING):
            return None
        rng = np.random.default_rng(0)
        feeds = {name: _moved(value, rng) for name, value in answer.feeds.items()}
        return self.plain(replace(answer, feeds=feeds))

    def scatters(self, answer: _Expected) -> bool:
        """Whether NaN beside a number may lead to other numbers: the model decides by it."""
        work = self._work
        return not _is_finite(answer.feeds) and _has(work, _SPREADING) and _has(work, _DECIDING)

    def close(self) -> None:
        """Give back the session that `plain` has opened."""
        self._plain = None


def _moved(value: Any, rng: "np.random.Generator") -> Any:
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    scale = float(abs(value[np.isfinite(value)]).max(initial=1.0))
    digits = max(_LAST_DIGITS, float(np.finfo(value.dtype).eps))
    change = np.asarray(rng.standard_normal(value.shape) * digits * scale)
    return value + change.astype(value.dtype)


def why_not(prepared: Prepared, reference: ReferenceAnswers) -> str | None:
    """Why a plan may not answer requests; None if it computes what ONNX Runtime does."""
    try:
        return None if is_exact(prepared) else compared(prepared, None, reference).reason
    except CoexecError as error:
        return str(error)


def is_exact(prepared: Prepared) -> bool:
    """Whether a plan hands the model, as it was given, to ONNX Runtime on CPU cores alone."""
    plan = prepared.plan
    return plan.as_given and not prepared.beside and _is_onnx_runtime(plan)


def _is_onnx_runtime(plan: Plan) -> bool:
    return [place.engine for place in plan.places] == ["onnxruntime"]


def compared(
    prepared: Prepared, runner: Runner | None = None, reference: ReferenceAnswers | None = None
) -> Agreement:
    """What came of comparing a plan with ONNX Runtime: from the cache, or compared now.

    Args:
        runner: what runs the plan, if it has been started.
        reference: ONNX Runtime's answers for the same model, where several plans are compared.

    Raises:
        CoexecError: the plan does not start.
    """
    results = [_compared(plan, None if prepared.beside else runner, reference)
               for plan in (prepared, *prepared.beside)]  # fmt: skip
    return next((result for result in results if result.reason is not None), results[0])


def _compared(
    prepared: Prepared, runner: Runner | None, reference: ReferenceAnswers | None
) -> Agreement:
    if prepared.plan.as_given and _is_onnx_runtime(prepared.plan):
        return Agreement()
    work = prepared.work
    if (found := known(prepared)) is not None:
        return found
    reference = reference or ReferenceAnswers(work)
    try:
        result = reference.impossible
        if result is None and runner is not None:
            result = _compare(work, runner, reference)
        elif result is None:
            with work.start(prepared) as started:
                result = _compare(work, started, reference)
    finally:
        reference.close()
    return _keep(prepared, result)


def known(prepared: Prepared) -> Agreement | None:
    """What came of comparing a plan before; None if the cache does not have it."""
    entry = prepared.work.cache.find(_KIND, prepared.key)
    if entry is None:
        return None
    try:
        return Agreement(**json.loads(entry.files["comparison.json"]))
    except (ValueError, KeyError, TypeError):
        return None  # it is compared again


def accept(prepared: Prepared, before: Agreement, alike: int) -> Agreement:
    """Remember that a plan answers requests of the program as ONNX Runtime does."""
    return _keep(prepared, replace(before, alike=alike, unknown=None))


def refuse(prepared: Prepared, before: Agreement, differs: str) -> Agreement:
    """Remember that a plan differs, as a request of the program has shown."""
    return _keep(prepared, replace(before, differs=differs))


def _keep(prepared: Prepared, result: Agreement) -> Agreement:
    entry = Entry({"comparison.json": json.dumps(asdict(result)).encode()})
    prepared.work.cache.add(_KIND, prepared.key, entry, quiet=True)
    return result


def _compare(work: Workbench, runner: Runner, reference: ReferenceAnswers) -> Agreement:
    rules = _rules(work)
    alike, undecided = 0, ""
    for answer in reference.answers:
        try:
            found = runner.run(answer.feeds)
        except CoexecError as error:
            return replace(rules, differs=f"it fails with {answer.what}, for which ONNX Runtime "
                                          f"has an answer: {first_line(error)}")  # fmt: skip
        differences = dict(rules.why_unlike(found, answer.outputs, answer.feeds))
        if differences:
            name, text = _beyond_rounding(differences, found, answer, reference, rules.allowed)
            if name:
                return replace(rules, differs=f"with {answer.what}, output {name!r} {text}")
            if text:
                undecided = text
                continue
        alike += 1
    return replace(rules, alike=alike) if alike else replace(rules, unknown=undecided)


def _beyond_rounding(
    differences: Mapping[str, str], found: Mapping[str, Array], answer: _Expected,
    reference: ReferenceAnswers, allowed: float,
) -> tuple[str, str]:  # fmt: skip
    """The first output that differs by more than ONNX Runtime's own rounding explains, and how.

    Without a name: why these inputs decide nothing; "": they are alike but for rounding.
    """
    if reference.scatters(answer):
        return "", "NaN may spread in convolutions, and the model decides by what has become NaN"
    try:
        plain, moved = reference.plain(answer), reference.moved(answer)
    except Exception:
        return next(iter(differences.items()))
    for name, text in differences.items():
        expected = answer.outputs[name]
        own = unlike(plain[name], expected, allowed)
        if own is not None:
            worst = worst_difference(found[name], expected)
            if not is_rounding(worst, worst_difference(plain[name], expected)):
                return "", (f"ONNX Runtime's own answers with and without its optimisations "
                            f"differ, as output {name!r} {own}")  # fmt: skip
        elif moved is None or not _is_choice(found[name], moved[name], expected, allowed):
            return name, text
        else:
            return "", f"a change in the last digits of the inputs changes output {name!r}"
    return "", ""


def _is_choice(found: Any, moved: Any, expected: Any, allowed: float) -> bool:
    """Whether a difference is another choice among equals. That is never a new infinity or NaN."""
    fractions = isinstance(expected, np.ndarray) and expected.dtype.kind == "f"
    if fractions and np.isfinite(expected).all() and not np.isfinite(found).all():
        return False
    return unlike(moved, expected, allowed) is not None


def _rules(work: Workbench) -> Agreement:
    """What counts as alike for plans on these devices."""
    return Agreement(allowed=work.tolerance, spreads=_has(work, _SPREADING))


def _has(work: Workbench, kinds: Collection[str]) -> bool:
    """Whether the model has an operator of these kinds."""
    return any(op.op_type in kinds for task in work.graph.tasks for op in task.operators)


def _is_finite(tensors: Mapping[str, Any]) -> bool:
    arrays = (a for a in tensors.values() if isinstance(a, np.ndarray) and a.dtype.kind == "f")
    return all(np.isfinite(array).all() for array in arrays)
