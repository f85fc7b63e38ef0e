"""The unknowns of a plan: where tasks run, when, and what follows from that for their devices."""

import math
from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import NamedTuple

from coexec.problem.problem import Problem
from coexec.problem.timeline import Timeline
from coexec.solvers.exact.constraints import FALSE, TRUE, Constraints, Literal, Sum

__all__ = ["Occupation", "Placement"]


class Occupation(NamedTuple):
    """A device is busy for some seconds more where ``literal`` is true."""

    device: int
    seconds: float
    literal: Literal


class Placement:
    """Where and when ``tasks``, in topological order, run behind those that ``timeline`` has run.

    With ``fused``, a task takes what it adds to a segment, and the first of one pays its launch.
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
        self.free_s = [timeline.free_s[device] for device in problem.places.device]
        """By place, when its device has done what the timeline has run."""
        self.run_s = problem.net_s if fused else problem.latency_s
        self.constraints = constraints
        self.start = {task: constraints.moment() for task in tasks}
        """The moment at which its device gives itself to a task, first to copy what it reads."""
        self.end = {task: constraints.moment() for task in tasks}
        """The moment at which its results are there."""
        self.copies: dict[int, list[Occupation]] = {task: [] for task in tasks}
        """What the device of a task copies before it."""
        self.sends: dict[int, list[Occupation]] = {task: [] for task in tasks}
        """What it copies behind it."""
        self.order: dict[tuple[int, int], Literal] = {}
        """Of two tasks on one device, whether the first runs first, where somebody asked."""
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
        """Of two tasks on one device, whether ``first`` runs first."""
        if self.problem.precedes[first, second] or first not in self.start:
            return TRUE
        if self.problem.precedes[second, first] or second not in self.start:
            return FALSE
        if (first, second) not in self.order:
            self.order[first, second] = self.constraints.flag()
            self.order[second, first] = self.constraints.flag()
        return self.order[first, second]

    def begins(self, task: int) -> Sum:
        """When its device gives itself to ``task``."""
        return Sum(moment=self.start[task])

    def computes(self, task: int) -> Sum:
        """When what ``task`` reads has been copied."""
        return self.begins(task).plus(flags=_flagged(self.copies[task]))

    def ends(self, task: int) -> Sum:
        """When the results of ``task`` are there."""
        if task not in self.start:
            return Sum(self.timeline.end_s[task])
        return Sum(moment=self.end[task])

    def leaves(self, task: int) -> Sum:
        """When its device has sent them, too, and may turn to another task."""
        return self.ends(task).plus(flags=_flagged(self.sends[task]))

    def occupies(self, task: int, device: int) -> Sum:
        """How long ``task`` keeps ``device`` busy if it runs there."""
        ours = [p for p in (*self.copies[task], *self.sends[task]) if p.device == device]
        return Sum(self.run_s[task][device]).plus(flags=_flagged(ours))

    def launch_s(self, task: int, device: int) -> float:
        """What ``task`` adds to its latency if it is the first of a segment."""
        latency_s, run_s = self.problem.latency_s[task][device], self.run_s[task][device]
        return latency_s - run_s if latency_s < math.inf else 0.0


def _flagged(parts: Iterable[Occupation]) -> list[tuple[float, Literal]]:
    return [(part.seconds, part.literal) for part in parts]
