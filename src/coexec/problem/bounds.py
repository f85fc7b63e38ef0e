"""What no plan can beat, from the work alone. Rows are tasks in topological order.

`net_s` is by task and device the least that a task takes there, inside of a segment; infinite
where it cannot run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["Bounds", "Chain", "Flags", "Floats", "Matrix", "chained", "precedence", "shared_out"]

Matrix = tuple[tuple[float, ...], ...]
Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]

_MOST_CHAINED = 2000
"""Tasks; all pairs of them are looked at, with all that lies between, in two matrix products."""


class Chain(NamedTuple):
    """The longest chains of tasks that each wait for all the work since the one before."""

    heads_s: tuple[float, ...]
    """By task, the earliest that it can start."""
    tails_s: tuple[float, ...]
    """By task, the least that follows its end."""
    total_s: float


@dataclass(frozen=True)
class Bounds:
    """Bounds of a problem, each computed when it is asked for."""

    latency_s: Matrix
    """By task, by device: seconds on its own; infinite where it cannot run."""
    net_s: Matrix
    launches_s: tuple[float, ...]
    """By device, what starting a segment takes."""
    predecessors: Sequence[Sequence[int]]
    """By task."""
    precedes: Flags
    """Whether there is a path from one task (row) to another (column)."""
    comm_s: Callable[[int, int, int, int], float]
    """Of task, successor and their devices: the least from the end of one to the data at the
    other."""
    crossing_s: float
    """The least time for a result to get to another device."""

    @cached_property
    def least_s(self) -> float:
        """No plan of unsplit tasks is faster: the longest of three ways to see the work."""
        return max(self.critical_path_s, self.divisible_load_s, self.chained_load_s)

    @cached_property
    def critical_path_s(self) -> float:
        """The longest path when each task on it runs where that suits the path best.

        Data that crosses devices pays for it. A program's launch is charged once, as it would be
        if the path were a single segment, and no more of it than the path's first task takes.
        """
        devices = range(len(self.launches_s))
        ends_s: list[list[float]] = []
        for task, before in enumerate(self.predecessors):
            ends_s.append([
                self.net_s[task][b] + max([
                    min(self.launches_s[b], self.latency_s[task][b]),
                    *(
                        min(ends_s[p][a] + self.comm_s(p, task, a, b) for a in devices)
                        for p in before
                    ),
                ])
                for b in devices
            ])  # fmt: skip
        return max((min(row) for row in ends_s), default=0.0)

    @property
    def divisible_load_s(self) -> float:
        """All work shared out over all devices, as if tasks could be cut at will."""
        return self._shared_out[0]

    @property
    def chained_load_s(self) -> float:
        """The longest chain of tasks that each wait for all the work since the one before."""
        return self.chain.total_s

    @cached_property
    def chain(self) -> Chain:
        """How early each task can start, and how much must follow it, for the work alone."""
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
    found = np.zeros((len(predecessors), len(predecessors)), dtype=bool)
    for task, before in enumerate(predecessors):
        for other in before:
            found[:, task] |= found[:, other]
            found[other, task] = True
    return found


def shared_out(net_s: Floats) -> tuple[float, Floats]:
    """All work shared out over all devices, as if tasks could be cut at will; weights of devices.

    That is the linear program: least tau so that no device has more than tau to do. For any
    weights w of the devices with sum 1, tau = sum of w[j] tau >= sum over tasks of
    min over j of w[j] net[j]; so every step of this search for good weights is valid. It ends
    within a percent of the optimum.
    """
    count, devices = net_s.shape
    weights = best_weights = np.full(devices, 1 / devices)
    best_s, step = 0.0, 1.0
    for _ in range(200 if count else 0):
        choice = (net_s * weights).argmin(axis=1)
        chosen_s = net_s[np.arange(count), choice]
        value_s = float((chosen_s * weights[choice]).sum())
        # More weight makes a device less attractive: give it to those with much to do.
        loads_s = np.bincount(choice, chosen_s, devices)
        if value_s > best_s:
            best_s, best_weights = value_s, weights
        else:
            step *= 0.94
        weights = weights * np.exp(step * loads_s / max(loads_s.max(), np.finfo(float).tiny))
        weights = weights / weights.sum()
    return best_s, best_weights


def chained(net_s: Floats, before: Flags, weightings: Sequence[Floats], crossing_s: float) -> Chain:
    """Chains where a task waits for the shared-out work of all tasks on paths to it.

    Args:
        weightings: weights of the devices, each a way to bound shared-out work.
        crossing_s: the least time for a result to get to another device.
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
    """By two tasks, the least time between them if several devices run the tasks on paths between.

    A device other than that of the first task gets its results ``crossing_s`` after its end; a
    device other than that of the last task has to be done as much earlier. Nothing crosses at the
    begin and the end of all, which the first row and the last column stand for.
    """
    crossings = np.full_like(path, 2.0)
    crossings[0, :] -= 1.0
    crossings[:, -1] -= 1.0
    least_s: Floats = (net_s * weights).min(axis=1)
    summed: Floats = _between(path, least_s) + crossings * weights.min() * crossing_s
    return summed


def _on_one_s(path: Floats, net_s: Floats) -> Floats:
    """By two tasks, the least time between them if one device runs all tasks on paths between."""
    finite_s = np.minimum(net_s, 1e12)  # infinity times no path would be no number
    least_s: Floats = np.minimum.reduce([_between(path, column_s) for column_s in finite_s.T])
    return least_s


def _between(path: Floats, work_s: Floats) -> Floats:
    """By two tasks, the work of all that lie on paths between them."""
    summed: Floats = (path * work_s) @ path
    return summed


def _longest_s(path: Floats, least_s: Floats, between_s: Floats) -> Floats:
    """By task, the longest chain up to its start."""
    starts_s = np.zeros(len(path))
    for task in range(1, len(path)):
        ready_s = starts_s[:task] + least_s[:task] + between_s[:task, task]
        starts_s[task] = ready_s[path[:task, task] > 0].max()
    return starts_s
