"""Plans of one device in which the tasks that lose most stay in float32.

An engine in a lower precision and the same engine in float32 are two devices that share a
processor, so such a plan is one like any other, and its outputs are compared like those of others.

The error of a task says little: a small one in the first layers may be large in the outputs. So
parts of the model are computed in the lower precision one at a time, and the errors of the outputs
order them. As many parts as the limit allows are computed in the lower precision, those with the
smallest errors first, and then single tasks of the other parts.
"""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

from coexec.errors import CoexecError, InfeasibleError
from coexec.graph.graph import Task
from coexec.plan.plan import Plan, Provenance
from coexec.precision import FLOAT32
from coexec.progress import ReportProgress
from coexec.selection.candidates import Candidates, OutOfTimeError, candidate_of, release
from coexec.selection.comparison import Agreement, ReferenceAnswers, agreement_of, compared
from coexec.selection.configurations import Configuration
from coexec.selection.decision import Candidate, Key
from coexec.selection.plan_race import PlanRace
from coexec.selection.planning_context import LEAST_SHARE, PlanningContext
from coexec.selection.prepared import Prepared

_PARTS = 16
"""Number of parts of consecutive tasks. Each one costs a compilation of the model."""


class PrecisePlans:
    """Makes candidates in a lower precision as precise as they have to be, and races them."""

    def __init__(
        self, open: Callable[[Configuration], PlanningContext], report: ReportProgress
    ) -> None:
        """
        Args:
            open: opens devices.
            report: receives the progress; raises OutOfTimeError when the time is over.
        """
        self._open, self._report = open, report
        self._precise_tasks: dict[str, Collection[str]] = {}
        """By lower precision, the tasks that lose too much in it."""
        self._compared: dict[Configuration, Agreement] = {}
        """By device, how its plan in a lower precision agrees."""

    def race(
        self,
        made: Candidates,
        lower: Collection[Key],
        first: Key | None,
        reference: ReferenceAnswers,
        race: PlanRace,
        run: Callable[[Collection[Key]], None],
    ) -> None:
        """Race the candidates, first those in a lower precision: the user has asked for them. The
        search for tasks that stay in float32 may take all of the time. So it comes last, and only
        for a candidate that was faster without such tasks than all others.

        Args:
            lower: the candidates in a lower precision.
            first: the candidate in float32 with which they are compared; None: there is none.
            run: races the candidates that have not raced, without some of them.
        """
        keys = {*lower}
        if keys and first is not None:
            run(made.plans.keys() - keys - {first})
            keys = {key for key in keys if race.may_win(key)}
        left = self.make(made, keys, reference, searches=False)
        raced = race.withdraw(left | (keys - made.plans.keys()))
        run(left)
        ratios = dict.fromkeys(left, 0.0)
        ratios |= {key: row.ratio or 0.0 for key, row in raced.items() if key in left}
        for key in sorted(ratios, key=ratios.__getitem__):
            left.remove(key)
            if ratios[key] >= race.ranking.best_ratio:
                race.give_back(raced[key], made.plans[key])
            else:
                self.make(made, {key}, reference)
                run(left)

    def make(
        self,
        made: Candidates,
        keys: Collection[Key],
        reference: ReferenceAnswers,
        searches: bool = True,
    ) -> set[Key]:
        """Let the device of each of these candidates compute the tasks in float32 that lose too
        much. Candidates that cannot be as precise as they have to be are excluded.

        Args:
            searches: False: leave those that lose too much as they are.

        Returns:
            The candidates that were left.
        """
        left = set[Key]()
        for index, row in enumerate(made.rows):
            if row.key not in keys:
                continue
            try:
                new = self._as_precise(row, made, reference, searches)
                if new is None:
                    left.add(row.key)
                else:
                    made.rows[index] = new
            except CoexecError as error:
                made.rows[index] = row.excluded(str(error))
            except OutOfTimeError as error:
                made.rows[index] = row.excluded(str(error), "untried")
            release(made.plans[row.key])
            if not made.rows[index].is_able:
                del made.plans[row.key]
        return left

    def _as_precise(
        self, row: Candidate, made: Candidates, reference: ReferenceAnswers, searches: bool
    ) -> Candidate | None:
        """The candidate, as precise as it has to be; None if that would need a search."""
        before = made.plans[row.key]
        if not searches:
            lower = [(work, plan) for work, plan in before if plan.lower]
            loses = any(self._agreement(*each, reference).differs is not None for each in lower)
            return None if loses else row
        made.plans[row.key] = [self._precise(work, plan, reference) for work, plan in before]
        if made.plans[row.key] == before:
            return row
        new = candidate_of(row.devices, row.planner, made.plans[row.key])
        return replace(row, plan=new.plan, precision=new.precision)

    def _agreement(
        self, work: PlanningContext, plan: Plan, reference: ReferenceAnswers
    ) -> Agreement:
        """How the plan of a device agrees, which is compared once."""
        names = work.device_names
        if names not in self._compared:
            self._compared[names] = compared(work.prepared(plan), reference=reference)
        return self._compared[names]

    def _precise(
        self, low: PlanningContext, plan: Plan, reference: ReferenceAnswers
    ) -> tuple[PlanningContext, Plan]:
        if not plan.lower or (agreement := self._agreement(low, plan, reference)).differs is None:
            return low, plan
        low.release()
        name, *others = low.device_names
        lower = low.devices[0].spec.engine.precision
        # An option of the engine may say which precision it has without one in its name.
        both = self._open((name, f"{name.rpartition(':')[0]}:{FLOAT32}", *others))
        try:
            precise = self._precise_tasks.get(lower, ())
            plan = MixedPlans(both, plan, reference, self._report, precise).best()
        except InfeasibleError as error:
            raise InfeasibleError(f"{agreement.in_words}; {error}") from None
        float32, places = both.devices[1].spec.place, plan.place_of.items()
        self._precise_tasks[lower] = {piece.task for piece, at in places if at == float32}
        return both, plan


class MixedPlans:
    """The plans of one model on one device in a lower precision, and in float32."""

    def __init__(
        self,
        work: PlanningContext,
        plan: Plan,
        reference: ReferenceAnswers,
        report: ReportProgress,
        precise: Collection[str] = (),
    ) -> None:
        """
        Args:
            work: the model on the device in the lower precision, on the same one in float32, and on
                further ones of that processor.
            plan: has all tasks in the lower precision that the device runs.
            report: receives the progress; raises OutOfTimeError when the time is over.
            precise: names of the tasks that stay in float32 in a plan for other cores or of
                another engine. If that is enough here, too, nothing is searched.
        """
        self._work, self._reference, self._report = work, reference, report
        self._precise = precise
        self._place_of = {piece.task: place for piece, place in plan.place_of.items()}
        self._able = [t for t in work.graph.tasks if self._place_of[t.name].precision != FLOAT32]

    def best(self) -> Plan:
        """The plan with the most tasks in the lower precision whose outputs agree with ONNX
        Runtime's; from the cache if it was searched before.

        Raises:
            InfeasibleError: fewer than half of the tasks can be computed in the lower precision.
            OutOfTimeError: the time was over before there was such a plan.
        """
        key = f"mixed in turns {self._work.settings.tolerance} {self._work.user_inputs}"
        return self._work.remembered(key, self._search).plan

    def _search(self) -> Plan:
        tasks = self._able
        low = [task for task in tasks if task.name not in self._precise]
        if self._precise and self._is_worth(low) and self._agrees(low):
            return self._plan(low)
        low = []
        try:
            for more in self._growing(tasks):
                low = more
        except OutOfTimeError:
            if not self._is_worth(low):
                raise
        if not self._is_worth(low):
            raise InfeasibleError(
                f"only {len(low)} of {len(self._place_of)} tasks can be computed in it: with more, "
                f"outputs differ by more than {self._work.tolerance:.2g} of their largest value"
            )
        return self._plan(low)

    def _is_worth(self, low: Sequence[Task]) -> bool:
        return len(low) >= LEAST_SHARE * len(self._work.graph.tasks)

    def _growing(self, tasks: Sequence[Task]) -> Iterator[list[Task]]:
        """The tasks in the lower precision so far, more and more of them."""
        size = math.ceil(len(tasks) / _PARTS)
        parts = [tasks[start : start + size] for start in range(0, len(tasks), size)]
        error: dict[str, float] = {}
        for number, part in enumerate(parts, 1):
            errors = self._agreement(part).errors
            error[part[0].name] = math.inf if errors is None else errors.largest
            self._report("errors of parts of the model", number, len(parts))
        parts.sort(key=lambda part: error[part[0].name])
        works, fails = 0, len(parts)  # the first parts that agree together, and that do not
        while fails - works > 1:
            middle = (works + fails) // 2
            if self._agrees(joined := [task for part in parts[:middle] for task in part]):
                works = middle
                yield joined
            else:
                fails = middle
        low = [task for part in parts[:works] for task in part]
        left = [task for part in parts[works:] for task in part]
        for task in left[:_PARTS]:  # more of them would cost more time than they gain
            if self._agrees([*low, task]):
                low = [*low, task]
                yield low

    def _agrees(self, low: Sequence[Task]) -> bool:
        agrees = self._agreement(low).reason is None
        self._report(f"comparing {len(low)} tasks in a lower precision", 0, 1)
        return agrees

    def _agreement(self, low: Sequence[Task]) -> Agreement:
        plan = self._plan(low)
        prepared = Prepared(self._work, plan, self._work.compiled(plan))
        return agreement_of(prepared, self._reference)

    def _plan(self, low: Sequence[Task]) -> Plan:
        """The plan with these tasks in the lower precision."""
        graph, float32 = self._work.graph, self._work.devices[1].spec.place
        stays = {task.name for task in self._able} - {task.name for task in low}
        place_of = {**self._place_of, **dict.fromkeys(stays, float32)}
        return self._work.whole(Plan.in_turns(graph, place_of, Provenance("single")))
