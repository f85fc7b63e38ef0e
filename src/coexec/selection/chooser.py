"""planner="auto": choose devices, configuration and plan by running the candidates.

The cores of a machine can be one wide device or several narrow ones, with or without a GPU. The
fastest choice depends on the model: many branches favour plans, one long chain favours a wide
device, and on many cores a few of them can be faster than all. So configurations are profiled,
planned by several planners and simulated; where there are many, those with the best expectations
are (`forecast`, `candidates`). The plans with the best predictions, and every single device, then
run for real, each in turns with the reference, a single device (`plan_race`). It is ONNX Runtime on
all cores, or the user's own session if that has another execution provider. A plan is taken only
if its rounds prove that it is faster (`ranking`), and if its outputs are those of ONNX Runtime
(`comparison`); otherwise the reference is taken.

The choice is kept in the cache after each race, with all rounds. Where it is open, because a plan
is in doubt or was not tried, a further pass goes on from there: it repeats no step that has settled
a candidate.

In mode "throughput" there are no plans for several devices: each device of a configuration runs
whole requests, and threads send many of them. All else is the same.
"""

import json
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from coexec.cache import Entry
from coexec.engines import detect
from coexec.engines.names import cores_of, parse, whole_cpu, without_engine
from coexec.engines.registry import describe, device_of, failing, installed
from coexec.errors import (
    CoexecError,
    DeviceError,
    ExecutionError,
    InfeasibleError,
)
from coexec.hardware.hardware import System
from coexec.keys import digest
from coexec.model.declared import sizes_of
from coexec.plan.plan import Plan
from coexec.precision import FLOAT32, Precision
from coexec.rules import Rules
from coexec.selection.candidates import (
    Candidates,
    Deadline,
    OutOfTimeError,
    Plans,
    release,
    without_plan,
)
from coexec.selection.comparison import ReferenceAnswers, compared, is_exact, known
from coexec.selection.configurations import (
    Configuration,
    accelerators,
    check_precision,
    configurations,
    in_lower_precision,
)
from coexec.selection.decision import Candidate, Decision, Key
from coexec.selection.mixed import PrecisePlans
from coexec.selection.offer import measured_offer
from coexec.selection.plan_race import PlanRace, prepared_of
from coexec.selection.planning_context import PlanningContext
from coexec.selection.prepared import Prepared
from coexec.selection.race import Compete, compete
from coexec.selection.ranking import Ranking, is_settled, objective_of
from coexec.selection.user_model import UserModel, opened_cache
from coexec.settings import Settings

if TYPE_CHECKING:  # importing planners and ONNX takes longer than starting from the cache
    from coexec.selection.forecast import Forecasts

_FORM = 5
"""Number of the form of a choice in the cache. Choices of another form are not found."""
_FILE = "choice.json"
_SINGLES_FIRST = "single devices come first, and there was no time for others"
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
            UsageError: an option that does not exist, a value that it does not take, or a precision
                that no engine of the devices has.
            DeviceError: a device that does not exist.
        """
        self._settings = settings = settings or Settings()
        check_precision(settings.precision, settings.devices, settings.engine_options)
        self._rules = settings.rules.with_options(settings.planner_options)
        if "planners" in settings.planner_options:  # the default planners exist
            from coexec.planners import find_planner

            for planner in self._rules.planner_names:
                find_planner(planner)
        self._objective = objective_of(settings.mode, self._rules)
        self._beside_ort, self._compete, self._found = beside_ort, compete, found
        self._deadline = Deadline()
        self._precise_plans = PrecisePlans(self._open, self._report_planning)
        self._cache = opened_cache(settings.cache)
        self._source = source
        self._first_names = tuple(settings.devices or [whole_cpu()])
        self._first = self._open(self._first_names)

    @cached_property
    def _reference(self) -> Configuration | None:
        """The device of the user's own session; None if the settings name none.

        Raises:
            DeviceError: it cannot be used. The user's session is then not compared with anything.
        """
        if not self._settings.reference:
            return None
        engine, _, number = self._settings.reference.partition(":")
        return (device_of(engine, int(number)),)

    @cached_property
    def _configurations(self) -> Sequence[Configuration]:
        """The configurations to try. Used only without a cached choice: it loads all engines."""
        of = self._settings
        configured = configurations(of.devices, self._rules, self._precision, of.engine_options)
        if (reference := self._reference) is not None:
            return [reference, *(n for n in configured if n != reference)]
        default: Configuration = (whole_cpu(),)
        return (
            [default, *(n for n in configured if n != default)] if self._beside_ort else configured
        )

    @cached_property
    def _precision(self) -> Precision:
        """The least precise arithmetic that a plan may use: that of the user's own session, too,
        and a model in float16 allows fp16."""
        least: Precision = self._settings.precision
        if least == FLOAT32 and self._reference is not None:
            (own,) = self._reference
            least = describe(own, self._settings.engine_options).engine.precision
        tensors = self._first.graph.tensors.values()
        is_narrow = least == FLOAT32 and any(tensor.dtype == "float16" for tensor in tensors)
        return "fp16" if is_narrow else least

    @cached_property
    def known(self) -> Prepared | None:
        """The earlier choice, from the cache; None if there is none. Makes no choice."""
        return None if self._settings.fresh else self._remembered(self._key)

    @property
    def _earlier(self) -> Prepared | None:
        """The choice from which the next pass goes on: `known`, or else that in float32, of which
        everything counts where a lower precision is allowed."""
        return self.known or self._in_float32

    @cached_property
    def _in_float32(self) -> Prepared | None:
        of = self._settings
        if of.fresh or of.precision == FLOAT32:
            return None
        return self._remembered(self._key_of(replace(of, precision=FLOAT32, tolerance=None)))

    @property
    def _before(self) -> Decision | None:
        """How `_earlier` was chosen."""
        return None if self._earlier is None else self._earlier.decision

    def _open(self, names: Sequence[str]) -> PlanningContext:
        settings = replace(
            self._settings, devices=names, cache=self._cache, progress=self._report_planning
        )
        return PlanningContext(self._source, settings)

    def _context(self, names: Configuration) -> PlanningContext:
        """The devices of a configuration; the first ones are open already."""
        return self._first if names == self._first_names else self._open(names)

    def _alone(self, name: str) -> tuple[PlanningContext, Plan]:
        """The plan of a single device, with the context that starts it. If the user names the
        device with its engine, and no other engine there, it computes the whole model or nothing.

        Raises:
            CoexecError: it cannot run the model.
        """
        own, named = parse(name), map(parse, self._settings.devices or ())
        work = self._context((name,))
        try:
            if {each.engine for each in named if each.device == own.device} == {own.engine}:
                return work, work.plan("single")
            return work.completed()
        except Exception:
            work.release()
            raise

    def _report(self, what: str, done: int, total: int) -> None:
        if self._settings.progress is not None:
            self._settings.progress(what, done, total)

    def _report_planning(self, what: str, done: int, total: int) -> None:
        """Report the progress of profiles and plans.

        Raises:
            OutOfTimeError: the time for profiles and plans is over.
        """
        self._report(what, done, total)
        self._deadline.check(self._rules)

    @property
    def user_model(self) -> UserModel:
        """The model."""
        return self._first.user_model

    @property
    def decision(self) -> Decision | None:
        """How the earlier choice was made; None if there is none."""
        return None if self.known is None else self.known.decision

    @property
    def is_open(self) -> bool:
        """Whether `go_on` may find a better plan than `known`."""
        decision = self.decision
        if decision is None:
            return True
        return decision.doubt is not None and (decision.idle_passes < self._rules.most_idle_passes)

    def make(self, again: bool = False) -> Prepared:
        """The earlier choice, or else a new one. Raises as `go_on` does.

        ``again``: make one more pass in any case.
        """
        return self.go_on() if again or self.known is None else self.known

    def _timed(self, seconds: float) -> Deadline:
        """A time limit from now on. The program's own requests are no part of it."""
        quiet = self._settings.quiet
        return Deadline(seconds, paused_s=(lambda: quiet.waited_s) if quiet else (lambda: 0.0))

    def go_on(self, seconds: float | None = None, alone: bool = False) -> Prepared:
        """The fastest plan that is proven after one more pass over the candidates that are not
        settled.

        Args:
            seconds: time limit of the pass; by default the limit of the rules.
            alone: try only single devices, which need no profile. The others are untried then.

        Raises:
            InfeasibleError: no configuration runs the model.
            ExecutionError: no plan computes the same outputs as ONNX Runtime.
            CoexecError: the model cannot be loaded.
        """
        before = self._before
        if before is not None and before.others > self._rules.busy:
            # Profiles that were measured on a busy machine are measured again.
            self._settings = replace(self._settings, fresh=True)
            self._first = self._open(self._first_names)
        graph = self._first.graph  # a model that cannot be loaded is no configuration's fault
        if seconds is not None:
            self._rules = replace(self._rules, seconds=seconds)
        deadline = self._deadline = self._timed(self._rules.seconds)
        settled = self._settled()
        reference = ReferenceAnswers(self._first, deadline.left_s())
        race = self._race(settled, deadline)
        made = self._candidates(settled.keys(), alone, reference, race)
        if not made.plans:
            reasons = "; ".join(f"{'+'.join(c.devices)}: {c.reason}" for c in made.rows)
            raise InfeasibleError(f"no configuration of devices runs {graph.name!r}: {reasons}")
        shortlist, left_out = self._worth_running(made)
        new = {row.key for row in made.rows}
        left_out += [row for key, row in settled.items() if key not in new and not row.rounds]
        self._run(race, shortlist, made, left_out)
        if self._reference is not None and race.reference is None and len(race.rows) > 1:
            rows = [*race.rows.values(), *left_out]
            why = [r.reason for r in rows if r.devices == self._reference and r.reason]
            raise DeviceError(
                f"no plan is compared with the session of {self._reference[0]}, which does not "
                f"start: {'; '.join(why)}"
            )
        order = self._compared(race, reference, deadline)
        self._deadline = Deadline()  # a profile for a report has no time limit
        decision = self._decision(race.ranking, order, left_out)
        prepared = self._prepared(race, order[0])
        assert prepared is not None  # `_compared` has started it
        self._remember(prepared, decision)
        self.known = replace(prepared, decision=decision)
        if not alone:
            self._settings = replace(self._settings, fresh=False)  # the profiles are new now
        return self.known

    def _race(self, settled: Mapping[Key, Candidate], deadline: Deadline) -> PlanRace:
        """A race with the figures of the candidates that are settled."""
        return PlanRace(
            {key: row for key, row in settled.items() if row.rounds},
            {},
            self._objective,
            self._rules,
            deadline,
            self._settings.quiet,
            self._report,
            self._compete,
            self._settings.memory_limit,
            self._reference,
        )

    def _run(
        self,
        race: PlanRace,
        rows: Sequence[Candidate],
        made: Candidates,
        left_out: Sequence[Candidate],
    ) -> None:
        """Race these candidates.

        Args:
            left_out: the candidates that do not run.
        """
        race.plans |= {row.key: made.plans[row.key] for row in rows}
        all_rows = race.rows | {row.key: row for row in rows if row.key not in race.raced}
        others = (key for key in all_rows if key not in race.plans)
        race.rows = {key: all_rows[key] for key in (*race.plans, *others)}
        race.found = partial(self._keep_figures, left_out)
        before, self._deadline = self._deadline, Deadline()  # reports have no time limit
        race.run()
        self._deadline = made.deadline = before.rest()

    @cached_property
    def _lower_device(self) -> str | None:
        """The first device in a precision that the settings do not allow; None: there is none."""
        names = self._settings.devices or (whole_cpu(), *accelerators())
        return in_lower_precision(names, self._precision)

    @property
    def can_offer(self) -> bool:
        """Whether `make_offer` has something to measure."""
        is_made = self.decision is not None and self.decision.offer is not None
        return not is_made and self._lower_device is not None

    def make_offer(self) -> Decision | None:
        """The decision of `known`, with what a lower precision would give. One candidate is
        measured: on the device of the taken plan, or else on all cores, or else on an accelerator.

        None if no engine has a lower precision than the settings allow, or it does not run.
        """
        before, known = self.decision, self.known
        if before is None or known is None or not self.can_offer:
            return None
        taken = before.taken.devices if before.taken.is_single else ()
        name = in_lower_precision(taken, self._precision) or self._lower_device
        assert name is not None  # else it could not offer anything
        self._deadline = Deadline()
        try:
            offer = measured_offer(
                *self._alone(name),
                known,
                ReferenceAnswers(self._first, 0.0),
                self._objective,
                self._rules,
                self._compete,
            )
        except CoexecError:
            return None
        if offer is None:
            return None
        decision = replace(before, offer=offer)
        self._remember(known, decision)
        self.known = replace(known, decision=decision)
        return decision

    def _keep_figures(self, left_out: Sequence[Candidate], race: PlanRace) -> None:
        """Keep the figures so far. No plan is compared yet, so the reference is taken, or the plan
        of the earlier choice."""
        order = race.ranking.order(self._chosen)
        safe = [row for row in order if row.key in (race.reference, self._chosen)]
        order = [*safe, *(row for row in order if row not in safe)]
        decision = self._decision(race.ranking, order, left_out, uncompared=race.plans.keys())
        self._found(decision)
        if (prepared := self._prepared(race, order[0])) is not None:
            self._remember(prepared, decision)

    @property
    def _chosen(self) -> Key | None:
        """The earlier choice, which was proven and compared."""
        return None if self._before is None else self._before.taken.key

    def _prepared(self, race: PlanRace, row: Candidate) -> Prepared | None:
        """The plan of a candidate, compiled; None if it is only a row of an earlier choice."""
        if (plans := race.plans.get(row.key)) is not None:
            return prepared_of(plans)
        return self._earlier if row.key == self._chosen else None

    def _settled(self) -> dict[Key, Candidate]:
        """The candidates that earlier passes have settled. The reference runs in every pass."""
        before = self._before
        rows = () if before is None else before.candidates
        reference = None if before is None else before.reference_row
        return {r.key: r for r in rows if r is not reference and is_settled(r, self._rules)}

    def _candidates(
        self, settled: Collection[Key], alone: bool, reference: ReferenceAnswers, race: PlanRace
    ) -> Candidates:
        """The candidates that are not settled, with the rounds of earlier passes.

        Single devices run in ``race`` before the others are planned: they need no profile, and one
        of them is often several times as fast as all others.
        """
        earlier = {} if self._before is None else {r.key: r for r in self._before.candidates}
        forecasts, unable = self._forecasts, self._unable
        possible = [
            names
            for names in self._configurations
            if names not in unable and (names, "") not in settled
        ]
        several = [names for names in possible if len(names) > 1]
        optional = forecasts is not None or self._objective.mode == "latency"
        later = several if alone or optional else []
        untried = [without_plan(names, "untried", _SINGLES_FIRST) for names in later]

        def run_but(made: Candidates, left: Collection[Key]) -> None:
            rows, _ = self._worth_running(made)
            rows = [self._with_rounds(row, earlier.get(row.key)) for row in rows]
            rows = [row for row in rows if not self._is_part(row) and row.key not in left]
            if rows:
                self._run(race, rows, made, untried)

        def run_singles(made: Candidates) -> None:
            users, rows = self._reference, self._worth_running(made)[0]
            # The user's own session may be as imprecise as it is.
            lower = {row.key for row in rows if row.precision and row.devices != users}
            if not optional:
                self._precise_plans.make(made, lower, reference)
                return
            float32 = [row for row in rows if not row.precision]
            first = [row for row in float32 if row.devices == users] or float32
            base = min(first, key=lambda row: row.rank_unmeasured, default=None)
            key = None if base is None else base.key
            self._precise_plans.race(made, lower, key, reference, race, partial(run_but, made))

        made = Candidates(
            self._context,
            self._alone,
            self._objective.mode,
            self._rules,
            self._deadline,
            self._report,
            None if forecasts is None else forecasts.of,
            lambda: None if forecasts is None else forecasts.forget(),
            run_singles,
            settled,
        )
        certain = [names for names in possible if names not in later]
        made.make(certain, [] if alone else later, self._profile_all_cores)
        if alone:
            made.rows += untried
        made.rows += [without_plan(names, "refused", reason) for names, reason in unable.items()]
        planned = {row.devices for row in earlier.values() if row.planner}
        made.rows = [
            self._with_rounds(row, earlier.get(row.key))
            for row in made.rows
            if row.planner or row.status != "untried" or row.devices not in planned
        ]
        new = {row.key for row in made.rows}
        made.rows += [  # their configurations were not reached in this pass
            row for key, row in earlier.items() if row.is_open and row.planner and key not in new
        ]
        return made

    def _with_rounds(self, row: Candidate, earlier: Candidate | None) -> Candidate:
        """``row`` with the rounds that an earlier pass has measured of its plan, if the machine was
        quiet."""
        if row.status == "untried" and earlier is not None and earlier.status == "in doubt":
            return earlier  # its rounds count in the next pass
        if earlier is None or earlier.plan != row.plan or earlier.others > self._rules.busy:
            return row
        return replace(
            row,
            rounds_s=earlier.rounds_s,
            guard_s=earlier.guard_s,
            starts=earlier.starts,
            stolen=earlier.stolen,
        )

    @cached_property
    def _failing(self) -> Mapping[str, str]:
        """By engine that fails on this machine, the reason; none if the user names devices."""
        return failing() if self._settings.devices is None else {}

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

        The profile of the first clusters is then the profile of a second number of cores.
        One number does not say how much a task gains from threads, and all cores are in every
        comparison.
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
        return self._key_of(self._settings)

    def _key_of(self, of: Settings) -> str:
        """Cache key of a choice: model, processors, installed engines, settings and rules.

        It loads only the engines that the devices name. `_remembered` compares the drivers of the
        chosen devices.
        """
        options = (
            of.mode,
            replace(self._rules, seconds=0.0),
            sorted(of.pins.items()),
            sorted(of.engine_options.items()),
            of.precision,
            of.tolerance,
            "" if of.precision == FLOAT32 else self._first.user_inputs,
            of.waiting,
            *([of.reference] if of.reference else []),
            *([] if of.memory_limit is None else [of.memory_limit]),
        )
        devices = (of.devices, self._beside_ort and of.devices is not None)
        machine = (devices, detect.clusters(), self._first.fingerprint, installed())
        return digest(_FORM, self._first.user_model.digest, machine, options)

    def _worth_running(self, made: Candidates) -> tuple[list[Candidate], list[Candidate]]:
        """The candidates that run; and the others, with the reason why they do not run.

        Of the plans for several devices, those with the best predictions run, and of the devices
        with fewer cores than there are, those with the best expectations. All others run. The time
        may be over before all have started. So plans for CPU cores with their first engine, which
        is the reference, start first, then plans in a lower precision, which the user has asked
        for.
        Devices with fewer cores start last, as they seldom win.
        """
        able = [self._expecting(row) for row in made.rows if row.key in made.plans]
        predicted = [(s, row) for row in able if (s := row.predicted_s) is not None]
        single = [
            (math.inf if row.expected_s is None else row.expected_s, row)
            for row in able
            if row.is_single
        ]
        parts = [(seconds, row) for seconds, row in single if self._is_part(row)]
        near, far = _nearest(predicted, predicted, "prediction", self._rules)
        near_parts, far_parts = _nearest(parts, single, "expectation", self._rules)
        certain = [r for r in able if r.predicted_s is None and not self._is_part(r)]
        shortlist = [*certain, *near_parts, *near]
        shortlist.sort(
            key=lambda r: (
                r.devices != self._reference,
                self._is_part(r),
                not r.is_plain,
                not r.precision,
            )
        )
        unable = [row for row in made.rows if row.key not in made.plans]
        return shortlist, [*far, *far_parts, *unable]

    def _expecting(self, row: Candidate) -> Candidate:
        """A single device with its expected seconds after all profiles."""
        if self._forecasts is None or not row.is_single:
            return row
        return replace(row, expected_s=self._forecasts.of(row.devices))

    def _is_part(self, row: Candidate) -> bool:
        """Whether it is one device with fewer CPU cores than there are; the user has named none."""
        if self._forecasts is None or not row.is_single:
            return False
        (name,) = row.devices
        return parse(name).kind == "cpu" and without_engine(name) != whole_cpu()

    def _compared(
        self, race: PlanRace, reference: ReferenceAnswers, deadline: Deadline
    ) -> list[Candidate]:
        """The candidates by rank, from the first one on whose outputs agree with ONNX Runtime's;
        rejected ones last.

        Raises:
            ExecutionError: no plan agrees.
        """
        reference.limit(deadline.left_s())
        order, rejected = race.ranking.order(self._chosen), list[Candidate]()
        what = "answers compared with ONNX Runtime's"
        for number, row in enumerate(order):
            self._report(what, number, len(order))
            is_users = self._reference is not None and row.key == race.reference
            if row.key in race.plans and row.is_able and not is_users:
                row = _compared(row, race.plans[row.key], reference)
            elif row.key not in race.plans and row.key != self._chosen:
                continue  # a row of an earlier choice
            if row.is_able:
                self._report(what, len(order), len(order))
                first = {r.key for r in (row, *rejected)}
                return [row, *(r for r in order if r.key not in first), *rejected]
            rejected.append(row)
        reasons = "; ".join(f"{'+'.join(row.devices)}: {row.reason}" for row in rejected)
        raise ExecutionError(f"no plan may answer: {reasons}")

    def _decision(
        self,
        ranking: Ranking,
        order: Sequence[Candidate],
        left_out: Sequence[Candidate],
        uncompared: Collection[Key] | None = None,
    ) -> Decision:
        """The record of the choice of the first plan in ``order``.

        Args:
            uncompared: candidates whose outputs are not compared yet; None: the pass has ended.
        """
        rows = (*ranking.explained(order, uncompared or ()), *left_out)
        taken, shapes = rows[0], " and ".join(sizes_of(self._first.shapes))
        before, is_final = self.decision, uncompared is None
        idle_passes = 0 if before is None else before.idle_passes
        if is_final and before is not None:
            was_open = {row.key for row in before.candidates if row.is_open}
            still_open = {row.key for row in rows if row.is_open}
            idle_passes = idle_passes + 1 if was_open <= still_open else 0
        return Decision(
            candidates=rows,
            verdict=f"{taken} is taken: {taken.reason}{f', for {shapes}' if shapes else ''}",
            mode=self._objective.mode,
            requests=self._rules.requests,
            reference=None if ranking.reference is None else str(ranking.reference),
            shapes=shapes,
            others=max(row.others for row in rows),
            stolen=max(row.stolen for row in rows),
            passes=(0 if before is None else before.passes) + is_final,
            idle_passes=idle_passes,
            failing=self._failing,
            offer=before.offer if before is not None and before.taken.key == taken.key else None,
        )

    def _remember(self, chosen: Prepared, decision: Decision) -> None:
        rows = [
            (each.work.settings.devices, each.work.fingerprint, each.plan.to_json())
            for each in (chosen, *chosen.beside)
        ]
        content = json.dumps({"plans": rows, "decision": decision.to_json()}).encode()
        self._cache.add("choices", self._key, Entry({_FILE: content}))

    def _remembered(self, key: str) -> Prepared | None:
        """The choice in the cache, unless it is damaged or its devices have other drivers now."""
        entry = self._cache.find("choices", key)
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
        except (OSError, ValueError, LookupError, TypeError, CoexecError):
            return None


def _differs(plan: Prepared) -> bool:
    result = known(plan)
    return result is not None and result.reason is not None


def _compared(row: Candidate, plans: Plans, reference: ReferenceAnswers) -> Candidate:
    """``row`` with the result of comparing its outputs with ONNX Runtime's; refused if they
    differ."""
    try:
        result = compared(prepared_of(plans), reference=reference)
    except CoexecError as error:
        return row.excluded(str(error))
    finally:
        release(plans)
    row = replace(row, comparison=result.in_words)
    return row if result.reason is None else row.excluded(result.in_words)


def _nearest(
    timed: Sequence[tuple[float, Candidate]],
    rivals: Sequence[tuple[float, Candidate]],
    basis: str,
    rules: Rules,
) -> tuple[list[Candidate], list[Candidate]]:
    """The candidates that are worth running, the best first; and the others with the reasons.

    Args:
        timed: candidates with their predicted or expected seconds.
        rivals: the candidates with the best of which they are compared.
        basis: what the seconds are: "prediction".
    """
    best_s = min((seconds for seconds, _ in rivals), default=0.0)
    ordered = sorted(timed, key=lambda pair: pair[0])
    near = [row for seconds, row in ordered if seconds <= rules.worth_trying * best_s or row.rounds]
    far = [
        row.excluded(
            f"{number} plans have a better {basis}, and only {rules.shortlist} run"
            if number < len(near)
            else f"that is {seconds / best_s:.2f} times the best {basis}; above "
            f"{rules.worth_trying:g} a plan does not run",
            "left out",
        )
        for number, (seconds, row) in enumerate(ordered)
        if number >= min(len(near), rules.shortlist)
    ]
    return near[: rules.shortlist], far
