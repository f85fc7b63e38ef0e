"""HEFT: the standard list scheduler for heterogeneous processors."""

from typing import NamedTuple

from coexec.problem.problem import Problem
from coexec.problem.solution import Solution


def solve(problem: Problem) -> Solution:
    """Heterogeneous Earliest Finish Time: urgent tasks first, each where it ends first.

    Tasks are taken by falling upward rank, with costs averaged over devices and links. Each task
    goes to the device on which it ends first, if possible into a gap between earlier tasks.
    Promises no quality. O(|V|^2 |D|).

    As in the paper, data that moves between devices arrives after `Problem.comm_s` and keeps no
    device busy. The plan's ``predicted_s`` includes the devices' busy time during transfers.

    Paper: Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for
    heterogeneous computing", IEEE TPDS 13(3), 2002.
    """
    slots = schedule(problem)
    assignment = [slot.device for slot in slots]
    # A task of length zero may start at the same time as its successor; the index puts it first.
    sequence = sorted(problem.tasks, key=lambda i: (slots[i].start_s, slots[i].end_s, i))
    return Solution(assignment, sequence)


class Slot(NamedTuple):
    """The time and the device at which a task runs."""

    start_s: float
    end_s: float
    device: int


def schedule(problem: Problem) -> list[Slot]:
    """The slot of each task in the paper's model of time."""
    ranks_s = problem.upward_rank_s
    slots: dict[int, Slot] = {}
    busy_of: dict[int, list[Slot]] = {processor: [] for processor in problem.processors}
    busy = [busy_of[processor] for processor in problem.processors]  # by device
    for task in sorted(problem.tasks, key=lambda i: (-ranks_s[i], i)):
        options = [
            _earliest(problem, task, device, slots, busy[device]) for device in problem.devices
        ]
        slots[task] = best = min(options, key=lambda slot: slot.end_s)
        busy[best.device].append(best)
        busy[best.device].sort()
    return [slots[task] for task in problem.tasks]


def _earliest(
    problem: Problem, task: int, device: int, slots: dict[int, Slot], busy: list[Slot]
) -> Slot:
    """The slot of ``task`` in the first gap on ``device`` that is long enough, after all its inputs
    have arrived."""
    ready_s = max(
        (
            slots[before].end_s + problem.comm_s(before, task, slots[before].device, device)
            for before in problem.predecessors[task]
        ),
        default=0.0,
    )
    length_s = problem.latency_s[task][device]
    start_s = ready_s
    for slot in busy:
        if start_s + length_s <= slot.start_s:
            break
        start_s = max(start_s, slot.end_s)
    return Slot(start_s, start_s + length_s, device)
