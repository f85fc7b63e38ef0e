"""Lower bounds of the makespan, from the work alone. Rows are tasks in topological order.

`net_s` is, by task and device, the least number of seconds that the task takes there inside a
segment; infinite where it cannot run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Matrix = tuple[tuple[float, ...], ...]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_MOST_CHAINED = 2000
"""Maximum number of tasks for `chained`, which computes the work between all pairs of tasks by
matrix products."""


class Chain(NamedTuple):
    """The longest chains of tasks, in which each task waits for all work since the previous task of
    the chain."""

    heads_s: tuple[float, ...]
    """Earliest possible start, by task."""
    tails_s: tuple[float, ...]
    """Least time that must follow the end, by task."""
    total_s: float


@dataclass(frozen=True)
class Bounds:
    """Lower bounds of a problem, each computed on first use."""

    latency_s: Matrix
    """Seconds of a task by itself, by task and device; infinite where it cannot run."""
    net_s: Matrix
    launches_s: tuple[float, ...]
    """Seconds to start a segment, by device."""
    predecessors: Sequence[Sequence[int]]
    """Predecessors, by task."""
    precedes: Flags
    """Whether there is a path from one task (row) to another (column)."""
    comm_s: Callable[[int, int, int, int], float]
    """By task, successor and their devices: least seconds from the end of the task until its data
    is at the successor."""
    crossing_s: float
    """Least seconds for a result to reach another device."""

    @cached_property
    def least_s(self) -> float:
        """Lower bound for all plans of unsplit tasks: the largest of the three bounds below."""
        return max(self.critical_path_s, self.divisible_load_s, self.chained_load_s)

    @cached_property
    def critical_path_s(self) -> float:
        """The longest path, when each task on it runs on the device that suits the path best.

        Data that crosses devices pays for it. The launch overhead is charged once, as if the path
        were a single segment, and no more of it than the path's first task takes.
        """
        devices = range(len(self.launches_s))
        ends_s: list[list[float]] = []
        for task, before in enumerate(self.predecessors):
            ends_s.append(
                [
                    self.net_s[task][b]
                    + max(
                        [
                            min(self.launches_s[b], self.latency_s[task][b]),
                            *(
                                min(ends_s[p][a] + self.comm_s(p, task, a, b) for a in devices)
                                for p in before
                            ),
                        ]
                    )
                    for b in devices
                ]
            )
        return max((min(row) for row in ends_s), default=0.0)

    @property
    def divisible_load_s(self) -> float:
        """All work divided among all devices, as if tasks could be cut at will."""
        return self._shared_out[0]

    @property
    def chained_load_s(self) -> float:
        """The longest chain of tasks, in which each task waits for all work since the previous task
        of the chain."""
        return self.chain.total_s

    @cached_property
    def chain(self) -> Chain:
        """Earliest start of each task, and least time after its end, from the work alone."""
        uniform = np.full(len(self.launches_s), 1 / len(self.launches_s))
        weightings = [self._shared_out[1], uniform]
        return chained(self._net, self.precedes, weightings, self.crossing_s)

    @cached_property
    def _shared_out(self) -> tuple[float, Floats]:
        return shared_out(self._net)

    @cached_property
    def _net(self) -> Floats:
        return np.array(self.net_s, dtype=float).reshape(-1, len(self.launches_s))


def precedence(predecessors: Sequence[Sequence[int]]) -> Flags:
    """Whether there is a path from one task (row) to another (column)."""
    precedes = np.zeros((len(predecessors), len(predecessors)), dtype=bool)
    for task, before in enumerate(predecessors):
        for predecessor in before:
            precedes[:, task] |= precedes[:, predecessor]
            precedes[predecessor, task] = True
    return precedes


def shared_out(net_s: Floats) -> tuple[float, Floats]:
    """Seconds of all work divided among all devices, as if tasks could be cut at will; and the
    weights of the devices that give this bound.

    The bound is a linear program: the least tau such that no device has more than tau seconds of
    work. For any weights w of the devices with sum 1, tau = sum of w[j] tau >= sum over tasks of
    min over j of w[j] net[j]; so each step of this search for good weights gives a valid bound. It
    ends within a percent of the optimum.
    """
    count, devices = net_s.shape
    weights = best_weights = np.full(devices, 1 / devices)
    best_s, step = 0.0, 1.0
    for _ in range(200 if count else 0):
        choice = (net_s * weights).argmin(axis=1)
        chosen_s = net_s[np.arange(count), choice]
        value_s = float((chosen_s * weights[choice]).sum())
        # More weight makes a device less attractive: give it to devices with much work.
        loads_s = np.bincount(choice, chosen_s, devices)
        if value_s > best_s:
            best_s, best_weights = value_s, weights
        else:
            step *= 0.94
        weights = weights * np.exp(step * loads_s / max(loads_s.max(), np.finfo(float).tiny))
        weights = weights / weights.sum()
    return best_s, best_weights


def chained(net_s: Floats, before: Flags, weightings: Sequence[Floats], crossing_s: float) -> Chain:
    """The longest chains, in which a task waits for the divided work of all tasks on paths to it.

    Args:
        weightings: weights of the devices; each entry gives a bound of divided work.
        crossing_s: the least seconds for a result to reach another device.
    """
    count = len(net_s)
    if count > _MOST_CHAINED:
        return Chain((0.0,) * count, (0.0,) * count, 0.0)
    path = np.zeros((count + 2, count + 2))
    path[1:-1, 1:-1] = before
    path[0, 1:] = path[:-1, -1] = 1.0
    padded_s = np.pad(net_s, ((1, 1), (0, 0)))
    many = [_on_several_s(path, padded_s, weights, crossing_s) for weights in weightings]
    between_s = np.minimum(np.maximum.reduce(many), _on_one_s(path, padded_s))
    least_s = padded_s.min(axis=1)
    heads_s = _longest_s(path, least_s, between_s)
    tails_s = _longest_s(path.T[::-1, ::-1], least_s[::-1], between_s.T[::-1, ::-1])[::-1]
    return Chain(tuple(heads_s[1:-1].tolist()), tuple(tails_s[1:-1].tolist()), float(heads_s[-1]))


def _on_several_s(path: Floats, net_s: Floats, weights: Floats, crossing_s: float) -> Floats:
    """By pair of tasks, the least time between them if several devices run the tasks on paths
    between them.

    A device other than the first task's gets its results ``crossing_s`` after the end of that task;
    a device other than the last task's must end ``crossing_s`` before that task starts. Nothing
    crosses at the begin and the end of the graph, which are the first row and the last column.
    """
    crossings = np.full_like(path, 2.0)
    crossings[0, :] -= 1.0
    crossings[:, -1] -= 1.0
    least_s: Floats = (net_s * weights).min(axis=1)
    summed: Floats = _between(path, least_s) + crossings * weights.min() * crossing_s
    return summed


def _on_one_s(path: Floats, net_s: Floats) -> Floats:
    """By pair of tasks, the least time between them if one device runs all tasks on paths between
    them."""
    finite_s = np.minimum(net_s, 1e12)  # infinity times 0 (no path) would be NaN
    least_s: Floats = np.minimum.reduce([_between(path, column_s) for column_s in finite_s.T])
    return least_s


def _between(path: Floats, work_s: Floats) -> Floats:
    """By pair of tasks, the work of all tasks on paths between them."""
    summed: Floats = (path * work_s) @ path
    return summed


def _longest_s(path: Floats, least_s: Floats, between_s: Floats) -> Floats:
    """Length of the longest chain up to the start of each task."""
    starts_s = np.zeros(len(path))
    for task in range(1, len(path)):
        ready_s = starts_s[:task] + least_s[:task] + between_s[:task, task]
        starts_s[task] = ready_s[path[:task, task] > 0].max()
    return starts_s
