"""Simulated annealing over launches: improves any plan by the simulator's measure."""

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Callable
from math import inf

from coexec.problem.fusion import (
    Evaluation,
    Evaluator,
    Launch,
    Queues,
    fuse,
    queues_of,
    solution_of,
)
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, simulated_s

_TEMPERATURE = 4e-4
"""Initial temperature, as a share of the makespan: at the start, a plan that is longer by this
share is accepted with probability 1 / e.

The value fits hundreds of thousands of steps. For some ten thousand steps, half of it is no worse.
With twice as much, plans of PNASNet-mobile become half a percent longer.
"""
_SHARES = (0.25, 0.15, 0.05, 0.55)
"""Probabilities of fusing, splitting, swapping and moving."""
_PART = 0.7
"""Probability that a part of a launch is moved instead of the whole launch."""
_FEW = 4
"""Maximum number of tasks in such a part."""
_ALONE = 0.3
"""Probability that the moved tasks become a launch of their own."""


def annealed(
    problem: Problem, start: Solution, steps: int, *, seed: int = 0, bound_s: float = 0.0
) -> Solution:
    """The best of ``steps`` plans, each a small change of the current one.

    A change fuses two launches, splits one, swaps two, or moves tasks to another position on any
    device. A better plan is always accepted; a worse one with a probability that falls with the
    loss and with time. The search stops when a plan reaches ``bound_s``, the lower bound of all
    plans. Equal inputs give equal plans. The result is never longer than ``start`` in the
    simulator. O(steps |V|).

    Method: Kirkpatrick, Gelatt, Vecchi, "Optimization by simulated annealing", Science 220, 1983;
    the kinds of changes are coexec's.
    """
    evaluator, chance = Evaluator(problem), random.Random(seed)
    best = queues_of(problem, start)
    now = evaluator.run(best)
    walk = _Walk(problem, best, now, chance)
    now_s = best_s = now.total_s
    for step in range(steps):
        if best_s <= bound_s or best_s == inf:
            break
        tried = walk.changed()
        if tried is None:
            continue
        run = evaluator.run(tried)
        if run.total_s == inf:
            continue
        temperature_s = _TEMPERATURE * best_s * (1 - step / steps)
        loss_s = run.total_s - now_s
        if loss_s <= 0 or chance.random() < math.exp(-loss_s / temperature_s):
            walk.go(tried, run)
            now_s = run.total_s
            if now_s < best_s:
                best, best_s = tried, now_s
    if best_s == inf:  # some task cannot run on its device
        return start
    return min(
        start, solution_of(problem, best), key=lambda solution: simulated_s(problem, solution)
    )


class _Walk:
    """The current queues of launches, with random changes of them."""

    def __init__(
        self, problem: Problem, queues: Queues, run: Evaluation, chance: random.Random
    ) -> None:
        self._problem, self._chance = problem, chance
        self.go(queues, run)

    def go(self, queues: Queues, run: Evaluation) -> None:
        """Make ``queues`` the current ones."""
        self._queues, self._end_s = queues, run.end_s

    def changed(self) -> Queues | None:
        """The queues after one random change; None if the change is not possible at the place that
        was chosen."""
        kinds: tuple[Callable[[], Queues | None], ...] = (
            self._fused,
            self._split,
            self._swapped,
            self._moved,
        )
        return self._chance.choices(kinds, _SHARES)[0]()

    def _fused(self) -> Queues | None:
        device, at = self._any_launch()
        if at + 1 >= len(self._queues[device]):
            return None
        return fuse(self._queues, device, at)

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
        """Move some tasks of a launch into another launch, or into a new launch before that one.

        The other launch ends no earlier than the predecessors of these tasks and no later than
        their successors.
        """
        chance = self._chance
        device, at = self._any_launch()
        launch = self._queues[device][at]
        begin, end = 0, len(launch)
        if chance.random() < _PART:
            begin = chance.randrange(len(launch))
            end = chance.randrange(begin, min(len(launch), begin + _FEW)) + 1
        tasks, remaining = launch[begin:end], launch[:begin] + launch[end:]
        target = chance.randrange(len(self._queues))
        alone = chance.random() < _ALONE
        first, last = self._window(tasks, target)
        if first >= last + alone:
            return None
        to = chance.randrange(first, last + alone)
        if (target, to) == (device, at):
            return None
        queues = list(map(list, self._queues))
        queues[device][at] = remaining
        if alone:
            queues[target].insert(to, tasks)
        else:
            queues[target][to] = tuple(sorted(queues[target][to] + tasks))
        if not remaining:
            queues[device].remove(remaining)
        return queues

    def _window(self, tasks: Launch, device: int) -> tuple[int, int]:
        """The launches of a device that end no earlier than the predecessors of ``tasks`` and no
        later than their successors, as first index and index behind the last."""
        problem, end_s = self._problem, self._end_s
        queue, inside = self._queues[device], set(tasks)
        predecessor_ends_s = (
            end_s[p] for t in tasks for p in problem.predecessors[t] if p not in inside
        )
        successor_ends_s = (
            end_s[s] for t in tasks for s in problem.successors[t] if s not in inside
        )

        def ended_s(launch: Launch) -> float:
            return end_s[launch[0]]

        return (
            bisect_left(queue, max(predecessor_ends_s, default=0.0), key=ended_s),
            bisect_right(queue, min(successor_ends_s, default=inf), key=ended_s),
        )

    def _any_launch(self) -> tuple[int, int]:
        """A random device, and the index of a random launch in its queue."""
        used = [device for device, queue in enumerate(self._queues) if queue]
        device = self._chance.choice(used)
        return device, self._chance.randrange(len(self._queues[device]))
