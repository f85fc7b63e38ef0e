"""uLayer: each task is divided by output channels, or each parallel branch goes to one device."""

from collections.abc import Iterable
from itertools import chain
from math import inf

from coexec.errors import UsageError
from coexec.planners.methods.splitting.branches import distributed, forks
from coexec.planners.methods.splitting.climb import tried_cuts
from coexec.planners.methods.splitting.placed import Sharing
from coexec.planners.methods.splitting.shares import CHANNEL_BLOCK, STEPS
from coexec.planners.methods.splitting.strips import Strips, pieces_of
from coexec.planners.methods.splitting.walk import Reached, quickest
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, best_of


def solve(problem: Problem, *, steps: int = STEPS, channel_block: int = CHANNEL_BLOCK) -> Solution:
    """Divide each task by output channels, with the ratio with which it ends first.

    Devices wait for each other after each task. Parallel branches are distributed instead, each to
    one device, if that is predicted to be faster than dividing their tasks. Promises to be no
    slower than one device alone, in the simulator. Works for any number of devices.

    Paper: Kim et al., "uLayer: Low Latency On-Device Inference Using Cooperative Single-Layer
    Acceleration and Processor-Friendly Quantization", EuroSys 2019, without its quantization, in
    the form in which CoDL (Jia et al., MobiSys 2022) is compared with it.

    Args:
        steps: a task is divided into this number of steps; a device's share is a multiple of one
            step.
        channel_block: the channels of a device are rounded up to a multiple of this number. uLayer
            has 4 on its phones. If a part is not a whole number of an engine's blocks, the engine
            has to convert its layout.

    Raises:
        UsageError: an option is out of its range.
    """
    if min(steps, channel_block) < 1:
        raise UsageError(f"steps and channel_block are at least 1, not {steps} and {channel_block}")
    sharing, forks_at = Sharing(problem, steps, channel_block), forks(problem)

    def moves(number: int, state: Reached) -> Iterable[Strips]:
        for fork in forks_at.get(number, ()):
            if (branches := distributed(sharing, fork, state)) is not None:
                yield branches
        best_s = inf
        for cut in chain(sharing.alone, tried_cuts(sharing, number, "OC", state)):
            shares = sharing.shares((number,), cut)
            if shares is None or state.least_end_s(shares, problem.launches_s) > best_s:
                continue  # the step would end too late even without its fetches
            strips = sharing.strips((number,), cut, state)
            if strips is not None:
                yield strips
                best_s = min(best_s, max(state.free_after(strips)))

    steps_found = quickest(problem, moves, 1, barriers=True)
    return best_of(problem, [Solution.of_pieces(pieces_of(problem, steps_found))])
