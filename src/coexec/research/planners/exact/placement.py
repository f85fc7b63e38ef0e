"""The unknowns of a plan: where and when tasks run, and how long they keep devices busy."""

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from coexec.problem.problem import Problem
from coexec.problem.timeline import Timeline
from coexec.research.planners.exact.constraints import FALSE, TRUE, Constraints, Literal, Sum


class Occupation(NamedTuple):
    """``device`` is busy for additional ``seconds`` if ``literal`` is true."""

    device: int
    seconds: float
    literal: Literal


class Placement:
    """Decisions and moments for ``tasks``, which are in topological order and run after the tasks
    that ``timeline`` has run.

    With ``fused``, the time of a task is the time that it adds to a segment, and the first task of
    a segment also pays for the launch.
    """

    def __init__(
        self,
        problem: Problem,
        tasks: Sequence[int],
        timeline: Timeline,
        constraints: Constraints,
        fused: bool,
    ) -> None:
        self.problem, self.tasks, self.timeline = problem, tasks, timeline
        self.fused = fused
        self.free_s = timeline.free_s[:]
        """By device, the time at which it has finished the tasks of the timeline."""
        self.run_s = problem.net_s if fused else problem.latency_s
        self.constraints = constraints
        self.start = {task: constraints.moment() for task in tasks}
        """By task, the moment at which its device becomes busy with it; first with copying the
        task's inputs."""
        self.end = {task: constraints.moment() for task in tasks}
        """By task, the moment at which its results are complete."""
        self.copies: dict[int, list[Occupation]] = {task: [] for task in tasks}
        """Copies that the device of a task makes before it computes the task."""
        self.sends: dict[int, list[Occupation]] = {task: [] for task in tasks}
        """Copies that the device of a task makes after it has computed the task."""
        self.order: dict[tuple[int, int], Literal] = {}
        """Whether the first task of a pair runs first, if both are on one device. `before` creates
        these decisions."""
        self._placed = {task: self._literals(task) for task in tasks}

    def _literals(self, task: int) -> tuple[Literal, ...]:
        able = self.able(task)
        literals = [FALSE] * len(self.problem.devices)
        if len(able) == 2:  # one decision is enough
            literals[able[0]] = self.constraints.flag()
            literals[able[1]] = -literals[able[0]]
            return tuple(literals)
        for device in able:
            literals[device] = self.constraints.flag() if len(able) > 1 else TRUE
        self.constraints.clause(*literals)
        for a, b in combinations(able, 2):
            self.constraints.clause(-literals[a], -literals[b])
        return tuple(literals)

    def able(self, task: int) -> list[int]:
        """The devices that run ``task``."""
        return [d for d in self.problem.devices if self.run_s[task][d] < math.inf]

    def on(self, task: int, device: int) -> Literal:
        """Whether ``device`` runs ``task``."""
        if task in self.start:
            return self._placed[task][device]
        return TRUE if self.timeline.place[task] == device else FALSE

    def crosses(self, task: int, reader: int, a: int, b: int) -> Literal:
        """Whether ``task`` is on device ``a`` and ``reader`` on ``b``."""
        return self.constraints.all_of([self.on(task, a), self.on(reader, b)])

    def before(self, first: int, second: int) -> Literal:
        """Whether ``first`` runs before ``second``, if both are on one device."""
        if self.problem.precedes[first, second] or first not in self.start:
            return TRUE
        if self.problem.precedes[second, first] or second not in self.start:
            return FALSE
        if (first, second) not in self.order:
            self.order[first, second] = self.constraints.flag()
            self.order[second, first] = self.constraints.flag()
        return self.order[first, second]

    def begins(self, task: int) -> Sum:
        """The time at which its device becomes busy with ``task``."""
        return Sum(moment=self.start[task])

    def computes(self, task: int) -> Sum:
        """The time at which the inputs of ``task`` have been copied."""
        return self.begins(task).plus(flags=_flagged(self.copies[task]))

    def ends(self, task: int) -> Sum:
        """The time at which the results of ``task`` are complete."""
        if task not in self.start:
            return Sum(self.timeline.end_s[task])
        return Sum(moment=self.end[task])

    def leaves(self, task: int) -> Sum:
        """The time at which its device has also sent the results, and may begin another task."""
        return self.ends(task).plus(flags=_flagged(self.sends[task]))

    def occupies(self, task: int, device: int) -> Sum:
        """The time for which ``task`` keeps ``device`` busy if it runs there."""
        copies = [p for p in (*self.copies[task], *self.sends[task]) if p.device == device]
        return Sum(self.run_s[task][device]).plus(flags=_flagged(copies))

    def launch_s(self, task: int, device: int) -> float:
        """Seconds of the launch that ``task`` pays if it is the first of a segment; 0 without
        ``fused``."""
        latency_s, run_s = self.problem.latency_s[task][device], self.run_s[task][device]
        return latency_s - run_s if latency_s < math.inf else 0.0


def _flagged(parts: Iterable[Occupation]) -> list[tuple[float, Literal]]:
    return [(part.seconds, part.literal) for part in parts]
