"""The race of a shortlist: start its plans side by side, and run them in turns."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial, reduce

from coexec.arrays import Array
from coexec.errors import CoexecError, DeviceError, ExecutionError
from coexec.model.main_memory import least_bytes, main_memory_bytes
from coexec.profiling.activity import Quiet, undisturbed
from coexec.profiling.processors import Load
from coexec.progress import ReportProgress
from coexec.rules import Rules
from coexec.selection.candidate_process import RivalProcess
from coexec.selection.contender import Contender
from coexec.selection.deadline import Deadline, LateError
from coexec.selection.objective import Objective, warm_turn
from coexec.selection.quiet_moment import Stopwatch, cpu_clock
from coexec.selection.race import Compete, Lap, Outcome
from coexec.selection.throughput import started
from coexec.units import format_bytes

__all__ = ["PlanRace"]


@dataclass(frozen=True)
class PlanRace:
    """How the plans of a shortlist are compared."""

    objective: Objective
    rules: Rules
    quiet: Quiet | None
    report: ReportProgress
    compete: Compete

    def run(self, shortlist: Sequence[Contender], deadline: Deadline) -> Outcome[int]:
        """Run the race; rivals are the indices of the shortlist. A single plan needs no race, also
        if it is the only one that starts.

        Plans that are not started at the deadline do not run, but for the first one.
        """
        if len(shortlist) == 1:
            return Outcome()
        with ExitStack() as stack:
            rivals = self._started(shortlist, deadline, stack)
            if len(rivals.turns) < 2:
                return Outcome(failed=rivals.failed)
            rules, left_s = self.rules, deadline.left_s(self.rules.racing_share)
            budget_s = min(rules.race_s, max(rules.least_race_s, left_s))
            watch = Stopwatch(used_s=cpu_clock(rivals.processes))
            what, start_s = f"race of {len(rivals.turns)} plans", watch.now_s()
            loads: list[Load] = []

            def reported(run: Callable[[], Lap]) -> Lap:
                share = (watch.now_s() - start_s) / max(budget_s, 1e-9)
                self.report(what, round(100 * min(1.0, share)), 100)
                lap, load = undisturbed(partial(watch.with_load, run), self.quiet)
                loads.append(load)
                return lap

            outcome = self.compete(
                {which: partial(reported, run) for which, run in rivals.turns.items()},
                self.objective.rounds,
                drop_by=self.objective.figure if self.objective.drops else None,
                budget_s=budget_s,
                limit_s=rules.race_limit * budget_s,
                watch=watch,
                rules=rules,
            )
            self.report(what, 100, 100)
        for entry in shortlist:
            entry.release()
        other_share = reduce(Load.plus, loads, Load()).share
        return replace(outcome, failed={**rivals.failed, **outcome.failed}, others=other_share)

    def _started(
        self, shortlist: Sequence[Contender], deadline: Deadline, stack: ExitStack
    ) -> "_Rivals":
        """Start the plans of a shortlist, with the first made-up inputs with which any plan runs.

        A plan that would need too much memory beside the others does not start.
        """
        what = "plans compiled for the race"
        model = shortlist[0].plans[0][0].model
        needed_bytes, memory_bytes = least_bytes(model.graph), main_memory_bytes()
        limit_bytes = self.rules.memory_share * memory_bytes if memory_bytes else None
        for feeds in model.candidates():
            rivals, count = _Rivals(), 0
            with ExitStack() as attempt:
                for which, entry in enumerate(shortlist):
                    if rivals.turns and deadline.left_s() <= 0:
                        rivals.failed[which] = LateError(
                            f"there was no time to start it within {deadline.seconds:.3g} s"
                        )
                        continue
                    all_bytes = (count + len(entry.plans)) * needed_bytes
                    if limit_bytes and rivals.turns and all_bytes > limit_bytes:
                        rivals.failed[which] = ExecutionError(
                            f"not measured: {count + len(entry.plans)} plans in memory need "
                            f"{format_bytes(all_bytes)}, and planning may use "
                            f"{self.rules.memory_share:.0%} of {format_bytes(memory_bytes or 0)}"
                        )
                        continue
                    self.report(what, which, len(shortlist))
                    try:
                        self._start(entry, which, feeds, rivals, attempt)
                        count += len(entry.plans)
                    except CoexecError as error:
                        rivals.failed[which] = error
                    self.report(what, which + 1, len(shortlist))
                if rivals.turns:
                    stack.push(attempt.pop_all())
                    return rivals
        return _Rivals()

    def _start(
        self,
        entry: Contender,
        which: int,
        feeds: Mapping[str, Array],
        rivals: "_Rivals",
        stack: ExitStack,
    ) -> None:
        """Start a plan in this process; if an engine cannot be open beside the others, in another.

        Raises:
            CoexecError: the plan does not run.
        """
        try:
            runner = stack.enter_context(started(entry.prepared()))
            rivals.turns[which] = warm_turn(runner, feeds, self.objective.mode, self.rules)
        except DeviceError:
            if len(entry.plans) > 1:
                raise
            process = stack.enter_context(RivalProcess(*entry.plans[0], feeds))
            rivals.turns[which] = process.turn
            rivals.processes.append(process.pid)


@dataclass
class _Rivals:
    """The plans of a shortlist that are started, by index."""

    turns: dict[int, Callable[[], Lap]] = field(default_factory=dict)
    processes: list[int] = field(default_factory=list)
    """Ids of the processes of plans that run in a process of their own."""
    failed: dict[int, CoexecError] = field(default_factory=dict)
