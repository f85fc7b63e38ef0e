"""CoDL: each heavy task is divided between the devices, in chains that share data at their ends."""

from collections.abc import Sequence

from coexec.errors import UsageError
from coexec.problem.division import Division, best_of
from coexec.problem.problem import Problem
from coexec.solvers.splitting.placed import Held, Strips, strips_of
from coexec.solvers.splitting.shares import CHANNELS, ROWS, Cut, cuts_of

__all__ = ["solve"]

_DIMENSIONS = {"hybrid": (ROWS, CHANNELS), "H": (ROWS,), "OC": (CHANNELS,)}


def solve(
    problem: Problem, *, dimension: str = "hybrid", chains: bool = True, steps: int = 10,
    delta: float = 0.3, longest: int = 30, channel_block: int = 16,
) -> Division:  # fmt: skip
    """Divide each task by rows or output channels as is quickest, and chain tasks divided by rows.

    Promises to be no slower than one device alone, in the simulator. Each decision is the best one
    where the data lie after those before it. From
    "CoDL: Efficient CPU-GPU Co-execution for Deep Learning Inference on Mobile Devices" (Jia et
    al., MobiSys 2022), its Algorithm 1 with what is printed wrong there put right: each ratio
    begins at the head again, and the gains of all steps of a chain count. Unlike there, devices may
    be any number, and sharing costs what moves from where it lies.

    Args:
        dimension: "H" (rows), "OC" (output channels), or "hybrid", whichever is quicker for a task.
        chains: whether tasks are chained.
        steps: a device's share is a multiple of one step of so many.
        delta: how far the ratio of a chain may be from what is best for its head alone.
        longest: tasks in a chain.
        channel_block: channels that are not divided, as they lie together.

    Raises:
        UsageError: an option out of its range.
    """
    if dimension not in _DIMENSIONS:
        raise UsageError(f"dimension is {dimension!r}; it wants one of {', '.join(_DIMENSIONS)}")
    if min(steps, longest, channel_block) < 1 or delta < 0:
        raise UsageError(f"steps, longest and channel_block are at least 1 and delta at least 0, "
                         f"not {steps}, {longest}, {channel_block} and {delta:g}")  # fmt: skip
    search = _Search(problem, _DIMENSIONS[dimension], steps, channel_block)
    most = round(delta * steps)
    found: list[Strips] = []
    held: Held = {}
    at = 0
    while at < len(problem.tasks):
        strips = search.alone(at, held)
        if chains and strips.cut.axis == ROWS:
            strips = search.chained(strips, held, most, longest)
        found.append(strips)
        held = strips.held_after(problem, held)
        at += len(strips.tasks)
    return best_of(problem, Division.of(problem, found))


class _Search:
    def __init__(
        self, problem: Problem, axes: Sequence[int], steps: int, channel_block: int
    ) -> None:
        self._problem, self._axes = problem, axes
        self._steps, self._channel_block = steps, channel_block

    def alone(self, task: int, held: Held) -> Strips:
        """The quickest way to compute one task."""
        problem = self._problem
        cuts = cuts_of(problem.graph, problem.graph.tasks[task], self._axes,
                       len(problem.devices), self._steps)  # fmt: skip
        found = (self._strips([task], cut, held) for cut in cuts)
        # `Problem` makes sure that a device runs the task.
        return min((s for s in found if s is not None), key=lambda strips: strips.seconds)

    def chained(self, head: Strips, held: Held, most: int, longest: int) -> Strips:
        """The chain from ``head`` on that saves the most, over all ratios near the head's."""
        problem = self._problem
        (first,) = head.tasks
        best, best_gain_s = head, 0.0
        task = problem.graph.tasks[first]
        for cut in cuts_of(problem.graph, task, (ROWS,), len(problem.devices), self._steps):
            chain = self._strips([first], cut, held) if cut.axis == ROWS else None
            if chain is None or not cut.near(head.cut, most):
                continue
            gain_s = head.seconds - chain.seconds
            while len(chain.tasks) < longest and self._continues(chain.tasks):
                following = chain.tasks[-1] + 1
                longer = self._strips([*chain.tasks, following], cut, held)
                if longer is None:
                    break
                apart = self.alone(following, chain.held_after(problem, held))
                step_s = chain.seconds + apart.seconds - longer.seconds
                if step_s < 0:
                    break
                chain, gain_s = longer, gain_s + step_s
                if gain_s > best_gain_s:
                    best, best_gain_s = chain, gain_s
        return best

    def _strips(self, tasks: Sequence[int], cut: Cut, held: Held) -> Strips | None:
        block = self._channel_block if cut.axis == CHANNELS else 1
        return strips_of(self._problem, tasks, cut, held, block)

    def _continues(self, tasks: Sequence[int]) -> bool:
        """Whether the task behind a chain may join it: it alone reads the chain's end, and nothing
        else; and rows of it can be computed by themselves."""
        graph, following = self._problem.graph, tasks[-1] + 1
        if following == len(self._problem.tasks):
            return False
        end, task = graph.tasks[tasks[-1]], graph.tasks[following]
        alone = end.outputs[1:] == () and end.outputs[0] not in graph.outputs
        alone = alone and len(graph.readers[end.outputs[0]]) == 1
        cuts = cuts_of(graph, task, (ROWS,), 2, 2)
        return alone and task.inputs == end.outputs and any(c.axis == ROWS for c in cuts)
