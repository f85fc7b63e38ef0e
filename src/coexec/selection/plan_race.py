"""Race plans with the reference, one after the other, so that two plans are in memory at a time."""

import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from itertools import chain

from coexec.arrays import Array
from coexec.engines.registry import load_engine
from coexec.errors import CoexecError, DeviceError
from coexec.model.main_memory import least_bytes, main_memory_bytes, resident_bytes
from coexec.profiling.activity import Quiet, undisturbed
from coexec.profiling.processors import Load
from coexec.progress import ReportProgress
from coexec.rules import Rules
from coexec.selection.candidate_process import RivalProcess
from coexec.selection.candidates import Deadline, Plans, release
from coexec.selection.configurations import Configuration
from coexec.selection.decision import Candidate, Key, Requests, Rounds
from coexec.selection.prepared import Prepared
from coexec.selection.quiet_moment import Stopwatch, cpu_clock
from coexec.selection.race import Compete, Lap, Outcome, warm_turn
from coexec.selection.ranking import Objective, Ranking
from coexec.units import format_bytes


@dataclass
class PlanRace:
    """The plans that run for real, each in turns with the reference, and their figures so far.
    Plans that are added after a run race in the next one, with the same reference.

    The reference is the first single device that starts, one that uses CPU cores with their first
    engine if there is one; without a single device, the first plan that starts. Plans that are not
    started at the deadline do not run.
    """

    rows: dict[Key, Candidate]
    """The candidates, with the rounds of earlier passes; in the order in which they start."""
    plans: dict[Key, Plans]
    """The plans of the candidates that run. The others are settled."""
    objective: Objective
    rules: Rules
    deadline: Deadline
    quiet: Quiet | None
    report: ReportProgress
    compete: Compete
    memory_limit: int | None = None
    """Bytes that this process and those of rivals may use; None: a share of main memory."""
    users_session: Configuration | None = None
    """The device of the user's own session, which is then the only reference."""
    found: Callable[["PlanRace"], None] = lambda race: None
    """Called after each race of a plan."""
    reference: Key | None = None
    """The candidate with which the others are compared; None before the race."""
    raced: set[Key] = field(default_factory=set)
    """The plans whose turn has come."""

    @property
    def ranking(self) -> Ranking:
        """The figures so far, by the rules."""
        reference = None if self.reference is None else self.rows[self.reference]
        return Ranking(list(self.rows.values()), reference, self.objective, self.rules)

    def run(self) -> None:
        """Race all plans that have not been raced. A single candidate needs no race."""
        if len(self.rows) == 1:
            return
        if len(self.plans) == 1:  # all others are settled: it is the reference of earlier passes
            (self.reference,) = self.plans
            return
        before = dict(self.rows)
        first, _ = next(iter(self.plans.values()))[0]
        for feeds in first.model.candidates():
            self.rows = dict(before)
            with ExitStack() as stack:
                reference = self._start_reference(feeds, stack)
                if reference is None:
                    continue
                self.reference = reference.key
                self.raced.add(reference.key)
                waiting = self._rivals
                self._race_all(reference, waiting, feeds)
            self._race_again(reference.key, feeds)
            while waiting:
                with ExitStack() as stack:
                    try:
                        started_again = self._start(reference.key, feeds, stack)
                    except CoexecError as error:
                        self._leave_untried(waiting, reference.key, str(error))
                        break
                    self._race_all(started_again, waiting, feeds)
                self._race_again(reference.key, feeds)
            release(self.plans[reference.key])
            return
        if self.reference is not None:
            why = self.rows[self.reference].reason
            self.rows = before
            self.raced.add(self.reference)
            self._leave_untried(self._rivals, self.reference, why)

    def may_win(self, key: Key) -> bool:
        """Whether a plan was faster than the reference in its rounds so far, or has not started."""
        if key not in self.raced:
            return True
        row = self.rows[key]
        return row.is_able and row.ratio is not None and row.ratio < 1

    def withdraw(self, keys: Collection[Key]) -> dict[Key, Candidate]:
        """Take plans out of the race, so that others may race under their keys. Returns the rows of
        those that have raced."""
        rows = {key: self.rows.pop(key) for key in keys if key in self.rows}
        for key in keys:
            self.plans.pop(key, None)
        raced, self.raced = self.raced, self.raced - {*keys}
        return {key: row for key, row in rows.items() if key in raced}

    def give_back(self, row: Candidate, plans: Plans) -> None:
        """Add a plan that was withdrawn, with its figures."""
        self.rows[row.key], self.plans[row.key] = row, plans
        self.raced.add(row.key)

    def _leave_untried(self, waiting: Sequence[Key], reference: Key, why: str) -> None:
        """Plans that wait are untried if the reference does not start again. Its figures so far
        count."""
        for key in waiting:
            reason = f"{self.rows[reference]} did not start again: {why}"
            self.rows[key] = self.rows[key].excluded(reason, "untried")

    @property
    def _rivals(self) -> list[Key]:
        """The plans beside the reference that can start, at the end those whose engines build
        kernels."""
        others = self.plans.keys() - self.raced
        able = [row for key, row in self.rows.items() if key in others and row.is_able]
        return [row.key for row in sorted(able, key=_builds_kernels)]

    def _start_reference(self, feeds: Mapping[str, Array], stack: ExitStack) -> "_Rival | None":
        """Start the reference; None if no plan starts with these inputs."""
        rows = [self.rows[key] for key in self.plans if self.reference in (None, key)]
        if self.users_session is not None:
            rows = [row for row in rows if row.devices == self.users_session and row.own_session]
        for row in sorted(rows, key=lambda row: row.rank_unmeasured):
            try:
                return self._start(row.key, feeds, stack)
            except CoexecError as error:
                self.rows[row.key] = row.excluded(str(error))
        return None

    def _race_all(
        self, reference: "_Rival", waiting: list[Key], feeds: Mapping[str, Array]
    ) -> None:
        """Race the rivals that wait, one by one, which removes them from ``waiting``. Before the
        next compiler starts, which may take all the time that is left, a plan that is in doubt has
        to be raced again."""
        others = len(self.plans) - 1
        while waiting:
            self.report("plans raced", max(0, others - len(waiting)), others)
            self.raced.add(waiting[0])
            self._race(waiting.pop(0), reference, feeds)
            self.found(self)
            builds = waiting and _builds_kernels(self.rows[waiting[0]])
            if builds and self.ranking.best_in_doubt(self.plans.keys()) is not None:
                return
        self.report("plans raced", others, others)

    def _race_again(self, reference: Key, feeds: Mapping[str, Array]) -> None:
        """Race the best plan that is in doubt again, with new starts of both, as long as there is
        time."""
        while self.deadline.left_s(self.rules.racing_share) > 0:
            key = self.ranking.best_in_doubt(self.plans.keys())
            if key is None:
                return
            before = self.rows[key].rounds
            with ExitStack() as stack:
                try:
                    started_again = self._start(reference, feeds, stack)
                except CoexecError:  # the figures so far count
                    return
                self._race(key, started_again, feeds)
            self.found(self)
            if self.rows[key].rounds == before:
                return

    def _race(self, key: Key, reference: "_Rival", feeds: Mapping[str, Array]) -> None:
        """Race one plan with the reference, and add its figures to its row."""
        row, plans = self.rows[key], self.plans[key]
        if self.deadline.left_s(self.rules.racing_share) <= 0:
            reason = f"there was no time to start it within {self.deadline.seconds:.3g} s"
            self.rows[key] = row.excluded(reason, "untried")
            return
        if (too_large := self._too_large(plans, reference)) is not None:
            self.rows[key] = row.excluded(too_large, "left out")
            return
        try:
            with ExitStack() as stack:
                what = f"starting {row}"
                self.report(what, 0, 1)
                rival = self._start(key, feeds, stack)
                self.report(what, 1, 1)
                outcome = self._outcome(rival, reference)
        except CoexecError as error:
            self.rows[key] = row.excluded(str(error))
            return
        finally:
            if not any(a is b for a, _ in plans for b, _ in self.plans[reference.key]):
                release(plans)
        which, of_reference = self._number(key), self._number(reference.key)
        self.rows[key] = with_figures(row, outcome, which, of_reference, self.objective)
        if of_reference not in outcome.failed:
            row = self.rows[reference.key]
            row = with_figures(row, outcome, of_reference, of_reference, self.objective)
            self.rows[reference.key] = row

    def _number(self, key: Key) -> int:
        """The number of a candidate, by which `compete` gets its turns."""
        return list(self.rows).index(key)

    def _outcome(self, rival: "_Rival", reference: "_Rival") -> Outcome[int]:
        rules, left_s = self.rules, self.deadline.left_s(self.rules.racing_share)
        watch = Stopwatch(used_s=cpu_clock([*reference.processes, *rival.processes]))
        best = replace(self.ranking, rules=replace(rules, starts=0)).best_ratio
        what, start_s = f"race of {self.rows[rival.key]}", watch.now_s()
        loads: list[Load] = []
        pair = [self._number(each.key) for each in (reference, rival)]

        def reported(run: Callable[[], Lap]) -> Lap:
            share = (watch.now_s() - start_s) / max(rules.race_s, 1e-9)
            self.report(what, round(100 * min(1.0, share)), 100)
            lap, load = undisturbed(partial(watch.with_load, run), self.quiet)
            loads.append(load)
            return lap

        def is_decided(outcome: Outcome[int], took_s: float) -> bool:
            if took_s > left_s:
                return True
            objective, limit = self.objective, best * rules.out_of_race
            figures = [figure for figure in (objective.figure, objective.guard) if figure]
            pairs = {figure: _pairs(outcome, pair[1], pair[0], figure) for figure in figures}
            deciding = pairs[objective.figure]
            if not objective.drops or len(deciding) < rules.cut_rounds:
                return False
            is_out = all(own_s > limit * reference_s for own_s, reference_s in deciding)
            is_faster = len(deciding) >= objective.rounds[0] and all(
                own_s < rules.clearly_faster * reference_s
                for own_s, reference_s in chain.from_iterable(pairs.values())
            )
            return is_out or is_faster

        outcome = self.compete(
            dict(zip(pair, (partial(reported, r.turn) for r in (reference, rival)), strict=True)),
            self.objective.rounds,
            budget_s=rules.race_s,
            is_decided=is_decided,
            watch=watch,
        )
        self.report(what, 100, 100)
        other_share = reduce(Load.plus, loads, Load()).share
        return replace(outcome, others=max(outcome.others, other_share))

    def _too_large(self, plans: Plans, reference: "_Rival") -> str | None:
        """Why plans cannot start beside the reference; None if there is memory for them.

        While an engine starts, the weights are in memory twice: as they are stored, and as it packs
        them.
        """
        main_bytes, limit_bytes = main_memory_bytes(), self.memory_limit
        if limit_bytes is None and main_bytes is not None:
            limit_bytes = round(self.rules.memory_share * main_bytes)
        used_bytes = resident_bytes() + sum(map(resident_bytes, reference.processes))
        needed_bytes = used_bytes + 2 * len(plans) * least_bytes(plans[0][0].model.graph)
        if limit_bytes is None or needed_bytes <= limit_bytes:
            return None
        return (
            f"it would need {format_bytes(needed_bytes)} of the limit of "
            f"{format_bytes(limit_bytes)} (memory_limit)"
        )

    def _start(self, key: Key, feeds: Mapping[str, Array], stack: ExitStack) -> "_Rival":
        """Start a plan in this process; if an engine cannot be open beside the others, in another.

        Raises:
            CoexecError: the plan does not run.
        """
        plans = self.plans[key]
        try:
            with ExitStack() as attempt:
                runner = attempt.enter_context(prepared_of(plans).start())
                turn = warm_turn(runner, feeds, self.objective.mode, self.rules)
                stack.push(attempt.pop_all())
            return _Rival(key, turn)
        except DeviceError:
            if len(plans) > 1:
                raise
            process = stack.enter_context(RivalProcess(*plans[0], feeds))
            return _Rival(key, process.turn, (process.pid,))


@dataclass(frozen=True)
class _Rival:
    """A plan that is started."""

    key: Key
    turn: Callable[[], Lap]
    processes: tuple[int, ...] = ()
    """Ids of the processes in which it runs, if not in this one."""


def _builds_kernels(row: Candidate) -> bool:
    """Whether one of its engines compiles source code for the model."""
    return any(load_engine(name).builds_kernels for name in row.engines)


def prepared_of(plans: Plans) -> Prepared:
    """The plans of a candidate, compiled."""
    first, *beside = [work.prepared(plan) for work, plan in plans]
    return replace(first, beside=tuple(beside))


def with_figures(
    row: Candidate, outcome: Outcome[int], which: int, reference: int, objective: Objective
) -> Candidate:
    """``row`` with the figures of a race as rival ``which``. The rounds are added to those of
    earlier races. If it failed, it is refused with the error."""
    if (error := outcome.failed.get(which)) is not None:
        return row.excluded(str(error))
    rounds_s = row.rounds_s + _pairs(outcome, which, reference, objective.figure)
    guard_s = row.guard_s
    if objective.guard is not None:
        guard_s += _pairs(outcome, which, reference, objective.guard)
    parallel_s = outcome.median_s(which, "parallel")
    medians_s = {figure: outcome.median_s(which, figure) for figure in ("paced", "loop")}
    for figure, pairs in ((objective.figure, rounds_s), (objective.guard, guard_s)):
        if pairs and figure in medians_s:  # of all rounds, also of earlier races
            medians_s[figure] = statistics.median(own_s for own_s, _ in pairs)
    return replace(
        row,
        paced_s=medians_s["paced"],
        loop_s=medians_s["loop"],
        per_s=None if parallel_s is None else 1 / parallel_s,
        requests=objective.figure,
        rounds_s=rounds_s,
        guard_s=guard_s,
        starts=row.starts + 1,
        stolen=max(row.stolen, outcome.stolen),
        others=max(row.others, outcome.others),
    )


def _pairs(outcome: Outcome[int], which: int, reference: int, figure: Requests) -> Rounds:
    """Seconds of a rival and of the reference, in the rounds that both have run."""
    both: Sequence[Sequence[float]] = [
        outcome.rounds_s(number, figure) for number in (which, reference)
    ]
    return tuple(zip(*both, strict=False))
