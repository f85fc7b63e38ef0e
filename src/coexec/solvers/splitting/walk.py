"""The quickest way along the tasks of a model: each step computes some of them, on some devices."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from coexec.problem.problem import Problem
from coexec.solvers.splitting.strips import Held, Portion, Strips

__all__ = ["Moves", "Reached", "quickest"]

_IDLE = 0.05
"""What a second of any device counts beside a second of the last one to end."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Some tasks are done."""

    free_s: tuple[float, ...]
    """By device, when it has nothing left to do."""
    held: Held
    made_s: Mapping[tuple[str, int], float]
    """By tensor and device, when the parts that it has are there."""
    step: Strips | None = None
    before: "Reached | None" = None

    def steps(self) -> list[Strips]:
        """All steps, the first one first."""
        found, state = list[Strips](), self
        while state.step is not None and state.before is not None:
            found.append(state.step)
            state = state.before
        return found[::-1]

    def least_end_s(self, shares: Iterable[Portion], launches_s: Sequence[float]) -> float:
        """No step with these shares ends sooner, whatever has to be fetched for it."""
        return max(self.free_s[device] + max(0.0, compute_s - launches_s[device])
                   for device, _, compute_s in shares)  # fmt: skip

    def free_after(self, step: Strips) -> tuple[float, ...]:
        """By device, when it has nothing left to do after one step more."""
        free_s = list(self.free_s)
        works = zip(step.shares, step.fetches, step.durations_s, strict=True)
        for (device, _, _), fetches, duration_s in works:
            start_s = free_s[device]
            for name, _, _, latencies_s in fetches:
                for owner, latency_s in latencies_s:
                    start_s = max(start_s, self.made_s[name, owner] + latency_s)
            free_s[device] = start_s + duration_s
        return tuple(free_s)


Moves = Callable[[int, Reached], Iterable[Strips]]
"""From the number of the next task, and what is done, the steps to choose from. Each computes the
tasks from that one on, any number of them."""


class _End(NamedTuple):
    """A step, and when devices are free after it."""

    free_s: tuple[float, ...]
    step: Strips
    before: Reached

    @property
    def score_s(self) -> float:
        return max(self.free_s) + _IDLE * sum(self.free_s)


def quickest(problem: Problem, moves: Moves, width: int, *, barriers: bool = False) -> list[Strips]:
    """Steps through all tasks in their order, so that the last one ends as soon as possible.

    Devices go on when they have what they need, as in the simulator; with ``barriers`` they wait
    for each other after each step. What a step costs depends on where parts lie. So at each task
    the ``width`` best ways to it are kept, no two of which end with the same cut; with 1 the best
    step is taken each time. A model that returns its inputs has no tasks and takes no steps.
    """
    if not problem.tasks:
        return []
    tasks = problem.graph.tasks
    last_read = {name: number for number in problem.tasks for name in tasks[number].inputs}
    reached: list[list[_End]] = [[] for _ in range(len(tasks) + 1)]
    for number in problem.tasks:
        states = [_after(problem, end, last_read) for end in _best(reached[number], width)]
        if number == 0:
            states = [Reached((0.0,) * len(problem.devices), {}, {})]
        for state in states:
            for step in moves(number, state):
                free_s = state.free_after(step)
                if barriers:
                    free_s = (max(free_s),) * len(free_s)
                reached[number + len(step.tasks)].append(_End(free_s, step, state))
        reached[number].clear()
    last = min(reached[-1], key=lambda end: max(end.free_s))
    return [*last.before.steps(), last.step]


def _best(ends: Iterable[_End], width: int) -> Iterable[_End]:
    found: dict[object, _End] = {}
    for end in sorted(ends, key=lambda end: end.score_s):
        if len(found) == width:
            break
        found.setdefault(end.step.cut, end)
    return found.values()


def _after(problem: Problem, end: _End, last_read: Mapping[str, int]) -> Reached:
    """The state behind a step, without what is not read any more."""
    before, done = end.before, end.step.tasks[-1]
    held = {name: there for name, there in before.held.items() if last_read[name] > done}
    made_s = {key: s for key, s in before.made_s.items() if last_read[key[0]] > done}
    for name, device, region in end.step.made(problem):
        if last_read.get(name, -1) > done:
            held[name] = (*held.get(name, ()), (device, region))
            made_s[name, device] = end.free_s[device]
    return Reached(end.free_s, held, made_s, end.step, before)
