"""CoDL: each heavy task is divided between the devices, in chains that share data at their ends."""

from collections.abc import Iterable, Sequence
from math import inf

from coexec.errors import UsageError
from coexec.problem.division import Division, best_of
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution
from coexec.problem.timeline import Timeline
from coexec.solvers.exact.listing import listed
from coexec.solvers.splitting.branches import distributed, forks
from coexec.solvers.splitting.placed import Sharing
from coexec.solvers.splitting.shares import (
    CHANNEL_BLOCK,
    FINE_STEPS,
    STEPS,
    Cut,
    Dimension,
    axis_of,
)
from coexec.solvers.splitting.strips import Strips, pieces_of
from coexec.solvers.splitting.walk import Reached, quickest

__all__ = ["solve"]

_DIMENSIONS: dict[str, tuple[Dimension, ...]] = {"hybrid": ("H", "OC"), "H": ("H",), "OC": ("OC",)}
_KEPT = 300
"""Ways that are kept at a task, times tasks: planning takes about as long for any model."""
_MOST_KEPT = 16
_LEAST_S = 1e-12
"""What a task takes at least, so that rates are finite."""


def solve(
    problem: Problem, *, dimension: str = "hybrid", chains: bool = True, steps: int = 0,
    delta: float = 0.2, longest: int = 30, channel_block: int = CHANNEL_BLOCK, width: int = 0,
) -> Division:  # fmt: skip
    """Divide each task by rows or output channels as is quickest, and chain tasks divided by rows.

    Promises to be no slower than one device alone, in the simulator. From
    "CoDL: Efficient CPU-GPU Co-execution for Deep Learning Inference on Mobile Devices" (Jia et
    al., MobiSys 2022), for any number of devices. There each task is decided by itself, and
    Algorithm 1 then makes chains. Here one search decides both, in the simulator's model of time
    and with each task's data where those before it left them (`solvers.splitting.walk`). A chain is
    one step of several tasks. As in Algorithm 1, a task joins as long as handing over in front of
    it would cost more than the rows that are computed twice. Where branches run side by side, each
    may go to one device, as in uLayer; and list scheduling of whole tasks is tried, too.

    Args:
        dimension: "H" (rows), "OC" (output channels), or "hybrid", whichever is quicker for a task.
        chains: whether tasks are chained.
        steps: a device's share is a multiple of one step of so many; 0: 16 for two devices and up
            to 300 tasks, else 10.
        delta: how far a share may be from that with which all devices would end a task at the same
            time, were costs in proportion to shares.
        longest: tasks in a chain.
        channel_block: channels that are not divided, as they lie together.
        width: ways that are kept at each task; 0: 1 to 16, the more the fewer tasks there are.

    Raises:
        UsageError: an option out of its range.
    """
    if dimension not in _DIMENSIONS:
        raise UsageError(f"dimension is {dimension!r}; it wants one of {', '.join(_DIMENSIONS)}")
    if min(longest, channel_block) < 1 or min(steps, delta, width) < 0:
        raise UsageError(f"longest and channel_block are at least 1, steps, delta and width at "
                         f"least 0, not {longest}, {channel_block}, {steps}, {delta:g} and "
                         f"{width}")  # fmt: skip
    quick = len(problem.devices) > 2 or len(problem.tasks) > _KEPT
    steps = steps or (STEPS if quick else FINE_STEPS)
    width = width or min(_MOST_KEPT, max(1, _KEPT // max(1, len(problem.tasks))))
    search = _Search(problem, Sharing(problem, steps, channel_block), delta,
                     longest if chains else 1, _DIMENSIONS[dimension])  # fmt: skip
    steps_found = quickest(problem, search.moves, width)
    divided = Division.of(problem, pieces_of(problem, steps_found))
    timeline, sequence = listed(problem, problem.tasks, Timeline(problem), problem.upward_rank_s)
    whole = Division.undivided(problem, Solution(timeline.place, sequence))
    found = best_of(problem, (divided, whole))
    return found._replace(options={"steps": steps, "width": width})


class _Search:
    def __init__(
        self, problem: Problem, sharing: Sharing, delta: float, longest: int,
        dimensions: Sequence[Dimension],
    ) -> None:  # fmt: skip
        self._problem, self._sharing = problem, sharing
        self._delta, self._longest, self._dimensions = delta, longest, dimensions
        self._forks = forks(problem)
        self._cuts_of: dict[int, Sequence[tuple[Dimension, Cut]]] = {}

    def moves(self, number: int, state: Reached) -> Iterable[Strips]:
        """The next task on one device or divided, and chains and branches that begin with it."""
        alone = [self._sharing.strips((number,), cut, state.held) for cut in self._sharing.alone]
        branches = [distributed(self._sharing, f, state.held) for f in self._forks.get(number, ())]
        undivided = [strips for strips in alone if strips is not None]
        yield from undivided
        yield from (strips for strips in branches if strips is not None)
        end_s = min((max(state.free_after(strips)) for strips in undivided), default=inf)
        for dimension, cut in self._cuts(number):
            shares = self._sharing.shares((number,), cut)
            if shares is None or max(state.free_s[s.device] + s.compute_s for s in shares) > end_s:
                continue  # even if nothing had to be fetched it would end later
            strips = self._sharing.strips((number,), cut, state.held)
            if strips is not None:
                yield strips
                if dimension == "H" and max(state.free_after(strips)) <= end_s:
                    yield from self._chained(strips, cut, state)

    def _cuts(self, number: int) -> Sequence[tuple[Dimension, Cut]]:
        """Those with shares near what would let all devices end a task at the same time."""
        if number not in self._cuts_of:
            rates = [1 / max(s, _LEAST_S) for s in self._problem.latency_s[number]]
            shares = [rate / sum(rates) for rate in rates]
            self._cuts_of[number] = [
                (dimension, cut)
                for dimension in self._dimensions
                for cut in self._sharing.cuts(number, dimension)
                if cut.near(shares, self._delta)
            ]
        return self._cuts_of[number]

    def _chained(self, chain: Strips, cut: Cut, state: Reached) -> Iterable[Strips]:
        """Longer and longer chains, as long as each task saves more than it costs."""
        sharing, problem = self._sharing, self._problem
        while len(chain.tasks) < self._longest and self._continues(chain.tasks[-1]):
            following = chain.tasks[-1] + 1
            cut = cut._replace(axis=axis_of(problem.graph, problem.graph.tasks[following], "H"))
            end = problem.graph.tasks[chain.tasks[-1]].outputs[0]
            made = chain.made(problem)
            between = {end: tuple((device, box) for name, device, box in made if name == end)}
            longer = sharing.strips((*chain.tasks, following), cut, state.held)
            apart = sharing.strips((following,), cut, between)
            if longer is None or apart is None:
                return
            if chain.seconds + apart.seconds < longer.seconds:
                return
            yield longer
            chain = longer

    def _continues(self, last: int) -> bool:
        """Whether the task behind one may join its chain: it alone reads the end of it, and nothing
        else; and rows of it can be computed by themselves."""
        graph, following = self._problem.graph, last + 1
        if following == len(graph.tasks):
            return False
        end, task = graph.tasks[last], graph.tasks[following]
        inside = end.outputs[1:] == () and end.outputs[0] not in graph.outputs
        inside = inside and graph.readers[end.outputs[0]] == (task,)
        return inside and task.inputs == end.outputs and bool(self._sharing.cuts(following, "H"))
