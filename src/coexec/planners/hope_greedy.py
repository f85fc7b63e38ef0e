"""HOPE's greedy search with node merging ("HOPE:GS").

Paper: Xia et al., "HOPE: a heterogeneity-oriented parallel execution engine for inference on
mobiles", High Technology Letters, 2022, Algorithm 2. Where the paper leaves the choice open: no
task starts before a device is free, and of those that can start then, the one with the highest
upward rank comes first (otherwise plans of NASNet-large are a tenth longer); among equal
completions the smaller sum of ends wins, then fewer transfers, then fewer bytes, which keeps a task
with the heaviest of its predecessors; ready tasks beyond the first K stay in the queue (the printed
algorithm loses them). Ours is the comparison with single devices: what is placed early at no cost
can drag the rest to a processor that is slow for it, and then the paper's algorithm loses to the
other one by a third (PNASNet-mobile on the fastest phone).
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from coexec.errors import UsageError
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, alone, simulated_s
from coexec.problem.timeline import Timeline

__all__ = ["default_merge_below_s", "default_top_k", "merge", "solve"]


def solve(
    problem: Problem,
    *,
    top_k: int | None = None,
    merge_below_s: float | None = None,
) -> Solution:
    """Place the few tasks that can start first in the best of all ways; repeat.

    The ready tasks are sorted by earliest start; the first K of them are tried on all |D|^K
    combinations of devices, and the one is kept that completes them first. Before that, each short
    task with one predecessor is merged into it, so that both are placed as one. Promises the
    optimum where K independent tasks are all there is; beyond that only, as it does not look ahead,
    that the simulated plan is not slower than the best single device. O(|V| |D|^K), besides
    sorting.

    Args:
        top_k: K; by default every K up to the paper's (4 for two devices, 3 for three, else the
            most that tries no more than 256 combinations), and the shortest plan is kept: placing
            several tasks at once is not always better than one, as it serves these alone.
        merge_below_s: tasks shorter than this on every device that runs them are merged; by
            default what handing a task to another device costs at least: the slowest link's
            latency and a launch. Where that link also copies, the time of its smallest copy
            on top is tried as well.

    Raises:
        UsageError: ``top_k`` is less than 1.
    """
    if top_k is not None and top_k < 1:
        raise UsageError(f"top_k is {top_k}, but at least 1 task is to be placed at a time")
    below_s = [default_merge_below_s(problem), default_merge_below_s(problem, copies=True)]
    if merge_below_s is not None:
        below_s = [merge_below_s]
    plans = [_shortest(problem, *one, top_k) for one in _distinct(problem, below_s)]
    plans += [single._replace(options=plans[0].options) for single in alone(problem)]
    return min(plans, key=lambda plan: simulated_s(problem, plan))


def _shortest(
    problem: Problem, below_s: float, groups: Sequence[tuple[int, ...]], top_k: int | None
) -> Solution:
    """For the groups of one threshold, the shortest plan of all K that are asked for."""
    ks = [top_k] if top_k else range(1, default_top_k(len(problem.devices)) + 1)
    found = [(k, *_search(problem, groups, k)) for k in ks]
    k, timeline, sequence = min(found, key=lambda result: result[1].makespan_s)
    return Solution(timeline.place, sequence, options={"top_k": k, "merge_below_s": below_s})


def _distinct(
    problem: Problem, below_s: Sequence[float]
) -> list[tuple[float, list[tuple[int, ...]]]]:
    """The groups that each threshold makes, without those that another one makes as well."""
    found: dict[str, tuple[float, list[tuple[int, ...]]]] = {}
    for below in below_s:
        groups = merge(problem, below)
        found.setdefault(repr(groups), (below, groups))
    return list(found.values())


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
    """The paper's 4 and 3 for two and three devices; about as much work for more."""
    if devices <= 3:
        return 3 if devices == 3 else 4
    return max(1, int(math.log(256 + 0.5, devices)))


def default_merge_below_s(problem: Problem, copies: bool = False) -> float:
    """What takes less is not worth waiting for another device; with ``copies``, or copying."""
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
    """Groups of tasks to be placed as one, each in topological order.

    A short task joins the group that makes all that it reads, unless that would take a device
    away from the group. The groups form no cycle: only the first task of a group reads from
    outside, so whatever leads into the group comes before all of it, and nothing that reads from
    the group can lead back into it. That is also why a group runs without a pause once started.
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
        """Let the groups wait no longer that read from ``group``."""
        for task in group:
            for reader in self._problem.successors[task]:
                if reader in self._missing and reader not in group:
                    self._missing[reader] -= 1
                    if not self._missing[reader]:
                        self._ready.append(self._group[reader])


class _Choice(NamedTuple):
    """A placement of some groups, the better the smaller."""

    completion_s: float
    sum_of_ends_s: float
    transfers: int
    moved_bytes: int
    devices: tuple[int, ...]


def _best(
    problem: Problem,
    timeline: Timeline,
    groups: Sequence[tuple[int, ...]],
    ends_s: tuple[float, ...] = (),
    devices: tuple[int, ...] = (),
) -> _Choice:
    """Of all placements of ``groups`` behind those already on ``devices``, the best."""
    if not groups:
        # Sums in another order differ in the last digits; picoseconds are no reason to move.
        completion_s, sum_s = round(max(ends_s), 12), round(math.fsum(ends_s), 12)
        transfers, moved_bytes = len(timeline.there), timeline.moved_bytes
        return _Choice(completion_s, sum_s, transfers, moved_bytes, devices)
    head, *rest = groups
    options = []
    for device in problem.devices:
        if any(problem.latency_s[task][device] == math.inf for task in head):
            continue
        after = timeline.copy()
        end_s = [after.run(task, device) for task in head][-1]
        options.append(_best(problem, after, rest, (*ends_s, end_s), (*devices, device)))
    return min(options)
