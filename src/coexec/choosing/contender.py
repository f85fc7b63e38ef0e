"""A configuration of devices with a plan for it, which can take part in a race."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from coexec.choosing.comparison import ReferenceAnswers, why_not
from coexec.choosing.configurations import Configuration
from coexec.choosing.doubt import spread
from coexec.choosing.race import Outcome, Requests
from coexec.engines.names import parse
from coexec.errors import CoexecError
from coexec.plans.plan import Plan
from coexec.workbench import Candidate, Workbench

__all__ = ["Contender", "single_device_contenders"]


class Contender(NamedTuple):
    """A candidate with what is needed to run it."""

    candidate: Candidate
    work: Workbench
    plan: Plan
    rounds_s: Sequence[float] = ()
    """Seconds in each round of the race, by the figure that decides."""

    @property
    def is_single(self) -> bool:
        return len(self.candidate.devices) == 1

    @property
    def is_plain(self) -> bool:
        """Whether it uses CPU cores with their first engine alone."""
        requests = [parse(name) for name in self.candidate.devices]
        return all(request.kind == "cpu" and not request.engines for request in requests)

    @property
    def predicted_s(self) -> float:
        """Infinite where nothing was predicted."""
        seconds = self.candidate.predicted_s
        return math.inf if seconds is None else seconds

    def measured(self, outcome: Outcome[int], which: int, requests: Requests) -> "Contender":
        """With its figures of the race as rival ``which``, or why it failed where others ran."""
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
        """With the reason for its place in the ranking."""
        return self._replace(candidate=replace(self.candidate, note=note))

    def refused(self, reason: str) -> "Contender":
        """With why it may not answer requests."""
        return self._replace(candidate=replace(self.candidate, refused=reason))

    def why_not(self, reference: ReferenceAnswers) -> str | None:
        """Why it may not answer requests; None if it computes what ONNX Runtime does."""
        try:
            return why_not(self.work.prepared(self.plan), reference)
        except CoexecError as error:
            return str(error)
        finally:
            self.work.release()  # some engines compute on one set of cores at a time


def single_device_contenders(work: Workbench, names: Configuration) -> list[Contender]:
    """The ways in which a device runs the model alone.

    Where its engine has an own session: that, and the model as coexec rewrites it, which some
    models gain much from (`engines.onnxruntime.alignment`).

    Raises:
        InfeasibleError: the device does not run the whole model.
    """
    plan = work.plan("single")
    contenders = [Contender(Candidate(names, "single", None), work, plan)]
    if plan.as_given:
        rewritten = replace(plan, as_given=False)
        contenders.append(Contender(Candidate(names, "single, rewritten", None), work, rewritten))
    return contenders
