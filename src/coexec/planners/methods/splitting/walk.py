"""Beam search for the fastest sequence of steps; a step computes some tasks on some devices."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from coexec.graph.region import Region
from coexec.planners.methods.splitting.strips import Incoming, Portion, RegionsByTask, Strips
from coexec.problem.problem import Problem

_IDLE = 0.1
"""Weight of the mean of all devices' ends in a score; the latest end has weight 1."""


@dataclass(frozen=True, slots=True)
class Reached:
    """A state of the search, in which the first tasks of the model are done."""

    free_s: tuple[float, ...]
    """By device, the time at which it has no more work."""
    parts_of: RegionsByTask
    made_s: Mapping[tuple[str, int], float]
    """By tensor and device, the time at which the device's parts of the tensor are complete."""
    step: Strips | None = None
    before: "Reached | None" = None
    processors: Sequence[int] = ()
    """By device, the index of its processor. Empty: no devices share one."""
    incoming: dict[tuple[int, int, Region], Incoming] = field(default_factory=dict, compare=False)
    """Cache of `Sharing.incoming`, by task, device and region: most cuts have parts in common with
    other cuts."""

    def steps(self) -> list[Strips]:
        """All steps from the start to this state, the first step first."""
        steps, state = list[Strips](), self
        while state.step is not None and state.before is not None:
            steps.append(state.step)
            state = state.before
        return steps[::-1]

    def least_end_s(self, shares: Iterable[Portion], launches_s: Sequence[float]) -> float:
        """A lower bound, in seconds, for the end of a step with these shares; fetches count 0."""
        return max(
            self.free_s[device] + max(0.0, compute_s - launches_s[device])
            for device, _, compute_s in shares
        )

    def free_after(self, step: Strips) -> tuple[float, ...]:
        """By device, the time at which it has no more work after the additional ``step``, whose
        fetches are those of this state."""
        free_s = list(self.free_s)
        works = zip(step.shares, step.incoming, step.durations_s, strict=True)
        for (device, _, _), incoming, duration_s in works:
            free_s[device] = end_s = max(free_s[device], incoming.ready_s) + duration_s
            for other, processor in enumerate(self.processors):
                if processor == self.processors[device]:
                    free_s[other] = end_s
        return tuple(free_s)


def score_s(free_s: Sequence[float]) -> float:
    """Seconds by which the search compares states, from the time at which each device is free.

    The latest end decides nearly alone; the other ends make states differ in which only devices
    that are not the latest have idle time. With the sum of all ends in place of their mean, a
    search for sixteen devices would leave most of them idle.
    """
    return max(free_s) + _IDLE * math.fsum(free_s) / len(free_s)


Moves = Callable[[int, Reached], Iterable[Strips]]
"""Function from the number of the next task and the current state to the possible steps. Each step
computes that task and any number of tasks that follow it."""


class _End(NamedTuple):
    """A step with the time at which each device is free after it."""

    free_s: tuple[float, ...]
    step: Strips
    before: Reached


def quickest(problem: Problem, moves: Moves, width: int, *, barriers: bool = False) -> list[Strips]:
    """Steps through all tasks in topological order, chosen for an early end of the last step.

    A device continues when it has the data that it needs, as in the simulator; with ``barriers``
    all devices also wait for each other after each step. The cost of a step depends on the devices
    that have the parts of its inputs. Therefore at each task the ``width`` best states are kept, no
    two of which end with the same cut. With a width of 1 the search is greedy. A model that only
    returns its inputs has no tasks, so the result is empty.
    """
    if not problem.tasks:
        return []
    tasks = problem.graph.tasks
    last_read = {name: number for number in problem.tasks for name in tasks[number].inputs}
    reached: list[list[_End]] = [[] for _ in range(len(tasks) + 1)]
    for number in problem.tasks:
        states = [_after(problem, end, last_read) for end in _best(reached[number], width)]
        if number == 0:
            processors = problem.processors if problem.shares_processors else ()
            states = [Reached((0.0,) * len(problem.devices), {}, {}, processors=processors)]
        for state in states:
            for step in moves(number, state):
                free_s = state.free_after(step)
                if barriers:
                    free_s = (max(free_s),) * len(free_s)
                reached[number + len(step.tasks)].append(_End(free_s, step, state))
            state.incoming.clear()  # later steps keep the state, but not what led to other steps
        reached[number].clear()
    last = min(reached[-1], key=lambda end: max(end.free_s))
    return [*last.before.steps(), last.step]


def _best(ends: Iterable[_End], width: int) -> Iterable[_End]:
    end_of_cut: dict[object, _End] = {}
    for end in sorted(ends, key=lambda end: score_s(end.free_s)):
        if len(end_of_cut) == width:
            break
        end_of_cut.setdefault(end.step.cut, end)
    return end_of_cut.values()


def _after(problem: Problem, end: _End, last_read: Mapping[str, int]) -> Reached:
    """The state after a step, without tensors that no later task reads."""
    before, done = end.before, end.step.tasks[-1]
    parts_of = {name: there for name, there in before.parts_of.items() if last_read[name] > done}
    made_s = {key: s for key, s in before.made_s.items() if last_read[key[0]] > done}
    for name, device, region in end.step.made(problem):
        if last_read.get(name, -1) > done:
            parts_of[name] = (*parts_of.get(name, ()), (device, region))
            made_s[name, device] = end.free_s[device]
    return Reached(end.free_s, parts_of, made_s, end.step, before, before.processors)
