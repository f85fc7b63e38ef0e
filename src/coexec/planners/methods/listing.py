"""List scheduling in the planners' model of time: a good plan within a short time to start from."""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any

from coexec.problem.problem import Problem
from coexec.problem.timeline import Timeline


def listed(
    problem: Problem, tasks: Sequence[int], timeline: Timeline, urgency_s: Sequence[float]
) -> tuple[Timeline, list[int]]:
    """The timeline after list scheduling of ``tasks``, and the sequence of these tasks.

    Tasks are placed after those that ``timeline`` has run already; ``timeline`` itself is not
    changed. Of the tasks whose predecessors are placed, the one that can start first comes next; of
    those that can start as soon as some device is free, the most urgent one. A task goes to the
    device on which it ends first. O(|V| (|V| + |D|)).
    """
    timeline = timeline.copy()

    def turn(task: int) -> tuple[float, float, int]:
        made_s = max((timeline.end_s[p] for p in problem.predecessors[task]), default=0.0)
        return max(made_s, min(timeline.free_s)), -urgency_s[task], task

    sequence = []
    for task in _ready_first(problem, tasks, turn):
        timeline.run(task, _where_it_ends_first(problem, timeline, task))
        sequence.append(task)
    return timeline, sequence


def in_turn(problem: Problem, tasks: Sequence[int], turn: Callable[[int], Any]) -> list[int]:
    """``tasks`` by rising ``turn``, but no task before its predecessors."""
    return list(_ready_first(problem, tasks, turn))


def _ready_first(
    problem: Problem, tasks: Sequence[int], turn: Callable[[int], Any]
) -> Iterator[int]:
    """Yield, again and again, the task with the least ``turn`` whose predecessors were yielded."""
    inside = set(tasks)
    missing = {t: len(inside.intersection(problem.predecessors[t])) for t in tasks}
    ready = [task for task in tasks if not missing[task]]
    while ready:
        task = min(ready, key=turn)
        ready.remove(task)
        yield task
        for reader in inside.intersection(problem.successors[task]):
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)


def _where_it_ends_first(problem: Problem, timeline: Timeline, task: int) -> int:
    able = [d for d in problem.devices if problem.latency_s[task][d] < inf]
    return min(able, key=lambda device: timeline.copy().run(task, device))
