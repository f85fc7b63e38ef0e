"""Parallel branches of a graph, and which device had best compute which of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import fsum, inf
from typing import NamedTuple

from coexec.problem.problem import Problem
from coexec.solvers.splitting.placed import Sharing
from coexec.solvers.splitting.strips import Fetch, Held, Portion, Strips

__all__ = ["Fork", "distributed", "forks"]

_EXHAUSTIVE = 64
"""Ways to distribute branches of which all are tried."""


@dataclass(frozen=True, slots=True)
class Fork:
    """Consecutive tasks, by number, in branches that do not read each other."""

    tasks: range
    branches: tuple[tuple[int, ...], ...]
    """At least two, each with its tasks in their order."""


def forks(problem: Problem) -> Mapping[int, Sequence[Fork]]:
    """By first task, where branches begin that join again, the longest first."""
    found: dict[int, list[Fork]] = {}
    for join in (*problem.tasks, len(problem.tasks)):
        for fork in _joined(problem, join):
            found.setdefault(fork.tasks.start, []).append(fork)
    return {first: sorted(each, key=lambda f: -len(f.tasks)) for first, each in found.items()}


def _joined(problem: Problem, join: int) -> Iterable[Fork]:
    """Forks that end in front of a task, or of the end of the model.

    Backwards from there, tasks that it is computed from are taken as long as they lie side by side.
    Each task that connects branches ends a fork: its branches are those behind the task.
    """
    left = _sources(problem, join)
    branch_of: dict[int, int] = {}
    count = 0
    for task in range(join - 1, -1, -1):
        connected = {branch_of[r] for r in problem.successors[task] if r in branch_of}
        if task not in left and not connected:
            break
        if len(connected) > 1:
            yield Fork(range(task + 1, join), _grouped(branch_of))
            branch_of = {t: task if b in connected else b for t, b in branch_of.items()}
        branch_of[task] = task if len(connected) != 1 else min(connected)
        count += 1 - len(connected)
        left.discard(task)
        if count == 1 and not left:
            return
    if count > 1:
        yield Fork(range(join - len(branch_of), join), _grouped(branch_of))


def _sources(problem: Problem, join: int) -> set[int]:
    """The tasks that a task reads, or at the end of the model those that make its outputs."""
    if join < len(problem.tasks):
        return set(problem.predecessors[join])
    outputs = problem.graph.outputs
    return {t for t in problem.tasks if not set(problem.graph.tasks[t].outputs).isdisjoint(outputs)}


def _grouped(branch_of: Mapping[int, int]) -> tuple[tuple[int, ...], ...]:
    branches: dict[int, list[int]] = {}
    for task in sorted(branch_of):
        branches.setdefault(branch_of[task], []).append(task)
    return tuple(map(tuple, branches.values()))


def distributed(sharing: Sharing, fork: Fork, held: Held) -> Strips | None:
    """The branches of a fork, each on the device with which all have ended soonest; None if no
    device runs a branch.

    All ways are tried where there are few; else the longest branch goes first, to where it ends
    soonest.
    """
    devices = sharing.problem.devices
    alone = [[_alone(sharing, b, device, held) for device in devices] for b in fork.branches]
    if any(all(one.compute_s == inf for one in row) for row in alone):
        return None
    if len(devices) ** len(alone) <= _EXHAUSTIVE:
        ways: Iterable[Sequence[int]] = product(devices, repeat=len(alone))
    else:
        ways = [_longest_first(alone)]
    found = (_together(sharing, fork, [row[d] for row, d in zip(alone, way, strict=True)])
             for way in ways)  # fmt: skip
    return min(found, key=lambda strips: strips.seconds)


class _Alone(NamedTuple):
    """A branch on one device."""

    device: int
    tasks: Sequence[int]
    compute_s: float
    fetches: Sequence[Fetch]


def _alone(sharing: Sharing, tasks: Sequence[int], device: int, held: Held) -> _Alone:
    wholes = [sharing.whole(task) for task in tasks]
    fetches = [fetch for task, whole in zip(tasks, wholes, strict=True)
               for fetch in sharing.fetches(task, whole, device, held)]  # fmt: skip
    return _Alone(device, tasks, sharing.compute_s(tasks, wholes, device), fetches)


def _longest_first(alone: Sequence[Sequence[_Alone]]) -> Sequence[int]:
    """By branch its device."""
    way, busy_s = [0] * len(alone), [0.0] * len(alone[0])
    for branch in sorted(range(len(alone)), key=lambda b: -min(a.compute_s for a in alone[b])):
        chosen = min(alone[branch], key=lambda a: busy_s[a.device] + a.compute_s)
        busy_s[chosen.device] += chosen.compute_s
        way[branch] = chosen.device
    return way


def _together(sharing: Sharing, fork: Fork, branches: Sequence[_Alone]) -> Strips:
    """One launch, and one copy of each tensor, for each device."""
    shares, tasks_of = list[Portion](), list[tuple[int, ...]]()
    fetches = list[tuple[Fetch, ...]]()
    for device in sorted({branch.device for branch in branches}):
        own = [branch for branch in branches if branch.device == device]
        tasks = sorted([task for branch in own for task in branch.tasks])
        saved_s = (len(own) - 1) * sharing.problem.launches_s[device]
        compute_s = fsum([branch.compute_s for branch in own]) - saved_s
        shares.append(Portion(device, tuple([sharing.whole(task) for task in tasks]), compute_s))
        tasks_of.append(tuple(tasks))
        fetches.append(tuple({f.name: f for branch in own for f in branch.fetches}.values()))
    return Strips.of(sharing.problem, tuple(fork.tasks), None, tuple(shares), tuple(tasks_of),
                     tuple(fetches))  # fmt: skip
