"""planner="auto": choose devices, configuration and plan by running the candidates.

The cores of a machine can be one wide device or several narrow ones, with or without a GPU. The
fastest choice depends on the model: many branches favour plans, one long chain favours a wide
device, and on many cores a few of them can be faster than all. So configurations are profiled,
planned by several planners and simulated; where there are many, those with the best expectations
are (`forecast`, `agenda`). The plans with the best predictions, and every single device, then run
for real, in turns (`race`), until one is clearly the fastest. It is compared with ONNX Runtime
(`comparison`): if its outputs differ, it is rejected and the next one is compared. The choice is
kept in the cache. A plan that is not clearly faster than the reference, a single device, is not
chosen (`ranking`).

In mode "throughput" there are no plans for several devices: each device of a configuration runs
whole requests, and threads send many of them (`throughput`). All else is the same.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from coexec.cache import Entry
from coexec.engines import detect
from coexec.engines.names import cores_of, parse, whole_cpu, without_engine
from coexec.engines.registry import describe, installed
from coexec.errors import (
    CoexecError,
    DeviceError,
    ExecutionError,
    InfeasibleError,
    PlanError,
    StoreError,
)
from coexec.hardware.hardware import System
from coexec.keys import digest
from coexec.model.declared import sizes_of
from coexec.plan.plan import Plan
from coexec.rules import Rules
from coexec.selection.agenda import Agenda
from coexec.selection.comparison import ReferenceAnswers, is_exact, known
from coexec.selection.configurations import Configuration, configurations
from coexec.selection.contender import Contender, without_plan
from coexec.selection.deadline import Deadline, OutOfTimeError
from coexec.selection.decision import Candidate, Decision
from coexec.selection.objective import objective_of
from coexec.selection.opened_model import OpenedModel
from coexec.selection.plan_race import PlanRace
from coexec.selection.planning import ConfigurationPlanning
from coexec.selection.planning_context import PlanningContext, opened_cache
from coexec.selection.prepared import Prepared
from coexec.selection.race import Compete, Outcome, compete
from coexec.selection.race_confidence import doubt
from coexec.selection.ranking import explained, ranked, verdict
from coexec.settings import Settings

if TYPE_CHECKING:  # importing planners and ONNX takes longer than starting from the cache
    from coexec.selection.forecast import Forecasts

__all__ = ["Chooser"]

_FORM = 3
"""Number of the form of a choice in the cache. Choices of another form are not found."""
_FILE = "choice.json"
_DIVIDING = frozenset({"codl", "mulayer"})
"""Planners that divide tasks."""


class Chooser:
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
            settings: the mode is the objective. The planner has these options: "planners",
                comma-separated, for configurations of several devices; "shortlist", how many plans
                run for real; "requests", the figure that decides: "paced", 30 requests a second as
                a camera sends them, or "loop", one after the other; by default "paced" decides, and
                "loop" must not get slower; "seconds", how long the choice may take, 60 by default.
                Time in which planning waits for the program's own requests does not count, nor does
                loading the model.
            alone: try only single devices, which need no profile. If other configurations were left
                out because of it, a later call without it makes a new choice.
            compete: runs the race.

        Raises:
            UsageError: an option that does not exist, or a value that it does not take.
            DeviceError: a device that does not exist.
        """
        self._settings = settings = settings or Settings()
        self._rules = settings.rules.with_options(settings.planner_options)
        if "planners" in settings.planner_options:  # the default planners exist
            from coexec.planners import find_planner

            for planner in self._rules.planner_names:
                find_planner(planner)
        self._objective = objective_of(settings.mode, self._rules)
        self._alone, self._compete = alone, compete
        self._deadline = Deadline()
        self._cache = opened_cache(settings.cache)
        self._source = source
        self._first_names = tuple(settings.devices or [whole_cpu()])
        self._first = self._open(self._first_names)
        self._earlier: Prepared | None = None
        """The choice that is reconsidered."""
        self._quicker: Prepared | None = None
        """The choice of an earlier call, with less time or among single devices only."""

    @cached_property
    def _configurations(self) -> Sequence[Configuration]:
        """The configurations to try. Used only without a cached choice: it loads all engines."""
        return configurations(self._settings.devices, self._rules)

    @cached_property
    def _known(self) -> Prepared | None:
        """The earlier choice, from the cache."""
        return None if self._settings.fresh else self._remembered()

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
    def quicker(self) -> Prepared | None:
        """The choice of an earlier call with less time, if there is no other one."""
        return self._quicker if self._known is None else None

    @property
    def decision(self) -> Decision | None:
        """How the earlier choice was made; None if there is none."""
        return None if self._known is None else self._known.decision

    @property
    def doubt(self) -> str | None:
        """Why the earlier choice should be raced again; None if it should not."""
        decision = self.decision
        if decision is None or decision.races >= self._rules.most_races:
            return None
        return decision.doubt

    def reconsider(self) -> Prepared:
        """Race again because the earlier choice is in doubt. It is confirmed or replaced.

        Profiles that were measured on a busy machine are measured again.
        """
        self._earlier, before = self._known, self.decision
        if before is not None and before.others > self._rules.busy:
            self._settings = replace(self._settings, fresh=True)
            self._first = self._open(self._first_names)
        self._known = None
        return self.choose()

    def choose(self) -> Prepared:
        """The fastest plan found for the model. An earlier choice is kept if there is no time to
        try its plan again.

        Raises:
            InfeasibleError: no configuration runs it.
            ExecutionError: no plan computes the same outputs as ONNX Runtime.
            CoexecError: the model cannot be loaded.
        """
        if self._known is not None:
            return self._known
        graph = self._first.graph  # a model that cannot be loaded is no configuration's fault
        rules, quiet = self._rules, self._settings.quiet
        paused_s = (lambda: quiet.waited_s) if quiet is not None else (lambda: 0.0)
        deadline = self._deadline = Deadline(rules.seconds, paused_s=paused_s)
        able, left_out = self._contenders()
        self._deadline = Deadline()  # later measurements, for reports, have no time limit
        if not able:
            reasons = "; ".join(f"{'+'.join(c.devices)}: {c.reason}" for c in left_out)
            raise InfeasibleError(f"no configuration of devices runs {graph.name!r}: {reasons}")
        shortlist, unraced = self._worth_running(able)
        race = PlanRace(
            self._objective, rules, quiet, self._report, self._compete, self._settings.memory_limit
        )
        outcome = race.run(shortlist, deadline)
        order = self._compared(ranked(shortlist, outcome, self._objective, rules), deadline)
        decision = self._decision(order, [*unraced, *left_out], outcome)
        earlier = self._earlier or self._quicker
        before = None if earlier is None else earlier.decision
        if earlier is None or before is None or _is_tried(before.taken, decision):
            prepared = order[0].prepared()
        else:
            prepared, decision = earlier, before.again(decision)
        self._remember(prepared, decision)
        self._known = replace(prepared, decision=decision)
        return self._known

    @property
    def _before(self) -> Decision | None:
        """The decision that is reconsidered."""
        return None if self._earlier is None else self._earlier.decision

    def _contenders(self) -> tuple[list[Contender], list[Candidate]]:
        """Plans that can run, and the configurations that cannot or that were left out."""
        forecasts = self._forecasts
        unable = self._unable
        possible = [names for names in self._configurations if names not in unable]
        several = [names for names in possible if len(names) > 1]
        optional = forecasts is not None or self._objective.mode == "latency"
        later = several if self._alone or optional else []
        planning = ConfigurationPlanning(
            lambda names: self._first if names == self._first_names else self._open(names),
            self._objective.mode,
            self._rules,
            self._deadline,
            self._report,
            lambda: None if forecasts is None else forecasts.forget(),
        )
        agenda = Agenda(
            [names for names in possible if names not in later],
            [] if self._alone else later,
            None if forecasts is None else forecasts.of,
            self._rules,
            before_optional=self._profile_all_cores,
        )
        able, rows = planning.contenders(agenda)
        if self._alone:
            reason = "single devices come first, and there was no time for others"
            rows += [without_plan(names, "untried", reason) for names in several]
        rows += [without_plan(names, "refused", reason) for names, reason in unable.items()]
        return able, rows

    @cached_property
    def _unable(self) -> Mapping[Configuration, str]:
        """The configurations that cannot be open together, with the reason."""
        unable = {}
        for names in self._configurations:
            try:
                System(tuple(describe(name, self._settings.engine_options) for name in names))
            except DeviceError as error:
                unable[names] = str(error)
        return unable

    def _profile_all_cores(self) -> None:
        """Measure the tasks on all cores as one device, if expectations decide what is profiled.

        The profile of the first clusters is then that of a second number of cores. One number does
        not say what a task gains from threads, and all cores are in every comparison.
        """
        if self._forecasts is None or self._objective.mode != "latency":
            return
        with suppress(OutOfTimeError, CoexecError):  # reported for the configurations that follow
            _ = self._first.measured
        self._first.release()
        self._forecasts.forget()

    @cached_property
    def _forecasts(self) -> "Forecasts | None":
        """Expectations for the configurations of a machine with many cores. On a few cores, and
        with named devices, there are few configurations, and all are tried."""
        whole = self._first.devices[0].spec
        if self._settings.devices is not None or len(whole.cores) <= self._rules.few_cores:
            return None
        from coexec.selection.forecast import Forecasts

        requests = {parse(name) for names in self._configurations for name in names}
        return Forecasts(
            self._first.graph,
            self._cache.root,
            partial(describe, options=self._settings.engine_options),
            whole,
            {len(cores_of(request)) for request in requests if request.kind == whole.kind},
            mode=self._objective.mode,
            waiting=self._settings.waiting,
            divides=not _DIVIDING.isdisjoint(self._rules.planner_names),
        )

    @cached_property
    def _key(self) -> str:
        """Cache key of the choice: model, processors, installed engines, settings and rules.

        It loads only the engines that the devices name. `_remembered` compares the drivers of the
        chosen devices.
        """
        of = self._settings
        options = (
            of.mode,
            replace(self._rules, seconds=0.0),
            sorted(of.pins.items()),
            sorted(of.engine_options.items()),
            of.waiting,
            *([] if of.memory_limit is None else [of.memory_limit]),
        )
        machine = (of.devices, detect.clusters(), self._first.fingerprint, installed())
        return digest(_FORM, self._first.given.digest, machine, options)

    def _worth_running(
        self, able: Sequence[Contender]
    ) -> tuple[list[Contender], Sequence[Candidate]]:
        """The plans that run; and the others, with the reason why they do not run.

        Of the plans for several devices, those with the best predictions run, and of the devices
        with fewer cores than there are, those with the best expectations. All others run. The time
        may be over before all have started. So plans for CPU cores with their first engine, which
        is the reference, start first, and engines that build kernels after those that do not.
        Devices with fewer cores start last, as they seldom win.
        """
        is_part = self._is_part
        able = [self._expecting(entry) if entry.is_single else entry for entry in able]
        certain = [e for e in able if e.candidate.predicted_s is None and not is_part(e)]
        plans = [(e.predicted_s, e) for e in able if e.candidate.predicted_s is not None]
        single = [(e.expected_s, e) for e in able if e.is_single]
        parts = [(seconds, e) for seconds, e in single if is_part(e)]
        near, far = _nearest(plans, plans, "prediction", self._rules)
        near_parts, far_parts = _nearest(parts, single, "expectation", self._rules)
        shortlist = [*certain, *near_parts, *near]
        shortlist.sort(key=lambda e: (is_part(e), not e.is_plain, e.builds_kernels))
        return shortlist, [*far, *far_parts]

    def _expecting(self, entry: Contender) -> Contender:
        """A single device with its expected seconds after all profiles."""
        if self._forecasts is None:
            return entry
        return entry.expecting(self._forecasts.of(entry.candidate.devices))

    def _is_part(self, entry: Contender) -> bool:
        """Whether it is one device with fewer CPU cores than there are; the user has named none."""
        if self._forecasts is None or not entry.is_single:
            return False
        (name,) = entry.candidate.devices
        return parse(name).kind == "cpu" and without_engine(name) != whole_cpu()

    def _compared(self, ranked: Sequence[Contender], deadline: Deadline) -> list[Contender]:
        """``ranked``, from the first plan on that agrees with ONNX Runtime; rejected plans last.

        Raises:
            ExecutionError: no plan agrees.
        """
        reference = ReferenceAnswers(self._first, deadline.left_s())
        rejected: list[Contender] = []
        what = "answers compared with ONNX Runtime's"
        for number, entry in enumerate(ranked):
            self._report(what, number, len(ranked))
            entry = entry.compared(reference)
            if entry.candidate.is_able:
                self._report(what, len(ranked), len(ranked))
                return [entry, *ranked[number + 1 :], *rejected]
            rejected.append(entry)
        reasons = "; ".join(
            f"{'+'.join(e.candidate.devices)}: {e.candidate.reason}" for e in rejected
        )
        raise ExecutionError(f"no plan may answer: {reasons}")

    def _decision(
        self, order: Sequence[Contender], left_out: Sequence[Candidate], outcome: Outcome[int]
    ) -> Decision:
        rows = explained(order)
        reference = [e.candidate for e in order if e.standing.is_reference]
        shapes = " and ".join(sizes_of(self._first.shapes))
        before = self._before
        return Decision(
            candidates=(*rows, *left_out),
            verdict=verdict(rows[0], shapes),
            mode=self._objective.mode,
            requests=self._rules.requests,
            reference=str(reference[0]) if reference else None,
            shapes=shapes,
            others=outcome.others,
            stolen=outcome.stolen,
            doubt=self._doubt_of(order, outcome),
            races=1 if before is None else before.races + 1,
            seconds=self._rules.seconds,
            alone=self._alone,
        )

    def _doubt_of(self, order: Sequence[Contender], outcome: Outcome[int]) -> str | None:
        """Why the choice should be raced again."""
        winner, *losers = order
        raced = [
            (entry.candidate, entry.rounds_s)
            for entry in losers
            if entry.rounds_s and entry.candidate.is_able
        ]
        before = None if self._before is None else self._before.taken
        return doubt(
            winner.candidate,
            winner.rounds_s,
            raced,
            before,
            outcome.stolen,
            outcome.others,
            self._rules,
        )

    def _remember(self, chosen: Prepared, decision: Decision) -> None:
        rows = [
            (each.work.settings.devices, each.work.fingerprint, each.plan.to_json())
            for each in (chosen, *chosen.beside)
        ]
        content = json.dumps({"plans": rows, "decision": decision.to_json()}).encode()
        self._cache.add("choices", self._key, Entry({_FILE: content}))

    def _remembered(self) -> Prepared | None:
        """The choice in the cache, unless it is damaged or its devices have other drivers now."""
        entry = self._cache.find("choices", self._key)
        if entry is None:
            return None
        try:
            data = json.loads(entry.files[_FILE])
            decision = Decision.from_json(data["decision"])
            plans: list[Prepared] = []
            for names, fingerprint, plan in data["plans"]:
                work = self._open(names)
                if work.fingerprint != fingerprint:
                    return None
                plans.append(work.prepared(Plan.from_json(plan)))
            prepared = replace(plans[0], beside=tuple(plans[1:]), decision=decision)
            if not is_exact(prepared) and any(_differs(plan) for plan in plans):
                return None  # a request has shown that its outputs differ
            more = self._rules.seconds > decision.seconds or (decision.alone and not self._alone)
            if more and decision.untried:
                self._quicker = prepared
                return None
            return prepared
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


def _is_tried(taken: Candidate, decision: Decision) -> bool:
    """Whether a later decision has considered a candidate, or left it out for another reason than
    time."""
    rows = [
        c
        for c in decision.candidates
        if c.devices == taken.devices and c.planner in ("", taken.planner)
    ]
    return any(c.status != "untried" for c in rows)


def _differs(plan: Prepared) -> bool:
    result = known(plan)
    return result is not None and result.reason is not None


_Timed = tuple[float, Contender]
"""A plan with its predicted or expected seconds."""


def _nearest(
    entries: Sequence[_Timed], rivals: Sequence[_Timed], basis: str, rules: Rules
) -> tuple[list[Contender], list[Candidate]]:
    """The plans that are worth running, the best first; and the others with the reasons.

    Args:
        rivals: the plans with the best of which they are compared.
        basis: what the seconds are: "prediction".
    """
    best_s = min((seconds for seconds, _ in rivals), default=0.0)
    ordered = sorted(entries, key=lambda timed: timed[0])
    near = [entry for seconds, entry in ordered if seconds <= rules.worth_trying * best_s]
    far = [
        replace(
            entry.candidate,
            status="left out",
            reason=f"{number} plans have a better {basis}, and only {rules.shortlist} run"
            if number < len(near)
            else f"that is {seconds / best_s:.2f} times the best {basis}; above "
            f"{rules.worth_trying:g} a plan does not run",
        )
        for number, (seconds, entry) in enumerate(ordered)
        if number >= min(len(near), rules.shortlist)
    ]
    return near[: rules.shortlist], far
