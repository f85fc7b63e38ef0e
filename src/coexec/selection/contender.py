"""Contender: a configuration of devices with a plan for it, which can take part in a race."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from coexec.engines.names import parse
from coexec.errors import CoexecError
from coexec.plan.plan import Plan
from coexec.selection.comparison import ReferenceAnswers, why_not
from coexec.selection.configurations import Configuration
from coexec.selection.planning_context import PlanningContext
from coexec.selection.prepared import Candidate
from coexec.selection.race import Outcome, Requests
from coexec.selection.race_confidence import spread

__all__ = ["Contender", "single_device_contenders"]


class Contender(NamedTuple):
    """A candidate with its plan and the planning context that runs it."""

    candidate: Candidate
    work: PlanningContext
    plan: Plan
    rounds_s: Sequence[float] = ()
    """Seconds in each round of the race, of the requests that decide (`Requests`)."""

    @property
    def is_single(self) -> bool:
        return len(self.candidate.devices) == 1

    @property
    def is_plain(self) -> bool:
        """Whether it uses CPU cores only, with their first engine."""
        requests = [parse(name) for name in self.candidate.devices]
        return all(request.kind == "cpu" and not request.engines for request in requests)

    @property
    def predicted_s(self) -> float:
        """Predicted seconds; infinite without a prediction."""
        seconds = self.candidate.predicted_s
        return math.inf if seconds is None else seconds

    def measured(self, outcome: Outcome[int], which: int, requests: Requests) -> "Contender":
        """This contender with its figures as rival ``which`` of a race.

        If it failed and other rivals ran, its candidate is refused with the error.
        """
        error = outcome.failed.get(which) if any(outcome.laps.values()) else None
        rounds_s = outcome.rounds_s(which, requests)
        candidate = replace(
            self.candidate,
            paced_s=outcome.median_s(which, "paced"),
            loop_s=outcome.median_s(which, "loop"),
            requests=requests,
            spread=spread(rounds_s),
            refused=None if error is None else str(error),
        )
        return self._replace(candidate=candidate, rounds_s=rounds_s)

    def noted(self, note: str) -> "Contender":
        """This contender with the reason for its place in the ranking."""
        return self._replace(candidate=replace(self.candidate, note=note))

    def refused(self, reason: str) -> "Contender":
        """This contender with the reason why it may not answer requests."""
        return self._replace(candidate=replace(self.candidate, refused=reason))

    def why_not(self, reference: ReferenceAnswers) -> str | None:
        """Why it may not answer requests; None if its outputs agree with ONNX Runtime's."""
        try:
            return why_not(self.work.prepared(self.plan), reference)
        except CoexecError as error:
            return str(error)
        finally:
            self.work.release()  # some engines can use only one set of cores at a time


def single_device_contenders(work: PlanningContext, names: Configuration) -> list[Contender]:
    """Contenders that run the whole model on one device.

    If the engine has a session of its own, there are two: that session, and the model as rewritten
    by coexec, which makes some models much faster (`engines.onnxruntime.alignment`).

    Raises:
        InfeasibleError: the device does not run the whole model.
    """
    plan = work.plan("single")
    contenders = [Contender(Candidate(names, "single", None), work, plan)]
    if plan.as_given:
        rewritten = replace(plan, as_given=False)
        contenders.append(Contender(Candidate(names, "single, rewritten", None), work, rewritten))
    return contenders
