"""Contender: a configuration of devices with a plan for it, which can take part in a race."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from coexec.engines.names import parse
from coexec.engines.registry import load_engine
from coexec.errors import CoexecError
from coexec.plan.plan import Plan
from coexec.selection.comparison import ReferenceAnswers, result_of
from coexec.selection.configurations import Configuration
from coexec.selection.deadline import UntriedError
from coexec.selection.decision import Candidate, Requests, Status
from coexec.selection.planning_context import PlanningContext
from coexec.selection.prepared import Prepared
from coexec.selection.race import Outcome
from coexec.selection.race_confidence import spread

__all__ = ["Contender", "Standing", "contender", "single_device_contenders", "without_plan"]


class Standing(NamedTuple):
    """The place of a plan in the ranking."""

    ratio: float = math.inf
    """Ranks the plan: the median ratio of its time to the reference's, below one only if the plan
    is clearly faster; infinite if it did not run."""
    against: str | None = None
    """The rule by which it is not clearly faster than the reference; None if it is."""
    is_reference: bool = False


class Contender(NamedTuple):
    """A candidate with the plans to run it."""

    candidate: Candidate
    plans: Sequence[tuple[PlanningContext, Plan]]
    """One plan; or several that answer requests beside each other, in mode "throughput"."""
    rounds_s: Sequence[float] = ()
    """Seconds in each round of the race, by the figure that decides."""
    standing: Standing = Standing()

    @property
    def is_single(self) -> bool:
        return len(self.candidate.devices) == 1

    @property
    def is_plain(self) -> bool:
        """Whether it uses CPU cores only, with their first engine."""
        requests = [parse(name) for name in self.candidate.devices]
        return all(request.kind == "cpu" and not request.engines for request in requests)

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

    def measured(self, outcome: Outcome[int], which: int, figure: Requests) -> "Contender":
        """This contender with its figures as rival ``which`` of a race.

        If it failed and other rivals ran, its candidate is refused with the error; if it was not
        started in time, it is untried.
        """
        error = outcome.failed.get(which)
        if not (any(outcome.laps.values()) or isinstance(error, UntriedError)):
            error = None
        rounds_s = outcome.rounds_s(which, figure)
        parallel_s = outcome.median_s(which, "parallel")
        candidate = replace(
            self.candidate,
            paced_s=outcome.median_s(which, "paced"),
            loop_s=outcome.median_s(which, "loop"),
            per_s=None if parallel_s is None else 1 / parallel_s,
            requests=figure,
            spread=spread(rounds_s),
        )
        entry = self._replace(candidate=candidate, rounds_s=rounds_s)
        if error is None:
            return entry
        status: Status = "untried" if isinstance(error, UntriedError) else "refused"
        return entry._replace(candidate=replace(candidate, status=status, reason=str(error)))

    def expecting(self, expected_s: float | None) -> "Contender":
        """This contender with the seconds that were expected of its configuration."""
        return self._replace(candidate=replace(self.candidate, expected_s=expected_s))

    def refused(self, reason: str) -> "Contender":
        """This contender with the reason why it may not answer requests."""
        return self._replace(candidate=replace(self.candidate, status="refused", reason=reason))

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


def without_plan(
    names: Configuration,
    status: Status,
    reason: str,
    expected_s: float | None = None,
    *,
    planner: str = "",
) -> Candidate:
    """The candidate of a configuration for which there is no plan, at least not by ``planner``."""
    engines = tuple(dict.fromkeys(engine for name in names for engine in parse(name).engines))
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
