"""Parallel branches of a graph, and the device that should compute each branch."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import fsum, inf
from typing import NamedTuple

from coexec.planners.methods.splitting.placed import Sharing
from coexec.planners.methods.splitting.strips import Fetch, Incoming, Portion, Strips
from coexec.planners.methods.splitting.walk import Reached
from coexec.problem.problem import Problem

_EXHAUSTIVE = 64
"""Up to this many distributions of branches over devices, all are tried."""


@dataclass(frozen=True, slots=True)
class Branching:
    """Consecutive task numbers, grouped into branches that do not read each other's results."""

    tasks: range
    branches: tuple[tuple[int, ...], ...]
    """At least two branches; the tasks of each in topological order."""


def forks(problem: Problem) -> Mapping[int, Sequence[Branching]]:
    """Forks by the number of their first task; the longest fork first."""
    forks_at: dict[int, list[Branching]] = {}
    for join in (*problem.tasks, len(problem.tasks)):
        for fork in _joined(problem, join):
            forks_at.setdefault(fork.tasks.start, []).append(fork)
    return {
        first: sorted(starting, key=lambda f: -len(f.tasks)) for first, starting in forks_at.items()
    }


def _joined(problem: Problem, join: int) -> Iterable[Branching]:
    """Forks that end directly before the task ``join``; ``len(tasks)`` is the end of the model.

    The search walks backwards from ``join`` while the tasks are consecutive and contribute to its
    inputs. A task that connects several branches closes a fork: the branches after that task.
    """
    left = _sources(problem, join)
    branch_of: dict[int, int] = {}
    count = 0
    for task in range(join - 1, -1, -1):
        connected = {branch_of[r] for r in problem.successors[task] if r in branch_of}
        if task not in left and not connected:
            break
        if len(connected) > 1:
            yield Branching(range(task + 1, join), _grouped(branch_of))
            branch_of = {t: task if b in connected else b for t, b in branch_of.items()}
        branch_of[task] = task if len(connected) != 1 else min(connected)
        count += 1 - len(connected)
        left.discard(task)
        if count == 1 and not left:
            return
    if count > 1:
        yield Branching(range(join - len(branch_of), join), _grouped(branch_of))


def _sources(problem: Problem, join: int) -> set[int]:
    """The predecessors of task ``join``; for the end of the model, the tasks that make its
    outputs."""
    if join < len(problem.tasks):
        return set(problem.predecessors[join])
    outputs = problem.graph.outputs
    return {t for t in problem.tasks if not set(problem.graph.tasks[t].outputs).isdisjoint(outputs)}


def _grouped(branch_of: Mapping[int, int]) -> tuple[tuple[int, ...], ...]:
    branches: dict[int, list[int]] = {}
    for task in sorted(branch_of):
        branches.setdefault(branch_of[task], []).append(task)
    return tuple(map(tuple, branches.values()))


def distributed(sharing: Sharing, fork: Branching, state: Reached) -> Strips | None:
    """The branches of a fork, distributed so that the last one ends as early as possible; None if
    no distribution that is tried can run.

    If there are few distributions, all are tried that use at most one device of each processor.
    Otherwise each branch, the longest first, goes to the device on which it ends first.
    """

    def apart(chosen: Sequence[int]) -> bool:
        used = set(chosen)
        return len({sharing.problem.processors[device] for device in used}) == len(used)

    devices = sharing.problem.devices
    alone = [[_alone(sharing, b, device, state) for device in devices] for b in fork.branches]
    if len(devices) ** len(alone) <= _EXHAUSTIVE:
        every = product(devices, repeat=len(alone))
        placements: Iterable[Sequence[int]] = (each for each in every if apart(each))
    else:
        placements = [_longest_first(alone, sharing.problem.processors)]
    candidates = (
        _together(sharing, fork, [row[d] for row, d in zip(alone, chosen, strict=True)], state)
        for chosen in placements
    )
    best = min(candidates, key=lambda strips: strips.seconds)
    return best if best.seconds < inf else None


class _Alone(NamedTuple):
    """A branch on one device."""

    device: int
    tasks: Sequence[int]
    compute_s: float
    fetches: Sequence[Fetch]


def _alone(sharing: Sharing, tasks: Sequence[int], device: int, state: Reached) -> _Alone:
    wholes = [sharing.whole(task) for task in tasks]
    fetches = [
        fetch
        for task, whole in zip(tasks, wholes, strict=True)
        for fetch in sharing.incoming(task, whole, device, state).fetches
    ]
    return _Alone(device, tasks, sharing.compute_s(tasks, wholes, device), fetches)


def _longest_first(alone: Sequence[Sequence[_Alone]], processors: Sequence[int]) -> Sequence[int]:
    """The device of each branch, by a greedy rule: the longest branch is placed first."""
    device_of, busy_s = [0] * len(alone), [0.0] * len(alone[0])
    for branch in sorted(range(len(alone)), key=lambda b: -min(a.compute_s for a in alone[b])):
        chosen = min(alone[branch], key=lambda a: busy_s[processors[a.device]] + a.compute_s)
        busy_s[processors[chosen.device]] += chosen.compute_s
        device_of[branch] = chosen.device
    return device_of


def _together(
    sharing: Sharing, fork: Branching, branches: Sequence[_Alone], state: Reached
) -> Strips:
    """Strips in which each device launches its branches once and fetches each tensor once."""
    shares, tasks_of, incoming = list[Portion](), list[tuple[int, ...]](), list[Incoming]()
    for device in sorted({branch.device for branch in branches}):
        own = [branch for branch in branches if branch.device == device]
        tasks = sorted([task for branch in own for task in branch.tasks])
        saved_s = (len(own) - 1) * sharing.problem.launches_s[device]
        compute_s = fsum([branch.compute_s for branch in own]) - saved_s
        shares.append(Portion(device, tuple([sharing.whole(task) for task in tasks]), compute_s))
        tasks_of.append(tuple(tasks))
        fetches = {fetch.name: fetch for branch in own for fetch in branch.fetches}
        incoming.append(Incoming.of(tuple(fetches.values()), state.made_s))
    return Strips.of(
        sharing.problem, tuple(fork.tasks), None, tuple(shares), tuple(tasks_of), tuple(incoming)
    )
