"""Cuts of a task between devices that are worth a try: all of them, or those of a climb.

The number of cuts grows exponentially with the number of devices: with tenths there are 66 for
three devices, 286 for four, 19 448 for eight, and 3 268 760 for sixteen. With four devices, climbs
take a third of the planning time of all cuts, and plans of four networks are simulated at 0.90 to
1.005 of their time (docs/measurements.md, "The search of codl").
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from coexec.planners.methods.splitting.placed import Sharing
from coexec.planners.methods.splitting.shares import Cut, Dimension
from coexec.planners.methods.splitting.walk import Reached, score_s
from coexec.problem.problem import Problem

_LISTED = 100
"""Up to this number of cuts, all are tried."""


def tried_cuts(
    sharing: Sharing, number: int, dimension: Dimension, state: Reached
) -> Iterable[Cut]:
    """Cuts of a task along a dimension with shares near the proportional ones; none where it cannot
    be divided.

    All cuts if there are few. Otherwise hill climbing from a few cuts: the device that ends last
    gives a step to the device that ends first, as long as the score of the state after the task
    falls. Each score is less than the score before it, so a climb ends.
    """
    devices = len(sharing.problem.devices)
    if math.comb(sharing.steps + devices - 1, devices - 1) <= _LISTED:
        return sharing.cuts(number, dimension)
    return _climbed(sharing, number, dimension, state)


def _climbed(sharing: Sharing, number: int, dimension: Dimension, state: Reached) -> Iterator[Cut]:
    tried = set[Cut]()
    for cut in _starts(sharing, number, dimension, state):
        best_s = math.inf
        while cut not in tried and sharing.near(number, cut):
            tried.add(cut)
            strips = sharing.strips((number,), cut, state)
            if strips is None:
                break
            free_s = state.free_after(strips)
            if score_s(free_s) >= best_s:
                break
            best_s = score_s(free_s)
            yield cut
            cut = _moved(cut, free_s, sharing.problem, number)


def _starts(sharing: Sharing, number: int, dimension: Dimension, state: Reached) -> Iterator[Cut]:
    """The cut of the step before, for which the data are in place, and cuts in proportion to the
    speeds of all devices, of the faster half of them, of the faster quarter, and so on."""
    axis, block = sharing.axis(number, dimension), sharing.block(dimension)
    if axis is None:
        return
    if state.step is not None and state.step.cut is not None:
        last, cut = state.step.tasks[-1], state.step.cut
        if cut.axis is not None and cut.axis == sharing.axis(last, dimension):
            yield Cut(axis, cut.steps, block)
    # With more steps than blocks, a step would not always change the parts.
    steps = min(sharing.steps, -(-sharing.whole(number).stop[axis] // block))
    shares = sharing.proportional(number)
    fastest = sorted(sharing.problem.devices, key=lambda device: -shares[device])
    while len(fastest) > 1:
        used = [share if d in fastest else 0.0 for d, share in enumerate(shares)]
        yield Cut(axis, _rounded(used, steps), block)
        fastest = fastest[: len(fastest) // 2]


def _rounded(shares: Sequence[float], steps: int) -> tuple[int, ...]:
    """``steps`` steps in proportion to ``shares``: the sum of the first devices is rounded."""
    taken = [0]
    for device in range(len(shares)):
        taken.append(round(steps * math.fsum(shares[: device + 1]) / math.fsum(shares)))
    return tuple([stop - start for start, stop in pairwise(taken)])


def _moved(cut: Cut, free_s: Sequence[float], problem: Problem, number: int) -> Cut:
    """``cut`` with one step moved from the device that ends last to the one that ends first, of
    those that can run the task and whose processor no other device of the cut uses."""
    devices, steps = problem.devices, list(cut.steps)
    last = max([d for d in devices if steps[d]], key=lambda device: free_s[device])
    steps[last] -= 1
    user = {problem.processors[d]: d for d in devices if steps[d]}
    able = [d for d in devices if problem.latency_s[number][d] < math.inf]
    free = [d for d in able if user.get(problem.processors[d], d) == d]
    steps[min(free, key=lambda device: free_s[device])] += 1
    return cut._replace(steps=tuple(steps))
