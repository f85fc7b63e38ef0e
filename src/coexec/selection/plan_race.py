"""The race of a shortlist: start its plans side by side, and run them in turns."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial, reduce

from coexec.arrays import Array
from coexec.errors import CoexecError, DeviceError
from coexec.graph.graph import Graph
from coexec.model.main_memory import least_bytes, main_memory_bytes, resident_bytes
from coexec.profiling.activity import Quiet, undisturbed
from coexec.profiling.processors import Load
from coexec.progress import ReportProgress
from coexec.rules import Rules
from coexec.selection.candidate_process import RivalProcess
from coexec.selection.contender import Contender
from coexec.selection.deadline import Deadline, LateError, UntriedError
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
    memory_limit: int | None = None
    """Bytes that this process and those of rivals may use; None: a share of main memory."""

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
        for feeds in model.candidates():
            rivals = _Rivals()
            with ExitStack() as attempt:
                for which, entry in enumerate(shortlist):
                    if rivals.turns and deadline.left_s() <= 0:
                        rivals.failed[which] = LateError(
                            f"there was no time to start it within {deadline.seconds:.3g} s"
                        )
                        continue
                    too_large = self._too_large(entry, model.graph, rivals)
                    if rivals.turns and too_large is not None:
                        rivals.failed[which] = UntriedError(too_large)
                        continue
                    self.report(what, which, len(shortlist))
                    try:
                        self._start(entry, which, feeds, rivals, attempt)
                    except CoexecError as error:
                        rivals.failed[which] = error
                    self.report(what, which + 1, len(shortlist))
                if rivals.turns:
                    stack.push(attempt.pop_all())
                    return rivals
        return _Rivals()

    def _too_large(self, entry: Contender, graph: Graph, rivals: "_Rivals") -> str | None:
        """Why a plan cannot start beside ``rivals``; None if there is memory for it.

        While an engine starts, the weights are in memory twice: as they are stored, and as it packs
        them.
        """
        main_bytes = main_memory_bytes()
        limit_bytes = self.memory_limit
        if limit_bytes is None and main_bytes is not None:
            limit_bytes = round(self.rules.memory_share * main_bytes)
        used_bytes = resident_bytes() + sum(map(resident_bytes, rivals.processes))
        needed_bytes = used_bytes + 2 * len(entry.plans) * least_bytes(graph)
        if limit_bytes is None or needed_bytes <= limit_bytes:
            return None
        return (
            f"it would need {format_bytes(needed_bytes)} of the limit of "
            f"{format_bytes(limit_bytes)} (memory_limit)"
        )

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
