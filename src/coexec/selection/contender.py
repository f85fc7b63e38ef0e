"""Contender: a configuration of devices with a plan for it, which can take part in a race."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from coexec.engines.names import parse
from coexec.engines.registry import load_engine
from coexec.errors import CoexecError
from coexec.keys import digest
from coexec.plan.plan import Plan
from coexec.selection.comparison import ReferenceAnswers, result_of
from coexec.selection.configurations import Configuration
from coexec.selection.decision import Candidate, Rounds, Status
from coexec.selection.objective import Objective
from coexec.selection.planning_context import PlanningContext
from coexec.selection.prepared import Prepared
from coexec.selection.race import Outcome, Requests

__all__ = ["Contender", "Standing", "contender", "single_device_contenders", "without_plan"]


class Standing(NamedTuple):
    """The place of a plan in the ranking."""

    ratio: float = math.inf
    """Ranks the plan: its ratio to the reference, below one only if the plan is proven to be
    faster; infinite if it did not run."""
    against: str | None = None
    """The rule by which it is not proven to be faster than the reference; None if it is."""
    is_reference: bool = False
    in_doubt: bool = False
    """Whether more rounds may prove it."""


class Contender(NamedTuple):
    """A candidate with the plans to run it."""

    candidate: Candidate
    plans: Sequence[tuple[PlanningContext, Plan]]
    """One plan; or several that answer requests beside each other, in mode "throughput"; empty if
    an earlier pass has settled the candidate."""
    standing: Standing = Standing()

    @property
    def is_single(self) -> bool:
        return len(self.candidate.devices) == 1

    @property
    def is_plain(self) -> bool:
        """Whether it uses CPU cores only, with their first engine."""
        requests = [parse(name) for name in self.candidate.devices]
        return all(request.kind == "cpu" and not request.engine for request in requests)

    @property
    def builds_kernels(self) -> bool:
        """Whether one of its engines compiles source code for the model."""
        return any(load_engine(name).builds_kernels for name in self.candidate.engines)

    @property
    def predicted_s(self) -> float:
        """Predicted seconds; infinite without a prediction."""
        seconds = self.candidate.predicted_s
        return math.inf if seconds is None else seconds

    @property
    def expected_s(self) -> float:
        """Expected seconds of its configuration; infinite if nothing is known."""
        seconds = self.candidate.expected_s
        return math.inf if seconds is None else seconds

    def prepared(self) -> Prepared:
        """The plans, compiled."""
        first, *beside = [work.prepared(plan) for work, plan in self.plans]
        return replace(first, beside=tuple(beside))

    def release(self) -> None:
        """Close the engines: some can use only one set of cores at a time."""
        for work, _ in self.plans:
            work.release()

    def measured(
        self, which: int, outcome: Outcome[int], reference: int, objective: Objective
    ) -> "Contender":
        """This contender with the figures of a race as rival ``which``. The rounds are added to
        those of earlier races.

        If it failed, its candidate is refused with the error.
        """
        if (error := outcome.failed.get(which)) is not None:
            return self.refused(str(error))
        row = self.candidate
        rounds_s = row.rounds_s + _pairs(outcome, which, reference, objective.figure)
        guard_s = row.guard_s
        if objective.guard is not None:
            guard_s += _pairs(outcome, which, reference, objective.guard)
        parallel_s = outcome.median_s(which, "parallel")
        candidate = replace(
            row,
            paced_s=outcome.median_s(which, "paced"),
            loop_s=outcome.median_s(which, "loop"),
            per_s=None if parallel_s is None else 1 / parallel_s,
            requests=objective.figure,
            rounds_s=rounds_s,
            guard_s=guard_s,
            starts=row.starts + 1,
            stolen=max(row.stolen, outcome.stolen),
            others=max(row.others, outcome.others),
        )
        return self._replace(candidate=_with_medians(candidate))

    def expecting(self, expected_s: float | None) -> "Contender":
        """This contender with the seconds that were expected of its configuration."""
        return self._replace(candidate=replace(self.candidate, expected_s=expected_s))

    def refused(self, reason: str, status: Status = "refused") -> "Contender":
        """This contender with the reason why it may not answer requests."""
        return self._replace(candidate=replace(self.candidate, status=status, reason=reason))

    def after(self, earlier: Candidate | None) -> "Contender":
        """This contender with the rounds that an earlier pass has measured."""
        if earlier is None or earlier.plan != self.candidate.plan:
            return self
        row = replace(
            self.candidate,
            rounds_s=earlier.rounds_s,
            guard_s=earlier.guard_s,
            starts=earlier.starts,
            stolen=earlier.stolen,
        )
        return self._replace(candidate=row)

    def compared(self, reference: ReferenceAnswers) -> "Contender":
        """This contender with the result of comparing its outputs with ONNX Runtime's; refused if
        they differ."""
        try:
            result = result_of(self.prepared(), reference)
        except CoexecError as error:
            return self.refused(str(error))
        finally:
            self.release()
        entry = self._replace(candidate=replace(self.candidate, comparison=result.in_words))
        return entry if result.reason is None else entry.refused(result.in_words)


def _pairs(outcome: Outcome[int], which: int, reference: int, figure: Requests) -> Rounds:
    """Seconds of a rival and of the reference, in the rounds that both have run."""
    return tuple(
        zip(outcome.rounds_s(which, figure), outcome.rounds_s(reference, figure), strict=False)
    )


def _with_medians(row: Candidate) -> Candidate:
    """``row`` with the medians of all its rounds, also of earlier races."""
    figures = {row.requests: row.rounds_s}
    if row.guard_s:
        figures["loop"] = row.guard_s
    medians = {
        f"{figure}_s": statistics.median(own_s for own_s, _ in rounds_s)
        for figure, rounds_s in figures.items()
        if rounds_s and figure != "parallel"
    }
    return replace(row, **medians)  # type: ignore[arg-type]


def without_plan(
    names: Configuration,
    status: Status,
    reason: str,
    expected_s: float | None = None,
    *,
    planner: str = "",
) -> Candidate:
    """The candidate of a configuration for which there is no plan, at least not by ``planner``."""
    engines = tuple(dict.fromkeys(engine for name in names if (engine := parse(name).engine)))
    return Candidate(
        names, planner, engines=engines, status=status, reason=reason, expected_s=expected_s
    )


def contender(
    names: Configuration,
    planner: str,
    plans: Sequence[tuple[PlanningContext, Plan]],
    predicted_s: float | None = None,
) -> Contender:
    """A contender with one plan, or with several beside each other."""
    places = [place for _, plan in plans for place in plan.places]
    engines = tuple(dict.fromkeys(place.engine for place in places))
    options = plans[0][0].settings.engine_options
    candidate = Candidate(
        names,
        planner,
        predicted_s,
        plan=digest([plan.to_json() for _, plan in plans]),
        engines=engines,
        options={engine: dict(options[engine]) for engine in engines if engine in options},
        own_session=all(plan.as_given for _, plan in plans),
    )
    return Contender(candidate, plans)


def single_device_contenders(work: PlanningContext, names: Configuration) -> list[Contender]:
    """Contenders that run the whole model on one device.

    If the engine has a session of its own, there are two: that session, and the model as rewritten
    by coexec, which makes some models much faster (`engines.onnxruntime.alignment`).

    Raises:
        InfeasibleError: the device does not run the whole model.
    """
    plan = work.plan("single")
    contenders = [contender(names, "single", [(work, plan)])]
    if plan.as_given:
        rewritten = replace(plan, as_given=False)
        contenders.append(contender(names, "single, rewritten", [(work, rewritten)]))
    return contenders
