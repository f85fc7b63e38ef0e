"""Race plans with the reference, one after the other, so that two plans are in memory at a time."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial, reduce

from coexec.arrays import Array
from coexec.errors import CoexecError, DeviceError
from coexec.model.main_memory import least_bytes, main_memory_bytes, resident_bytes
from coexec.profiling.activity import Quiet, undisturbed
from coexec.profiling.processors import Load
from coexec.progress import ReportProgress
from coexec.rules import Rules
from coexec.selection.candidate_process import RivalProcess
from coexec.selection.contender import Contender
from coexec.selection.deadline import Deadline
from coexec.selection.objective import Objective, warm_turn
from coexec.selection.quiet_moment import Stopwatch, cpu_clock
from coexec.selection.race import Compete, Lap, Outcome
from coexec.selection.ranking import best_in_doubt, best_ratio
from coexec.selection.throughput import started
from coexec.units import format_bytes

__all__ = ["PlanRace"]

Found = Callable[[Sequence[Contender]], None]
"""Called with all contenders, and the figures that they have so far."""


@dataclass(frozen=True)
class PlanRace:
    """How the plans of a shortlist are compared."""

    objective: Objective
    rules: Rules
    quiet: Quiet | None
    report: ReportProgress
    compete: Compete
    memory_limit: int | None = None
    """Bytes that this process and those of rivals may use; None: a share of main memory."""

    def run(
        self,
        shortlist: Sequence[Contender],
        deadline: Deadline,
        found: Found = lambda entries: None,
    ) -> list[Contender]:
        """The shortlist with its figures. A single plan needs no race.

        The reference is the first single device that starts, one that uses CPU cores with their
        first engine if there is one; without a single device, the first plan that starts. Plans
        that are not started at the deadline do not run.

        Args:
            shortlist: those with plans first; the others are rows of an earlier choice.
            found: called after each race.
        """
        entries = list(shortlist)
        if len(shortlist) == 1:
            return entries
        if not any(entry.plans for entry in shortlist[1:]):
            return [_as_reference(entries[0]), *entries[1:]]
        for feeds in shortlist[0].plans[0][0].model.candidates():
            entries = list(shortlist)
            with ExitStack() as stack:
                reference = self._reference(entries, feeds, stack)
                if reference is None:
                    continue
                self._race_all(entries, reference, feeds, deadline, found)
            self._repeat(entries, reference.which, feeds, deadline, found)
            entries[reference.which].release()
            return entries
        return entries

    def _reference(
        self, entries: list[Contender], feeds: Mapping[str, Array], stack: ExitStack
    ) -> "_Rival | None":
        """Start the reference; None if no plan starts with these inputs."""
        numbers = [which for which, entry in enumerate(entries) if entry.plans]
        for which in sorted(
            numbers, key=lambda w: (not entries[w].is_single, not entries[w].is_plain)
        ):
            try:
                return self._start(entries[which], which, feeds, stack)
            except CoexecError as error:
                entries[which] = entries[which].refused(str(error))
        return None

    def _race_all(
        self,
        entries: list[Contender],
        reference: "_Rival",
        feeds: Mapping[str, Array],
        deadline: Deadline,
        found: Found,
    ) -> None:
        """Race each plan with the reference."""
        entries[reference.which] = _as_reference(entries[reference.which])
        rivals = [
            which
            for which, entry in enumerate(entries)
            if which != reference.which and entry.plans and entry.candidate.is_able
        ]
        for number, which in enumerate(rivals):
            self.report("plans raced", number, len(rivals))
            self._race(entries, which, reference, feeds, deadline)
            found(entries)
        self.report("plans raced", len(rivals), len(rivals))

    def _repeat(
        self,
        entries: list[Contender],
        reference: int,
        feeds: Mapping[str, Array],
        deadline: Deadline,
        found: Found,
    ) -> None:
        """Race the best plan that is in doubt again, with new starts of both, as long as there is
        time."""
        while deadline.left_s(self.rules.racing_share) > 0:
            which = best_in_doubt(entries, self.objective, self.rules)
            if which is None:
                return
            before = entries[which].candidate.rounds
            with ExitStack() as stack:
                try:
                    started_again = self._start(entries[reference], reference, feeds, stack)
                except CoexecError:  # the figures so far count
                    return
                self._race(entries, which, started_again, feeds, deadline)
            found(entries)
            if entries[which].candidate.rounds == before:
                return

    def _race(
        self,
        entries: list[Contender],
        which: int,
        reference: "_Rival",
        feeds: Mapping[str, Array],
        deadline: Deadline,
    ) -> None:
        """Race one plan with the reference, and put its figures into ``entries``."""
        entry = entries[which]
        if deadline.left_s(self.rules.racing_share) <= 0:
            reason = f"there was no time to start it within {deadline.seconds:.3g} s"
            entries[which] = entry.refused(reason, "untried")
            return
        if (too_large := self._too_large(entry, reference)) is not None:
            entries[which] = entry.refused(too_large, "left out")
            return
        try:
            with ExitStack() as stack:
                what = f"starting {entry.candidate}"
                self.report(what, 0, 1)
                rival = self._start(entry, which, feeds, stack)
                self.report(what, 1, 1)
                outcome = self._outcome(entries, rival, reference, deadline)
        except CoexecError as error:
            entries[which] = entry.refused(str(error))
            return
        finally:
            if not any(a is b for a, _ in entry.plans for b, _ in entries[reference.which].plans):
                entry.release()
        for index in {which, reference.which} - ({reference.which} & outcome.failed.keys()):
            entries[index] = entries[index].measured(
                index, outcome, reference.which, self.objective
            )

    def _outcome(
        self,
        entries: Sequence[Contender],
        rival: "_Rival",
        reference: "_Rival",
        deadline: Deadline,
    ) -> Outcome[int]:
        rules, left_s = self.rules, deadline.left_s(self.rules.racing_share)
        watch = Stopwatch(used_s=cpu_clock([*reference.processes, *rival.processes]))
        best = min(1.0, best_ratio(entries, self.objective, replace(rules, starts=0)))
        what, start_s = f"race of {entries[rival.which].candidate}", watch.now_s()
        loads: list[Load] = []

        def reported(run: Callable[[], Lap]) -> Lap:
            share = (watch.now_s() - start_s) / max(rules.race_s, 1e-9)
            self.report(what, round(100 * min(1.0, share)), 100)
            lap, load = undisturbed(partial(watch.with_load, run), self.quiet)
            loads.append(load)
            return lap

        def is_decided(outcome: Outcome[int], took_s: float) -> bool:
            if took_s > left_s:
                return True
            own_s, reference_s = (
                outcome.rounds_s(which, self.objective.figure)
                for which in (rival.which, reference.which)
            )
            limit = best * rules.out_of_race
            is_out = all(a > limit * b for a, b in zip(own_s, reference_s, strict=False))
            return self.objective.drops and len(own_s) >= rules.cut_rounds and is_out

        outcome = self.compete(
            {each.which: partial(reported, each.turn) for each in (reference, rival)},
            self.objective.rounds,
            budget_s=rules.race_s,
            is_decided=is_decided,
            watch=watch,
        )
        self.report(what, 100, 100)
        other_share = reduce(Load.plus, loads, Load()).share
        return replace(outcome, others=max(outcome.others, other_share))

    def _too_large(self, entry: Contender, reference: "_Rival") -> str | None:
        """Why a plan cannot start beside the reference; None if there is memory for it.

        While an engine starts, the weights are in memory twice: as they are stored, and as it packs
        them.
        """
        main_bytes, limit_bytes = main_memory_bytes(), self.memory_limit
        if limit_bytes is None and main_bytes is not None:
            limit_bytes = round(self.rules.memory_share * main_bytes)
        used_bytes = resident_bytes() + sum(map(resident_bytes, reference.processes))
        plan_bytes = 2 * len(entry.plans) * least_bytes(entry.plans[0][0].model.graph)
        needed_bytes = used_bytes + plan_bytes
        if limit_bytes is None or needed_bytes <= limit_bytes:
            return None
        return (
            f"it would need {format_bytes(needed_bytes)} of the limit of "
            f"{format_bytes(limit_bytes)} (memory_limit)"
        )

    def _start(
        self, entry: Contender, which: int, feeds: Mapping[str, Array], stack: ExitStack
    ) -> "_Rival":
        """Start a plan in this process; if an engine cannot be open beside the others, in another.

        Raises:
            CoexecError: the plan does not run.
        """
        try:
            with ExitStack() as attempt:
                runner = attempt.enter_context(started(entry.prepared()))
                turn = warm_turn(runner, feeds, self.objective.mode, self.rules)
                stack.push(attempt.pop_all())
            return _Rival(which, turn)
        except DeviceError:
            if len(entry.plans) > 1:
                raise
            process = stack.enter_context(RivalProcess(*entry.plans[0], feeds))
            return _Rival(which, process.turn, (process.pid,))


def _as_reference(entry: Contender) -> Contender:
    return entry._replace(standing=entry.standing._replace(is_reference=True))


@dataclass(frozen=True)
class _Rival:
    """A plan that is started."""

    which: int
    """Index in the shortlist."""
    turn: Callable[[], Lap]
    processes: tuple[int, ...] = ()
    """Ids of the processes in which it runs, if not in this one."""
