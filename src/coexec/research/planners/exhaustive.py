"""The best plan of a tiny graph, by trying all plans: the oracle in tests of other planners."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from coexec.errors import PlanError
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution
from coexec.problem.timeline import Timeline, makespan_s


def solve(problem: Problem, *, max_tasks: int = 10) -> Solution:
    """The optimum over all assignments of tasks to devices and all orders on them.

    Promises the least makespan in the planners' model of time (`problem.timeline.Timeline`). This
    is the simulator's model for segments of one task each: a wait starts at the end of a
    predecessor, and a copy keeps the source, the target or no device busy. It leaves out two
    effects of segments of several tasks: they save launches, and they wait for all their inputs
    before they start. So the simulated makespan can be smaller or larger.

    O(|D|^|V| |V|!) at worst. Assignments are taken by rising lower bound until the bound reaches
    the best makespan. For each assignment, branch and bound searches the orders; a state is dropped
    if another state with the same tasks done is later in no respect. No paper.

    Args:
        max_tasks: the largest number of tasks of a graph.

    Raises:
        PlanError: the graph has more tasks than ``max_tasks``.
    """
    graph = problem.graph
    count = len(graph.tasks)
    if count > max_tasks:
        raise PlanError(
            f"{graph.name!r} has {count} tasks, exhaustive takes at most {max_tasks}; use another "
            f"planner, such as hope_greedy, or raise max_tasks"
        )
    best_s, assignment, sequence = _first(problem)
    for partial in sorted(_assignments(problem, best_s)):
        if partial.bound_s >= best_s:
            break
        orders = _Orders(problem, partial.assignment, best_s)
        orders.search(Timeline(problem, partial.assignment), ())
        if orders.sequence is not None:
            best_s, assignment, sequence = orders.best_s, partial.assignment, orders.sequence
    return Solution(assignment, sequence, status="optimal", bound_s=best_s)


def _first(problem: Problem) -> tuple[float, tuple[int, ...], tuple[int, ...]]:
    """Makespan, assignment and sequence of a first plan: each task on the device where it ends
    first."""
    timeline = Timeline(problem)
    for task in problem.tasks:
        options = []
        for device in problem.devices:
            if problem.latency_s[task][device] < math.inf:
                options.append(timeline.copy())
                options[-1].run(task, device)
        timeline = min(options, key=lambda option: option.end_s[task])
    assignment, sequence = tuple(timeline.place), tuple(problem.tasks)
    return makespan_s(problem, assignment, sequence), assignment, sequence


class _Partial(NamedTuple):
    """Devices of the first tasks, and bounds that hold for every order of the tasks."""

    bound_s: float
    assignment: tuple[int, ...]
    ends_s: tuple[float, ...]
    """The earliest end of each task."""
    loads_s: tuple[float, ...]
    """The sum of the times of each device's tasks."""


def _assignments(problem: Problem, best_s: float) -> list[_Partial]:
    """All assignments whose lower bound is below ``best_s``."""
    partials = [_Partial(problem.bound_s, (), (), (0.0,) * len(problem.devices))]
    tails_s = _least_tails_s(problem)
    for tail_s in tails_s:
        longer = (_extended(problem, p, d, tail_s) for p in partials for d in problem.devices)
        partials = [partial for partial in longer if partial.bound_s < best_s]
    return partials


def _extended(problem: Problem, partial: _Partial, device: int, tail_s: float) -> _Partial:
    """``partial`` with the next task on ``device``.

    Args:
        tail_s: the least time from the end of that task to the end of the graph.
    """
    bound_s, assignment, ends_s, loads_s = partial
    task = len(assignment)
    latency_s = problem.latency_s[task][device]
    arrivals_s = (
        ends_s[p] + problem.comm_s(p, task, assignment[p], device)
        for p in problem.predecessors[task]
    )
    end_s = max(arrivals_s, default=0.0) + latency_s
    load_s = loads_s[device] + latency_s
    return _Partial(
        max(bound_s, end_s + tail_s, load_s),
        (*assignment, device),
        (*ends_s, end_s),
        (*loads_s[:device], load_s, *loads_s[device + 1 :]),
    )


def _least_tails_s(problem: Problem) -> list[float]:
    """By task, the least time from its end to the end of the graph."""
    tails_s = [0.0] * len(problem.tasks)
    for task in reversed(problem.tasks):
        for before in problem.predecessors[task]:
            tails_s[before] = max(tails_s[before], tails_s[task] + min(problem.latency_s[task]))
    return tails_s


class _Orders:
    """Branch and bound over the orders of one assignment."""

    def __init__(self, problem: Problem, assignment: Sequence[int], best_s: float) -> None:
        self._problem = problem
        self._assignment = assignment
        self.best_s = best_s
        self.sequence: tuple[int, ...] | None = None
        self._seen: dict[frozenset[int], list[tuple[float, ...]]] = {}

    def search(self, timeline: Timeline, sequence: tuple[int, ...]) -> None:
        """Try all continuations of ``sequence``."""
        problem = self._problem
        done = frozenset(sequence)
        if len(done) == len(problem.tasks):
            if timeline.makespan_s < self.best_s:
                self.best_s, self.sequence = timeline.makespan_s, sequence
            return
        if self._bound_s(timeline, done) >= self.best_s or self._dominated(timeline, done):
            return
        for task in problem.tasks:
            if task not in done and done.issuperset(problem.predecessors[task]):
                after = timeline.copy()
                after.run(task, self._assignment[task])
                self.search(after, (*sequence, task))

    def _bound_s(self, timeline: Timeline, done: frozenset[int]) -> float:
        """A lower bound of the makespan: each remaining task runs on its device, after its
        predecessors."""
        problem, assignment = self._problem, self._assignment
        ends_s, loads_s = list(timeline.end_s), list(timeline.free_s)
        for task in problem.tasks:
            if task not in done:
                device = assignment[task]
                ready_s = (
                    ends_s[p] + problem.comm_s(p, task, assignment[p], device)
                    for p in problem.predecessors[task]
                )
                latency_s, processor = problem.latency_s[task][device], problem.processors[device]
                loads_s[processor] += latency_s
                ends_s[task] = max(timeline.free_s[processor], *ready_s, 0.0) + latency_s
        return max(*ends_s, *loads_s)

    def _dominated(self, timeline: Timeline, done: frozenset[int]) -> bool:
        """Whether an earlier state with the same tasks done is later than this state in no respect;
        if not, this state is stored."""
        pending = {
            p
            for task in self._problem.tasks
            if task not in done
            for p in self._problem.predecessors[task]
            if p in done
        }
        state = (
            *timeline.free_s,
            *(timeline.end_s[task] for task in sorted(pending)),
            *(at_s for _, at_s in sorted(timeline.arrival_s.items())),
            *(at_s for _, at_s in sorted(timeline.link_free_s.items())),
        )
        states = self._seen.setdefault(done, [])
        if any(all(a <= b for a, b in zip(old, state, strict=True)) for old in states):
            return True
        states.append(state)
        return False
