"""The planners' model of time as constraints, for the solver of an exact planner.

The rules are those of `problem.timeline.Timeline`. With ``fused`` the rules are relaxed, so that
their optimum is a lower bound for the simulator, too: the tasks of a segment pay for one launch,
the conditions that start a new segment are left out, and the tensors that one task sends may leave
in any order.
"""

import math
from collections.abc import Sequence
from itertools import combinations, permutations
from typing import NamedTuple

from coexec.planners.methods.listing import in_turn
from coexec.problem.problem import Problem
from coexec.problem.timeline import Timeline
from coexec.research.planners.exact.constraints import FALSE, TRUE, Constraints, Literal, Rule, Sum
from coexec.research.planners.exact.moves import copied_by_target, queued, sent_by_source
from coexec.research.planners.exact.placement import Placement


class Valuation(NamedTuple):
    """A solution: a value for each decision and a tick for each moment."""

    flags: Sequence[bool]
    moments: Sequence[float]


class Formulation(Placement):
    """All constraints except one: that a device runs one task at a time.

    The caller adds that one: either with the solver's own constraint for it and a call of
    `keep_order`, or with `one_at_a_time`.
    """

    def __init__(
        self,
        problem: Problem,
        tasks: Sequence[int],
        timeline: Timeline,
        constraints: Constraints,
        tails_s: Sequence[float],
        fused: bool = False,
    ) -> None:
        """Create all decisions, moments and rules.

        Args:
            tails_s: by task, the least seconds between its end and the moment to be minimised.
        """
        super().__init__(problem, tasks, timeline, constraints, fused)
        self.end_of_all = constraints.moment()
        """The moment to be minimised."""
        self.horizon = math.inf
        """The last tick of a solution."""
        self._tails_s = tails_s
        copied_by_target(self)
        sent_by_source(self)
        queued(self)
        self._start_when_free()
        self._wait_for_predecessors()
        self._end_after_all()

    def _start_when_free(self) -> None:
        rule = self.constraints.rule
        for task in self.tasks:
            rule(self.computes(task), Sum(self.problem.bounds.chain.heads_s[task]))
            for device in self.able(task):
                ended = self.computes(task).plus(self.run_s[task][device])
                rule(self.ends(task), ended, [self.on(task, device)])
            for device in self.problem.devices:
                free_s = self.free_s[device] + self.launch_s(task, device)
                rule(self.begins(task), Sum(free_s), [self.on(task, device)])

    def _wait_for_predecessors(self) -> None:
        """A task begins after its predecessors, and after the latency of the link from each
        predecessor on another device."""
        rule = self.constraints.rule
        for task in self.tasks:
            for source in self.problem.predecessors[task]:
                rule(self.begins(task), self.ends(source))
                for a, b in permutations(self.problem.devices, 2):
                    wait_s = self.problem.links[a][b].sync_latency_s + self.launch_s(task, b)
                    ready = self.ends(source).plus(wait_s)
                    crosses = self.crosses(source, task, a, b)
                    if wait_s and crosses != FALSE:
                        rule(self.begins(task), ready, [crosses], otherwise_s=wait_s)

    def _end_after_all(self) -> None:
        """The end of all comes after each task with its tail, and after all work of each device."""
        over = Sum(moment=self.end_of_all)
        for task in self.tasks:
            self.constraints.rule(over, self.ends(task).plus(self._tails_s[task]))
            if self.sends[task]:
                self.constraints.rule(over, self.leaves(task))
        for device in self.problem.devices:
            able = [task for task in self.tasks if self.on(task, device) != FALSE]
            if able:
                # The tail of the device's last task starts when the task ends. It does not wait for
                # the sends of the task, which are part of `busy`.
                rests_s = [self._tails_s[task] - self._most_sent_s(task, device) for task in able]
                busy = self._busy(able, device)
                self.constraints.rule(over, busy.plus(max(0.0, min(rests_s))))

    def _most_sent_s(self, task: int, device: int) -> float:
        return sum(part.seconds for part in self.sends[task] if part.device == device)

    def _busy(self, tasks: Sequence[int], device: int) -> Sum:
        """The time at which ``device`` has run its share of ``tasks`` and done all its copies."""
        busy = Sum(self.free_s[device])
        for task in tasks:
            occupied = self.occupies(task, device)
            busy = busy.plus(flags=[(occupied.constant, self.on(task, device))])
            busy = busy.plus(flags=occupied.flags)
        return busy

    def one_at_a_time(self) -> None:
        """Require that a device runs one task at a time, by an order for each pair of tasks."""
        for one, two in combinations(self.tasks, 2):
            shared = [self.crosses(one, two, d, d) for d in self.problem.devices]
            if self.before(one, two) == TRUE and self.sends[one]:
                for literal in shared:
                    self.constraints.rule(self.begins(two), self.leaves(one), [literal])
        self.keep_order()

    def keep_order(self) -> None:
        """Add the constraints for all order decisions that `before` has created.

        A task begins after the tasks that precede it in this order. For two tasks on one device,
        exactly one of the two orders holds.
        """
        clause, rule = self.constraints.clause, self.constraints.rule
        for (one, two), first in self.order.items():
            rule(self.begins(two), self.leaves(one), [first])
            if one < two:
                clause(-first, -self.order[two, one])
                for device in self.problem.devices:
                    here = (self.on(one, device), self.on(two, device))
                    clause(first, self.order[two, one], -here[0], -here[1])

    def within(self, horizon: float) -> None:
        """Limit all moments to tick ``horizon``, and narrow the ranges of the tasks' moments to the
        ticks that remain possible."""
        self.horizon = horizon
        ticks, moments = self.constraints.ticks, self.constraints.moments
        for moment in range(len(moments)):
            moments[moment] = (0, horizon)
        for task, moment in self.start.items():
            able = self.able(task)
            first = min(ticks(self.free_s[d]) for d in able)
            least = min(ticks(self.run_s[task][d]) for d in able) + ticks(self._tails_s[task])
            moments[moment] = (first, max(first, horizon - least))
            last = horizon - ticks(self._tails_s[task])
            moments[self.end[task]] = (first, max(first, last))

    def solution(self, assignment: Sequence[int], sequence: Sequence[int]) -> Valuation:
        """The valuation of a plan, each moment as early as the constraints allow.

        Args:
            assignment, sequence: those of a `problem.solution.Solution`.
        """
        at = {task: place for place, task in enumerate(sequence)}
        chosen: dict[Literal, bool] = {}
        for task in self.tasks:
            for device in self.problem.devices:
                if abs(self.on(task, device)) != TRUE:
                    chosen[self.on(task, device)] = assignment[task] == device
        for (one, two), first in self.order.items():
            chosen[first] = assignment[one] == assignment[two] and at[one] < at[two]
        flags = self.constraints.complete(chosen)
        ticks = self.constraints.in_ticks
        turns = [
            Rule(self.begins(two), ticks(self.leaves(one)))
            for one, two in _turns(assignment, sequence)
        ]
        moments = [m for task in sequence for m in (self.start[task], self.end[task])]
        return Valuation(flags, self.constraints.earliest(flags, moments, turns))

    def read(self, solution: Valuation) -> tuple[list[int], list[int]]:
        """The assignment (by task of the graph) and sequence (of these tasks) of a solution."""
        flags, moments = solution
        assignment = self.timeline.place.copy()
        keys = {}
        for task in self.tasks:
            for device in self.problem.devices:
                literal = self.on(task, device)
                if flags[abs(literal)] == (literal > 0):
                    assignment[task] = device
            # A task of length zero may start at the same tick as its successor. The smaller end
            # puts it first.
            run = self.constraints.ticks(self.run_s[task][assignment[task]])
            keys[task] = (moments[self.start[task]], moments[self.start[task]] + run, task)
        return assignment, in_turn(self.problem, self.tasks, keys.__getitem__)


def _turns(assignment: Sequence[int], sequence: Sequence[int]) -> list[tuple[int, int]]:
    """All pairs of tasks that directly follow each other on a device."""
    last: dict[int, int] = {}
    pairs = []
    for task in sequence:
        device = assignment[task]
        if device in last:
            pairs.append((last[device], task))
        last[device] = task
    return pairs
