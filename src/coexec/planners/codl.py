"""CoDL: heavy tasks are divided between devices; chains of them exchange data at their ends."""

from collections.abc import Iterable, Sequence
from math import inf

from coexec.errors import UsageError
from coexec.planners.methods.listing import listed
from coexec.planners.methods.splitting.branches import distributed, forks
from coexec.planners.methods.splitting.climb import tried_cuts
from coexec.planners.methods.splitting.placed import Sharing
from coexec.planners.methods.splitting.shares import (
    CHANNEL_BLOCK,
    FINE_STEPS,
    STEPS,
    Cut,
    Dimension,
)
from coexec.planners.methods.splitting.strips import Strips, pieces_of
from coexec.planners.methods.splitting.walk import Reached, quickest
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, best_of
from coexec.problem.timeline import Timeline

_DIMENSIONS: dict[str, tuple[Dimension, ...]] = {"hybrid": ("H", "OC"), "H": ("H",), "OC": ("OC",)}
_KEPT = 300
"""States kept at each task, times number of tasks: planning takes a similar time for any model."""
_MOST_KEPT = 16
_FEW_DEVICES = 4
_STEPS_EACH = 4
"""Steps for each of more than four devices: with tenths, equal shares of eight devices cannot be
formed."""


def solve(
    problem: Problem,
    *,
    dimension: str = "hybrid",
    chains: bool = True,
    steps: int = 0,
    delta: float = 0.2,
    longest: int = 30,
    channel_block: int = CHANNEL_BLOCK,
    width: int = 0,
) -> Solution:
    """Divide each task by rows or output channels, whichever is faster, and chain tasks that are
    divided by rows.

    Promises to be no slower than one device alone, in the simulator. Works for any number of
    devices: from four on, hill climbing replaces the comparison of all divisions
    (`coexec.planners.methods.splitting.climb`). The paper decides the division of each task
    separately, and its Algorithm 1 then makes chains. Here one search decides both, in the
    simulator's model of time, and with the data of each task on the devices where earlier steps
    left it (`coexec.planners.methods.splitting.walk`). A chain is one step of several tasks. As in
    Algorithm 1, a task joins a chain as long as an exchange of data before the task would cost
    more than the rows that are computed twice. Parallel branches may each go to one device, as in
    uLayer. List scheduling of whole tasks is tried, too.

    Paper: Jia et al., "CoDL: Efficient CPU-GPU Co-execution for Deep Learning Inference on Mobile
    Devices", MobiSys 2022.

    Args:
        dimension: "H" (rows), "OC" (output channels), or "hybrid": the faster one for each task.
        chains: whether tasks are chained.
        steps: a task is divided into this number of steps, and a device's share is a multiple of
            one step; 0: 16 for two devices and up to 300 tasks, four for each device for more
            than four devices, else 10.
        delta: maximum difference between a device's share and the share with which all devices
            would end a task at the same time if costs were in proportion to shares.
        longest: maximum number of tasks in a chain.
        channel_block: channels are divided at multiples of this number only.
        width: number of states that are kept at each task; 0: from 1 to 16, the more the fewer
            tasks there are.

    Raises:
        UsageError: an option is out of its range.
    """
    if dimension not in _DIMENSIONS:
        raise UsageError(f"dimension is {dimension!r}; it wants one of {', '.join(_DIMENSIONS)}")
    if min(longest, channel_block) < 1 or min(steps, delta, width) < 0:
        raise UsageError(
            f"longest and channel_block are at least 1, steps, delta and width at "
            f"least 0, not {longest}, {channel_block}, {steps}, {delta:g} and "
            f"{width}"
        )
    steps = steps or _default_steps(problem)
    width = width or min(_MOST_KEPT, max(1, _KEPT // max(1, len(problem.tasks))))
    search = _Search(
        problem,
        Sharing(problem, steps, channel_block, delta),
        longest if chains else 1,
        _DIMENSIONS[dimension],
    )
    steps_found = quickest(problem, search.moves, width)
    divided = Solution.of_pieces(pieces_of(problem, steps_found))
    timeline, sequence = listed(problem, problem.tasks, Timeline(problem), problem.upward_rank_s)
    best = best_of(problem, (divided, Solution(timeline.place, sequence)))
    return best._replace(options={"steps": steps, "width": width})


def _default_steps(problem: Problem) -> int:
    devices = len(problem.devices)
    if devices > _FEW_DEVICES:
        return _STEPS_EACH * devices
    return STEPS if devices > 2 or len(problem.tasks) > _KEPT else FINE_STEPS


class _Search:
    def __init__(
        self, problem: Problem, sharing: Sharing, longest: int, dimensions: Sequence[Dimension]
    ) -> None:
        self._problem, self._sharing = problem, sharing
        self._longest, self._dimensions = longest, dimensions
        self._forks = forks(problem)
        self._chainable: dict[int, bool] = {}
        self._apart_s: dict[tuple[int, Cut], float | None] = {}

    def moves(self, number: int, state: Reached) -> Iterable[Strips]:
        """Possible steps: the next task on one device or divided, and chains and branches that
        begin with it."""
        sharing = self._sharing
        alone = [sharing.strips((number,), cut, state) for cut in sharing.alone]
        branches = [distributed(sharing, fork, state) for fork in self._forks.get(number, ())]
        undivided = [strips for strips in alone if strips is not None]
        yield from undivided
        yield from (strips for strips in branches if strips is not None)
        end_s = min((max(state.free_after(strips)) for strips in undivided), default=inf)
        for dimension in self._dimensions:
            for cut in tried_cuts(sharing, number, dimension, state):
                shares = sharing.shares((number,), cut)
                if shares is None or max([state.free_s[d] + s for d, _, s in shares]) > end_s:
                    continue  # the step would end too late even without its fetches
                strips = sharing.strips((number,), cut, state)
                if strips is not None:
                    yield strips
                    if dimension == "H" and max(state.free_after(strips)) <= end_s:
                        yield from self._chained(strips, cut, state)

    def _chained(self, chain: Strips, cut: Cut, state: Reached) -> Iterable[Strips]:
        """Longer and longer chains, as long as each additional task saves time."""
        sharing, seconds = self._sharing, chain.seconds
        while len(chain.tasks) < self._longest and self._continues(chain.tasks[-1]):
            following = chain.tasks[-1] + 1
            cut = cut._replace(axis=sharing.axis(following, "H"))
            if (following, cut) not in self._apart_s:
                self._apart_s[following, cut] = self._seconds_apart(following, cut, chain)
            apart_s = self._apart_s[following, cut]
            longer = sharing.strips((*chain.tasks, following), cut, state)
            if longer is None or apart_s is None:
                return
            longer_s = longer.seconds
            if seconds + apart_s < longer_s:
                return
            yield longer
            chain, seconds = longer, longer_s

    def _seconds_apart(self, following: int, cut: Cut, chain: Strips) -> float | None:
        """Seconds of the task after a chain as a step of its own; None if it cannot be divided.

        They are the same after all chains that end with the same cut: only the result of the
        chain's last task is read.
        """
        end = self._problem.graph.tasks[following].inputs[0]
        there = tuple([(device, regions[-1]) for device, regions, _ in chain.shares])
        made_s = {(end, device): 0.0 for device, _ in there}
        state = Reached((0.0,) * len(self._problem.devices), {end: there}, made_s)
        apart = self._sharing.strips((following,), cut, state)
        return None if apart is None else apart.seconds

    def _continues(self, last: int) -> bool:
        """Whether the task after ``last`` may join its chain.

        It must be the only reader of the chain's result, have no other input, and be divisible by
        rows.
        """
        if last not in self._chainable:
            self._chainable[last] = self._joins(last)
        return self._chainable[last]

    def _joins(self, last: int) -> bool:
        graph, following = self._problem.graph, last + 1
        if following == len(graph.tasks):
            return False
        end, task = graph.tasks[last], graph.tasks[following]
        inside = end.outputs[1:] == () and end.outputs[0] not in graph.outputs
        inside = inside and graph.readers[end.outputs[0]] == (task,)
        divisible = self._sharing.axis(following, "H") is not None
        return inside and task.inputs == end.outputs and divisible
