"""planner="auto": choose devices, configuration and plan by running the candidates.

The cores of a machine can be one wide device or several narrow ones, with or without a GPU. The
fastest choice depends on the model: many branches favour plans, one long chain favours a wide
device. So every configuration is profiled, planned by several planners and simulated. The plans
with the best predictions, and every single device, then run for real, in turns (`race`), until one
is clearly the fastest. It is compared with ONNX Runtime (`comparison`): if its outputs differ, it
is rejected and the next one is compared. The choice is kept in the cache. A plan that is not
clearly faster than the best single device is not chosen.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

from coexec.cache import Entry
from coexec.engines import detect
from coexec.engines.names import whole_cpu
from coexec.engines.registry import installed
from coexec.errors import (
    CoexecError,
    DeviceError,
    ExecutionError,
    InfeasibleError,
    PlanError,
    StoreError,
)
from coexec.keys import digest
from coexec.plan.plan import Plan
from coexec.selection.comparison import ReferenceAnswers, is_exact, known
from coexec.selection.configurations import Configuration, configurations
from coexec.selection.contender import Contender, single_device_contenders
from coexec.selection.deadline import Deadline, OutOfTimeError
from coexec.selection.opened_model import OpenedModel
from coexec.selection.planning_context import PlanningContext, opened_cache
from coexec.selection.prepared import Candidate, Prepared
from coexec.selection.race import Compete, Outcome, compete
from coexec.selection.race_confidence import doubt
from coexec.selection.ranking import race_of, ranked
from coexec.selection.settings import Settings
from coexec.timing.simulate import simulate

__all__ = ["Auto"]


class Auto:
    """Chooses a plan for one model on one machine; an earlier choice comes from the cache."""

    def __init__(
        self,
        source: Any,
        settings: Settings | None = None,
        *,
        alone: bool = False,
        compete: Compete = compete,
    ) -> None:
        """
        Args:
            source: as for `PlanningContext`.
            alone: try only single devices, which need no profile. If other configurations were left
                out because of it, a later call without it makes a new choice.
            settings: the planner has these options: "planners", comma-separated, for configurations
                of several devices; "shortlist", how many plans run for real; "requests", the figure
                that decides: "paced", 30 requests a second as a camera sends them, or "loop", one
                after the other; by default "paced" decides, and "loop" must not get slower;
                "seconds", how long the choice may take, 60 by default. Time in which planning waits
                for the program's own requests does not count, nor does loading the model.
            compete: runs the race.

        Raises:
            UsageError: an option that does not exist, or a value that it does not take.
            DeviceError: a device that does not exist.
        """
        self._settings = settings = settings or Settings()
        self._rules = settings.rules.with_options(settings.planner_options)
        self._alone, self._compete = alone, compete
        self._deadline = Deadline()
        self._cache = opened_cache(settings.cache)
        self._source = source
        self._first_names = tuple(settings.devices or [whole_cpu()])
        self._first = self._open(self._first_names)
        self._doubt: str | None = None
        self._busy = False
        self._races = 0
        self._before: Candidate | None = None

    @cached_property
    def _configurations(self) -> Sequence[Configuration]:
        """The configurations to try. Used only without a cached choice: it loads all engines."""
        return configurations(self._settings.devices, self._rules)

    @cached_property
    def _known(self) -> Prepared | None:
        """The earlier choice, from the cache."""
        return None if self._settings.fresh else self._remembered(self._key)

    def _open(self, names: Sequence[str]) -> PlanningContext:
        settings = replace(
            self._settings, devices=names, cache=self._cache, progress=self._report_planning
        )
        return PlanningContext(self._source, settings)

    def _report(self, what: str, done: int, total: int) -> None:
        if self._settings.progress is not None:
            self._settings.progress(what, done, total)

    def _report_planning(self, what: str, done: int, total: int) -> None:
        """Report the progress of profiles and plans.

        Raises:
            OutOfTimeError: the time for profiles and plans is over.
        """
        self._report(what, done, total)
        self._deadline.check(self._rules.planning_share)

    @property
    def given(self) -> OpenedModel:
        """The model."""
        return self._first.given

    @property
    def known(self) -> Prepared | None:
        """The earlier choice; None if there is none. Makes no choice."""
        return self._known

    @property
    def doubt(self) -> str | None:
        """Why the earlier choice should be raced again; None if it should not."""
        decided = self._known is None or self._races >= self._rules.most_races
        return None if decided else self._doubt

    def reconsider(self) -> Prepared:
        """Race again because the earlier choice is in doubt. It is confirmed or replaced.

        Profiles that were measured on a busy machine are measured again.
        """
        earlier = self._known
        self._before = earlier.candidates[0] if earlier is not None else None
        if self._busy:
            self._settings = replace(self._settings, fresh=True)
            self._first = self._open(self._first_names)
        self._known = None
        return self.choose()

    def choose(self) -> Prepared:
        """The fastest plan found for the model.

        Raises:
            InfeasibleError: no configuration runs it.
            ExecutionError: no plan computes the same outputs as ONNX Runtime.
            CoexecError: the model cannot be loaded.
        """
        if self._known is not None:
            return self._known
        graph = self._first.graph  # a model that cannot be loaded is no configuration's fault
        quiet = self._settings.quiet
        paused_s = (lambda: quiet.waited_s) if quiet is not None else (lambda: 0.0)
        deadline = self._deadline = Deadline(self._rules.seconds, paused_s=paused_s)
        able, left_out = self._contenders()
        self._deadline = Deadline()  # later measurements, for reports, have no time limit
        if not able:
            reasons = "; ".join(f"{'+'.join(c.devices)}: {c.refused}" for c in left_out)
            raise InfeasibleError(f"no configuration of devices runs {graph.name!r}: {reasons}")
        shortlist = self._worth_running(able)
        rules = self._rules
        budget_s = min(rules.race_s, max(rules.least_race_s, deadline.left_s(rules.racing_share)))
        outcome = race_of(shortlist, quiet, self._report, rules, budget_s, self._compete)
        order = self._compared(ranked(shortlist, outcome, rules))
        unraced = sorted((c for c in able if c not in shortlist), key=lambda c: c.predicted_s)
        candidates = [c.candidate for c in (*order, *unraced)] + left_out
        work, plan = order[0].work, order[0].plan
        self._doubt, self._busy = self._doubt_of(order, outcome), outcome.others > rules.busy
        self._races += 1
        self._remember(work, plan, candidates)
        self._known = replace(work.prepared(plan), candidates=tuple(candidates))
        return self._known

    def _contenders(self) -> tuple[list[Contender], list[Candidate]]:
        """Plans that can run, and the configurations that cannot or for which there was no time.

        Single devices come first: they need no profile, and one of them can always be chosen.
        """
        able: list[Contender] = []
        left_out: list[Candidate] = []
        count = len(self._configurations)
        for number, names in enumerate(sorted(self._configurations, key=_needs_profile), 1):
            try:
                if self._alone and _needs_profile(names):
                    left_out.append(_untried(names, "devices alone were tried first"))
                    continue
                if able:
                    self._deadline.check(self._rules.planning_share)
                able += self._planned(names)
            except OutOfTimeError:
                reason = f"there was no time for it within {self._rules.seconds:g} s"
                left_out.append(_untried(names, reason))
            except CoexecError as error:
                left_out.append(Candidate(names, "", None, refused=str(error)))
            self._report("configurations of devices", number, count)
        return able, left_out

    @cached_property
    def _key(self) -> str:
        """Cache key of the choice: model, processors, installed engines, and settings.

        It loads only the engines that the devices name. `_remembered` compares the drivers of the
        chosen devices.
        """
        of = self._settings
        options = (
            replace(self._rules, seconds=0.0),
            sorted(of.pins.items()),
            sorted(of.engine_options.items()),
            of.waiting,
        )
        machine = (of.devices, detect.clusters(), self._first.fingerprint, installed())
        return digest(self._first.given.digest, machine, options)

    def _planned(self, names: tuple[str, ...]) -> list[Contender]:
        """The different plans of a configuration, with simulated times.

        A single device needs no profile: there is one plan for it, and it is always raced.

        Raises:
            CoexecError: the configuration cannot run the model.
        """
        work = self._first if names == self._first_names else self._open(names)
        try:
            if len(names) == 1:
                return single_device_contenders(work, names)
            cost, system = work.measured
            contenders: dict[Any, Contender] = {}
            for planner in self._rules.planner_names:
                self._report_planning(f"planner {planner}", 0, 1)
                plan = work.plan(planner)
                self._report_planning(f"planner {planner}", 1, 1)
                if len(plan.used) == 1:
                    continue  # a configuration of its own
                predicted_s = simulate(work.schedule(plan), cost, system).makespan_s
                entry = Contender(Candidate(names, planner, predicted_s), work, plan)
                contenders.setdefault((tuple(plan.order.items()), plan.places, plan.fused), entry)
            return list(contenders.values())
        finally:
            work.release()  # some engines can use only one set of cores at a time

    def _worth_running(self, able: Sequence[Contender]) -> list[Contender]:
        """Every single device, and the plans with the best predictions."""
        alone = [entry for entry in able if entry.is_single]
        plans = sorted((c for c in able if not c.is_single), key=lambda c: c.predicted_s)
        limit = self._rules.worth_trying * plans[0].predicted_s if plans else 0.0
        near = [entry for entry in plans if entry.predicted_s <= limit]
        return alone + near[: self._rules.shortlist]

    def _compared(self, ranked: Sequence[Contender]) -> list[Contender]:
        """``ranked``, from the first plan on that agrees with ONNX Runtime; rejected plans last.

        Raises:
            ExecutionError: no plan agrees.
        """
        reference = ReferenceAnswers(self._first)
        rejected: list[Contender] = []
        for number, entry in enumerate(ranked):
            reason = entry.why_not(reference)
            if reason is None:
                return [entry, *ranked[number + 1 :], *rejected]
            rejected.append(entry.refused(reason))
        reasons = "; ".join(
            f"{'+'.join(e.candidate.devices)}: {e.candidate.refused}" for e in rejected
        )
        raise ExecutionError(f"no plan may answer: {reasons}")

    def _doubt_of(self, order: Sequence[Contender], outcome: Outcome[int]) -> str | None:
        """Why the choice should be raced again."""
        winner, *losers = order
        raced = [
            (entry.candidate, entry.rounds_s)
            for entry in losers
            if entry.rounds_s and entry.candidate.refused is None
        ]
        return doubt(
            winner.candidate,
            winner.rounds_s,
            raced,
            self._before,
            outcome.stolen,
            outcome.others,
            self._rules,
        )

    def _remember(self, work: PlanningContext, plan: Plan, candidates: Iterable[Candidate]) -> None:
        data = {
            "plan": plan.to_json(),
            "devices": work.fingerprint,
            "candidates": [asdict(c) for c in candidates],
            "doubt": self._doubt,
            "busy": self._busy,
            "seconds": self._rules.seconds,
            "alone": self._alone,
            "races": self._races,
        }
        self._cache.add("choices", self._key, Entry({"choice.json": json.dumps(data).encode()}))

    def _remembered(self, key: str) -> Prepared | None:
        """The choice in the cache, unless it is damaged or its devices have other drivers now."""
        entry = self._cache.find("choices", key)
        if entry is None:
            return None
        try:
            data = json.loads(entry.files["choice.json"])
            rows = data["candidates"]
            candidates = tuple(Candidate(**(r | {"devices": tuple(r["devices"])})) for r in rows)
            plan = Plan.from_json(data["plan"])
            work = self._open(candidates[0].devices)
            if work.fingerprint != data["devices"]:
                return None
            prepared = work.prepared(plan)
            if not is_exact(prepared) and (before := known(prepared)) and before.reason:
                return None  # a request has shown that its outputs differ
            more = self._rules.seconds > data["seconds"] or (data["alone"] and not self._alone)
            if more and any(c.untried for c in candidates):
                return None  # now there is time for configurations that were not tried
            self._doubt, self._busy, self._races = data["doubt"], data["busy"], data["races"]
            return replace(prepared, candidates=candidates)
        except (
            OSError,
            ValueError,
            KeyError,
            TypeError,
            IndexError,
            PlanError,
            StoreError,
            DeviceError,
        ):
            return None


def _untried(names: Configuration, reason: str) -> Candidate:
    return Candidate(names, "", None, refused=reason, untried=True)


def _needs_profile(names: Configuration) -> bool:
    return len(names) > 1
