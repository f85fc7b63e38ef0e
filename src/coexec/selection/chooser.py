"""planner="auto": choose devices, configuration and plan by running the candidates.

The cores of a machine can be one wide device or several narrow ones, with or without a GPU. The
fastest choice depends on the model: many branches favour plans, one long chain favours a wide
device, and on many cores a few of them can be faster than all. So configurations are profiled,
planned by several planners and simulated; where there are many, those with the best expectations
are (`forecast`, `agenda`). The plans with the best predictions, and every single device, then run
for real, each in turns with the reference, a single device (`plan_race`). A plan is taken only if
its rounds prove that it is faster (`ranking`), and if its outputs are those of ONNX Runtime
(`comparison`); otherwise the reference is taken.

The choice is kept in the cache after each race, with all rounds. Where it is open, because a plan
is in doubt or was not tried, a further pass goes on from there: it repeats no step that has settled
a candidate.

In mode "throughput" there are no plans for several devices: each device of a configuration runs
whole requests, and threads send many of them (`throughput`). All else is the same.
"""

import json
from collections.abc import Callable, Mapping, Sequence
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
from coexec.selection.opened_model import OpenedModel, opened_cache
from coexec.selection.plan_race import PlanRace
from coexec.selection.planning import ConfigurationPlanning
from coexec.selection.planning_context import PlanningContext
from coexec.selection.prepared import Prepared
from coexec.selection.race import Compete, compete
from coexec.selection.ranking import explained, is_settled, ranked, verdict
from coexec.settings import Settings

if TYPE_CHECKING:  # importing planners and ONNX takes longer than starting from the cache
    from coexec.selection.forecast import Forecasts

__all__ = ["Chooser"]

_FORM = 4
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
        beside_ort: bool = False,
        compete: Compete = compete,
        found: Callable[[Decision], None] = lambda decision: None,
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
            beside_ort: compare with ONNX Runtime's session on all cores, also if the settings name
                devices.
            compete: runs a race.
            found: called after each race with the decision so far.

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
        self._beside_ort, self._compete, self._found = beside_ort, compete, found
        self._deadline = Deadline()
        self._cache = opened_cache(settings.cache)
        self._source = source
        self._first_names = tuple(settings.devices or [whole_cpu()])
        self._first = self._open(self._first_names)

    @cached_property
    def _configurations(self) -> Sequence[Configuration]:
        """The configurations to try. Used only without a cached choice: it loads all engines."""
        configured = configurations(self._settings.devices, self._rules)
        default: Configuration = (whole_cpu(),)
        return (
            [default, *(n for n in configured if n != default)] if self._beside_ort else configured
        )

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
    def decision(self) -> Decision | None:
        """How the earlier choice was made; None if there is none."""
        return None if self._known is None else self._known.decision

    @property
    def is_open(self) -> bool:
        """Whether `go_on` may find a better plan than `known`."""
        decision = self.decision
        if decision is None:
            return True
        return decision.doubt is not None and (decision.idle_passes < self._rules.most_idle_passes)

    def choose(self) -> Prepared:
        """The earlier choice, or else a new one. Raises as `go_on` does."""
        return self.go_on() if self._known is None else self._known

    def go_on(self, seconds: float | None = None, alone: bool = False) -> Prepared:
        """The fastest plan that is proven after one more pass over the candidates that are not
        settled.

        Args:
            seconds: time limit of the pass; by default that of the rules.
            alone: try only single devices, which need no profile. The others are untried then.

        Raises:
            InfeasibleError: no configuration runs the model.
            ExecutionError: no plan computes the same outputs as ONNX Runtime.
            CoexecError: the model cannot be loaded.
        """
        before = self.decision
        if before is not None and before.others > self._rules.busy:
            # Profiles that were measured on a busy machine are measured again.
            self._settings = replace(self._settings, fresh=True)
            self._first = self._open(self._first_names)
        graph = self._first.graph  # a model that cannot be loaded is no configuration's fault
        if seconds is not None:
            self._rules = replace(self._rules, seconds=seconds)
        rules, quiet = self._rules, self._settings.quiet
        paused_s = (lambda: quiet.waited_s) if quiet is not None else (lambda: 0.0)
        deadline = self._deadline = Deadline(rules.seconds, paused_s=paused_s)
        able, rows = self._contenders(alone)
        self._deadline = Deadline()  # later measurements, for reports, have no time limit
        if not any(entry.plans for entry in able):
            reasons = "; ".join(f"{'+'.join(c.devices)}: {c.reason}" for c in rows)
            raise InfeasibleError(f"no configuration of devices runs {graph.name!r}: {reasons}")
        shortlist, unraced = self._worth_running(able)
        left_out = [*unraced, *rows]

        def found(entries: Sequence[Contender]) -> None:
            """Keep the figures so far. No plan is compared yet, so the reference is taken, or the
            plan of the earlier choice."""
            ordered = self._ranked(entries)
            safe = [e for e in ordered if e.standing.is_reference or self._is_chosen(e)]
            others = [e for e in ordered if e not in safe]
            decision = self._decision([*safe, *others], left_out, is_final=False)
            self._found(decision)
            if (prepared := self._prepared(safe[0])) is not None:
                self._remember(prepared, decision)

        race = PlanRace(
            self._objective, rules, quiet, self._report, self._compete, self._settings.memory_limit
        )
        entries = race.run(shortlist, deadline, found)
        order = self._compared(self._ranked(entries), deadline)
        decision = self._decision(order, left_out)
        prepared = self._prepared(order[0])
        assert prepared is not None  # `_compared` has started it
        self._remember(prepared, decision)
        self._known = replace(prepared, decision=decision)
        if not alone:
            self._settings = replace(self._settings, fresh=False)  # the profiles are new now
        return self._known

    def _ranked(self, entries: Sequence[Contender]) -> list[Contender]:
        before = self.decision
        chosen = None if before is None else before.taken
        return ranked(entries, self._objective, self._rules, chosen)

    def _is_chosen(self, entry: Contender) -> bool:
        """Whether a contender is the earlier choice, which was proven and compared."""
        before = self.decision
        return before is not None and entry.candidate.key == before.taken.key

    def _prepared(self, entry: Contender) -> Prepared | None:
        """The plan of a contender, compiled; None if it is only a row of an earlier choice."""
        if entry.plans:
            return entry.prepared()
        return self._known if self._is_chosen(entry) else None

    def _contenders(self, alone: bool) -> tuple[list[Contender], list[Candidate]]:
        """Plans that can run, with the rounds of earlier passes, and the configurations that cannot
        or that were left out. Candidates that are settled are only rows of the earlier choice."""
        forecasts, unable, earlier = self._forecasts, self._unable, self._earlier
        before = self.decision
        reference = None if before is None else before.reference_row  # runs in every pass
        settled = {
            key: row
            for key, row in earlier.items()
            if is_settled(row, self._rules) and row is not reference
        }
        possible = [
            names
            for names in self._configurations
            if names not in unable and (names, "") not in settled
        ]
        several = [names for names in possible if len(names) > 1]
        optional = forecasts is not None or self._objective.mode == "latency"
        later = several if alone or optional else []
        planning = ConfigurationPlanning(
            lambda names: self._first if names == self._first_names else self._open(names),
            self._objective.mode,
            self._rules,
            self._deadline,
            self._report,
            lambda: None if forecasts is None else forecasts.forget(),
            settled=settled.keys(),
        )
        agenda = Agenda(
            [names for names in possible if names not in later],
            [] if alone else later,
            None if forecasts is None else forecasts.of,
            self._rules,
            before_optional=self._profile_all_cores,
        )
        able, rows = planning.contenders(agenda)
        if alone:
            reason = "single devices come first, and there was no time for others"
            rows += [without_plan(names, "untried", reason) for names in several]
        rows += [without_plan(names, "refused", reason) for names, reason in unable.items()]
        able = [entry.after(self._quiet_row(earlier.get(entry.candidate.key))) for entry in able]
        new = {row.key for row in (*rows, *(entry.candidate for entry in able))}
        old = [row for key, row in settled.items() if key not in new]
        able += [Contender(row, ()) for row in old if row.rounds_s]
        lost = [
            row for key, row in earlier.items() if row.status == "in doubt" and key not in new
        ]  # their configurations were not reached; their rounds count in the next pass
        return able, [*rows, *lost, *(row for row in old if not row.rounds_s)]

    @property
    def _earlier(self) -> Mapping[tuple[tuple[str, ...], str], Candidate]:
        """The candidates of the earlier choice."""
        before = self.decision
        return {} if before is None else {row.key: row for row in before.candidates}

    def _quiet_row(self, row: Candidate | None) -> Candidate | None:
        """``row``, if its rounds were measured on a quiet machine."""
        return row if row is not None and row.others <= self._rules.busy else None

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
        devices = (of.devices, self._beside_ort and of.devices is not None)
        machine = (devices, detect.clusters(), self._first.fingerprint, installed())
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
        old = [entry for entry in able if not entry.plans]
        able = [self._expecting(e) if e.is_single else e for e in able if e.plans]
        certain = [e for e in able if e.candidate.predicted_s is None and not is_part(e)]
        plans = [(e.predicted_s, e) for e in able if e.candidate.predicted_s is not None]
        single = [(e.expected_s, e) for e in able if e.is_single]
        parts = [(seconds, e) for seconds, e in single if is_part(e)]
        near, far = _nearest(plans, plans, "prediction", self._rules)
        near_parts, far_parts = _nearest(parts, single, "expectation", self._rules)
        shortlist = [*certain, *near_parts, *near]
        shortlist.sort(key=lambda e: (is_part(e), not e.is_plain, e.builds_kernels))
        return [*shortlist, *old], [*far, *far_parts]

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
            if entry.plans and entry.candidate.is_able:
                entry = entry.compared(reference)
            elif not (entry.plans or self._is_chosen(entry)):
                continue  # a row of an earlier choice
            if entry.candidate.is_able:
                self._report(what, len(ranked), len(ranked))
                rest = [e for e in ranked if e.candidate.key != entry.candidate.key]
                out = {e.candidate.key for e in rejected}
                return [entry, *(e for e in rest if e.candidate.key not in out), *rejected]
            rejected.append(entry)
        reasons = "; ".join(
            f"{'+'.join(e.candidate.devices)}: {e.candidate.reason}" for e in rejected
        )
        raise ExecutionError(f"no plan may answer: {reasons}")

    def _decision(
        self, order: Sequence[Contender], left_out: Sequence[Candidate], is_final: bool = True
    ) -> Decision:
        rows = (*explained(order, is_final), *left_out)
        reference = [e.candidate for e in order if e.standing.is_reference]
        shapes = " and ".join(sizes_of(self._first.shapes))
        before = self.decision
        still_open = {row.key for row in rows if row.is_open}
        was_open = {key for key, row in self._earlier.items() if row.is_open}
        idle_passes = 0 if before is None else before.idle_passes
        if is_final and before is not None:
            idle_passes = idle_passes + 1 if was_open <= still_open else 0
        return Decision(
            candidates=rows,
            verdict=verdict(rows[0], shapes),
            mode=self._objective.mode,
            requests=self._rules.requests,
            reference=str(reference[0]) if reference else None,
            shapes=shapes,
            others=max(row.others for row in rows),
            stolen=max(row.stolen for row in rows),
            passes=(0 if before is None else before.passes) + is_final,
            idle_passes=idle_passes,
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
    near = [
        entry
        for seconds, entry in ordered
        if seconds <= rules.worth_trying * best_s or entry.candidate.rounds
    ]
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
