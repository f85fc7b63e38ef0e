"""Simulated annealing over launches: improves any plan by what the simulator sees."""

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from math import inf

from coexec.problem.fusion import Clock, Launch, Queues, found_in, join, queues_of
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, simulated_s

__all__ = ["annealed"]

_WARMTH = 4e-4
"""Share of the makespan by which a plan may be worse and is taken with probability 1 / e, at first.

For hundreds of thousands of steps. Half of it is no worse for some ten thousand, twice as much ends
with plans of PNASNet-mobile that are half a percent longer.
"""
_SHARES = (0.25, 0.15, 0.05, 0.55)
"""Of joining, splitting, swapping and moving."""
_PART = 0.7
"""How often a part of a launch is moved, instead of all of it."""
_FEW = 4
"""Tasks in such a part at most."""
_ALONE = 0.3
"""How often they become a launch of their own."""


def annealed(
    problem: Problem, start: Solution, steps: int, *, seed: int = 0, bound_s: float = 0.0
) -> Solution:
    """The best of ``steps`` plans, each a small change of the one before it.

    A change joins two launches, splits one, swaps two, or moves tasks to another place on any
    device. Better plans are kept, worse ones with a probability that falls with the loss and with
    time. It ends at ``bound_s``, which nothing can beat. Same input, same plan, and never one that
    is longer than ``start`` in the simulator. O(steps |V|).

    Method: Kirkpatrick, Gelatt, Vecchi, "Optimization by simulated annealing", Science 220, 1983;
    the changes are ours.
    """
    clock, chance = Clock(problem), random.Random(seed)
    best = queues_of(problem, start)
    walk = _Walk(clock, best, chance)
    now_s = best_s = clock.makespan_s(best)
    for step in range(steps):
        if best_s <= bound_s or best_s == inf:
            break
        tried = walk.changed()
        tried_s = inf if tried is None else clock.makespan_s(tried)
        if tried is None or tried_s == inf:
            continue
        warmth_s = _WARMTH * best_s * (1 - step / steps)
        if tried_s <= now_s or chance.random() < math.exp((now_s - tried_s) / warmth_s):
            walk.go(tried)
            now_s = tried_s
            if now_s < best_s:
                best, best_s = tried, now_s
    if best_s == inf:  # some task cannot run where it is
        return start
    return min(start, found_in(problem, best), key=lambda found: simulated_s(problem, found))


class _Walk:
    """Queues, and the changes that can be made to them."""

    def __init__(self, clock: Clock, queues: Queues, chance: random.Random) -> None:
        self._clock, self._chance = clock, chance
        self.go(queues)

    def go(self, queues: Queues) -> None:
        """Be there from now on."""
        self._queues = queues
        self._end_s = self._clock.ends_s(queues)

    def changed(self) -> Queues | None:
        """The queues with some change; None if there is nothing to change where chance has led."""
        kinds: tuple[Callable[[], Queues | None], ...] = (
            self._joined, self._split, self._swapped, self._moved
        )  # fmt: skip
        return self._chance.choices(kinds, _SHARES)[0]()

    def _joined(self) -> Queues | None:
        device, at = self._any_launch()
        if at + 1 >= len(self._queues[device]):
            return None
        return join(self._queues, device, at)

    def _split(self) -> Queues | None:
        device, at = self._any_launch()
        launch = self._queues[device][at]
        if len(launch) < 2:
            return None
        cut = self._chance.randrange(1, len(launch))
        queues = list(map(list, self._queues))
        queues[device][at : at + 1] = [launch[:cut], launch[cut:]]
        return queues

    def _swapped(self) -> Queues | None:
        device, at = self._any_launch()
        if at + 1 >= len(self._queues[device]):
            return None
        queues = list(map(list, self._queues))
        queue = queues[device]
        queue[at], queue[at + 1] = queue[at + 1], queue[at]
        return queues

    def _moved(self) -> Queues | None:
        """Some tasks of a launch go into another one, or are launched on their own before it.

        That is one which ends after all that they need, and not after what needs them.
        """
        chance = self._chance
        device, at = self._any_launch()
        launch = self._queues[device][at]
        begin, end = 0, len(launch)
        if chance.random() < _PART:
            begin = chance.randrange(len(launch))
            end = chance.randrange(begin, min(len(launch), begin + _FEW)) + 1
        tasks, rest = launch[begin:end], launch[:begin] + launch[end:]
        target = chance.randrange(len(self._queues))
        alone = chance.random() < _ALONE
        first, last = self._window(tasks, target)
        if first >= last + alone:
            return None
        to = chance.randrange(first, last + alone)
        if (target, to) == (device, at):
            return None
        queues = list(map(list, self._queues))
        queues[device][at] = rest
        if alone:
            queues[target].insert(to, tasks)
        else:
            queues[target][to] = tuple(sorted(queues[target][to] + tasks))
        if not rest:
            queues[device].remove(rest)
        return queues

    def _window(self, tasks: Launch, device: int) -> tuple[int, int]:
        """The launches that end after all that ``tasks`` need, and not after what needs them."""
        problem, end_s = self._clock.problem, self._end_s
        queue, inside = self._queues[device], set(tasks)
        needed = (end_s[p] for t in tasks for p in problem.predecessors[t] if p not in inside)
        wanted = (end_s[s] for t in tasks for s in problem.successors[t] if s not in inside)

        def ended_s(launch: Launch) -> float:
            return end_s[launch[0]]

        return (
            bisect_left(queue, max(needed, default=0.0), key=ended_s),
            bisect_right(queue, min(wanted, default=inf), key=ended_s),
        )

    def _any_launch(self) -> tuple[int, int]:
        """Device and place."""
        used = [device for device, queue in enumerate(self._queues) if queue]
        device = self._chance.choice(used)
        return device, self._chance.randrange(len(self._queues[device]))
