"""HOPE's greedy search with node merging ("HOPE:GS").

Paper: Xia et al., "HOPE: a heterogeneity-oriented parallel execution engine for inference on
mobiles", High Technology Letters, 2022, Algorithm 2. The paper leaves some choices open. Here:

* No task starts before a device is free. Of the tasks that can start then, the one with the highest
  upward rank comes first (otherwise plans of NASNet-large are a tenth longer).
* Of placements with equal completion, the one with the smaller sum of ends wins, then fewer
  transfers, then fewer bytes. This keeps a task with the heaviest of its predecessors.
* Ready tasks beyond the first K stay in the queue (the printed algorithm loses them).

The comparison with single devices is not in the paper. Tasks that are placed early on a processor
without extra cost can draw later tasks to it that are slow there. Then the paper's algorithm is a
third slower than the other processor alone (PNASNet-mobile on the fastest phone).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from coexec.errors import UsageError
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, best_of
from coexec.problem.timeline import Timeline


def solve(
    problem: Problem,
    *,
    top_k: int | None = None,
    merge_below_s: float | None = None,
) -> Solution:
    """Place the few tasks that can start first on the best combination of devices; repeat.

    The ready tasks are sorted by earliest start. The first K of them are tried on all |D|^K
    combinations of devices, and the combination that completes them first is kept. Before that,
    each short task with one predecessor is merged into it, so that both are placed as one. Promises
    the optimum for a graph of K independent tasks. For other graphs, because it does not look
    ahead, it only promises that the simulated plan is not slower than the best single device.
    O(|V| |D|^K), without sorting.

    Args:
        top_k: K. By default every K up to the paper's is tried (4 for two devices, 3 for three,
            else the most with at most 256 combinations), and the shortest plan is kept: placing
            several tasks at once is not always better than placing one, because it considers only
            these tasks.
        merge_below_s: tasks shorter than this on every device that runs them are merged. By
            default this is the least cost of moving a task to another device: the latency of the
            slowest link and a launch. If that link also copies, this time plus its smallest copy
            is tried, too.

    Raises:
        UsageError: ``top_k`` is less than 1.
    """
    if top_k is not None and top_k < 1:
        raise UsageError(f"top_k is {top_k}, but at least 1 task is to be placed at a time")
    below_s = [default_merge_below_s(problem), default_merge_below_s(problem, copies=True)]
    if merge_below_s is not None:
        below_s = [merge_below_s]
    plans = [_shortest(problem, *one, top_k) for one in _distinct(problem, below_s)]
    best = best_of(problem, plans)
    return best._replace(options=best.options or plans[0].options)


def _shortest(
    problem: Problem, below_s: float, groups: Sequence[tuple[int, ...]], top_k: int | None
) -> Solution:
    """The shortest plan for the groups of one threshold, over all K to try."""
    ks = [top_k] if top_k else range(1, default_top_k(len(problem.devices)) + 1)
    results = [(k, *_search(problem, groups, k)) for k in ks]
    k, timeline, sequence = min(results, key=lambda result: result[1].makespan_s)
    return Solution(timeline.place, sequence, options={"top_k": k, "merge_below_s": below_s})


def _distinct(
    problem: Problem, below_s: Sequence[float]
) -> list[tuple[float, list[tuple[int, ...]]]]:
    """Thresholds with the groups that they make; thresholds that make equal groups appear once."""
    threshold_of: dict[str, tuple[float, list[tuple[int, ...]]]] = {}
    for below in below_s:
        groups = merge(problem, below)
        threshold_of.setdefault(repr(groups), (below, groups))
    return list(threshold_of.values())


def _search(
    problem: Problem, groups: Sequence[tuple[int, ...]], top_k: int
) -> tuple[Timeline, list[int]]:
    """The paper's Algorithm 2 for one K."""
    timeline = Timeline(problem)
    sequence: list[int] = []
    queue = _Queue(problem, groups)
    while chosen := queue.pop(timeline, top_k):
        for group, device in zip(chosen, _best(problem, timeline, chosen).devices, strict=True):
            for task in group:
                timeline.run(task, device)
            sequence += group
            queue.done(group)
    return timeline, sequence


def default_top_k(devices: int) -> int:
    """The default K: the paper's 4 for two and 3 for three devices; for more devices, about as much
    work."""
    if devices <= 3:
        return 3 if devices == 3 else 4
    return max(1, int(math.log(256 + 0.5, devices)))


def default_merge_below_s(problem: Problem, copies: bool = False) -> float:
    """Seconds below which a task is too short to be moved to another device.

    Args:
        copies: include the time of the smallest copy.
    """
    pairs = [(a, b) for a in problem.devices for b in problem.devices]
    least_s = [
        min((transfer_s[a][b] for transfer_s in problem.transfer_s), default=0.0) if copies else 0.0
        for a, b in pairs
    ]
    latency_s = max(
        problem.links[a][b].sync_latency_s + s for (a, b), s in zip(pairs, least_s, strict=True)
    )
    return latency_s + max(problem.launches_s)


def merge(problem: Problem, below_s: float) -> list[tuple[int, ...]]:
    """Groups of tasks that are placed as one, each in topological order.

    A short task joins the group that makes all its inputs, unless some device that runs the group
    does not run the task. The groups form no cycle: only the first task of a group reads from
    outside, so all predecessors of the group come before the whole group, and no reader of the
    group is a predecessor of it. For the same reason a group runs without a pause once it has
    started.
    """
    groups: list[list[int]] = []
    group_of: list[int] = []
    for task in problem.tasks:
        runs_s = [s for s in problem.latency_s[task] if s < math.inf]
        sources = {group_of[before] for before in problem.predecessors[task]}
        home = sources.pop() if len(sources) == 1 and max(runs_s) < below_s else len(groups)
        if home == len(groups) or not _runs_wherever(problem, task, groups[home]):
            home = len(groups)
            groups.append([])
        groups[home].append(task)
        group_of.append(home)
    return [tuple(group) for group in groups]


def _runs_wherever(problem: Problem, task: int, group: Sequence[int]) -> bool:
    return all(
        problem.latency_s[task][device] < math.inf
        for device in problem.devices
        if all(problem.latency_s[member][device] < math.inf for member in group)
    )


class _Queue:
    """The groups whose predecessors have been placed."""

    def __init__(self, problem: Problem, groups: Sequence[tuple[int, ...]]) -> None:
        self._problem = problem
        self._missing = {g[0]: len(problem.predecessors[g[0]]) for g in groups}
        self._ready = [g for g in groups if not self._missing[g[0]]]
        self._group = {g[0]: g for g in groups}

    def pop(self, timeline: Timeline, count: int) -> list[tuple[int, ...]]:
        """Take out the ``count`` groups that can start first."""
        before, rank_s = self._problem.predecessors, self._problem.upward_rank_s
        free_s = min(timeline.free_s)  # nothing starts before a device is free

        def urgency(group: tuple[int, ...]) -> tuple[float, float, int]:
            head = group[0]
            start_s = max((timeline.end_s[p] for p in before[head]), default=0.0)
            return max(start_s, free_s), -rank_s[head], head

        self._ready.sort(key=urgency)
        chosen, self._ready = self._ready[:count], self._ready[count:]
        return chosen

    def done(self, group: tuple[int, ...]) -> None:
        """Mark ``group`` as placed, which may make the groups that read from it ready."""
        for task in group:
            for reader in self._problem.successors[task]:
                if reader in self._missing and reader not in group:
                    self._missing[reader] -= 1
                    if not self._missing[reader]:
                        self._ready.append(self._group[reader])


class _Choice(NamedTuple):
    """A placement of some groups; choices compare by their fields, and the smallest is the best."""

    completion_s: float
    sum_of_ends_s: float
    transfers: int
    moved_bytes: int
    devices: tuple[int, ...]


def _best(problem: Problem, timeline: Timeline, groups: Sequence[tuple[int, ...]]) -> _Choice:
    """The best of all placements of ``groups``."""
    best = _Choice(math.inf, math.inf, 0, 0, ())

    def most_s() -> float:
        return best.completion_s

    for choice in _choices(problem, timeline, groups, most_s):
        best = min(best, choice)
    return best


def _choices(
    problem: Problem,
    timeline: Timeline,
    groups: Sequence[tuple[int, ...]],
    most_s: Callable[[], float],
    ends_s: tuple[float, ...] = (),
    devices: tuple[int, ...] = (),
) -> Iterator[_Choice]:
    """Placements of ``groups`` after the groups that end at ``ends_s`` on ``devices``, without
    those that complete after ``most_s``."""
    if not groups:
        # Sums in another order differ in the last digits. Rounding to picoseconds keeps such
        # differences from deciding.
        completion_s, sum_s = round(max(ends_s), 12), round(math.fsum(ends_s), 12)
        transfers, moved_bytes = len(timeline.there), timeline.moved_bytes
        yield _Choice(completion_s, sum_s, transfers, moved_bytes, devices)
        return
    head, *remaining = groups
    placed = list[tuple[float, int, Timeline]]()
    for device in problem.devices:
        if any([problem.latency_s[task][device] == math.inf for task in head]):
            continue
        after = timeline.copy()
        placed.append(([after.run(task, device) for task in head][-1], device, after))
    # Devices on which the group ends early come first: their completions exclude others.
    for end_s, device, after in sorted(placed, key=lambda one: one[0]):
        if round(end_s, 12) > most_s():
            return
        further = (*ends_s, end_s), (*devices, device)
        yield from _choices(problem, after, remaining, most_s, *further)
