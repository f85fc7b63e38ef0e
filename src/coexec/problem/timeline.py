"""The clock for tasks of a problem: what list schedulers and searches give one by one."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from coexec.problem.problem import Problem
from coexec.timing.clock import Clock, Move

__all__ = ["Timeline", "makespan_s", "sent"]


class Timeline(Clock):
    """The clock while tasks are given to devices one by one, each a launch of its own.

    Nodes are tasks. A tensor moves to a device once and stays. What depends on how tasks are fused
    to segments is left out: that a segment pays for one launch only, and that it waits for all that
    it needs before its first task.

    With an ``assignment`` of all tasks the source of a tensor sends it as soon as it is made.
    Without it, readers are not known yet: a tensor is sent when its first reader is placed, as if
    right after it was made, but behind what the link got before; tasks that a busy source was given
    meanwhile stay where they are. That is exact where targets copy.
    """

    def __init__(self, problem: Problem, assignment: Sequence[int] | None = None) -> None:
        super().__init__(problem.places, len(problem.tasks))
        self._problem = problem
        self._sends: Mapping[int, list[Move]] = {}
        if assignment is not None:
            self._sends = {t: sent(problem, (t,), assignment) for t in problem.tasks}
        self.there: set[tuple[int, int]] = set()
        """All (tensor, device) that a reader has received from another device."""
        self.moved_bytes = 0

    def copy(self) -> Self:
        """A second timeline that goes on from here on its own."""
        other = super().copy()
        other._problem, other._sends = self._problem, self._sends
        other.there, other.moved_bytes = self.there.copy(), self.moved_bytes
        return other

    def run(self, task: int, device: int) -> float:
        """Let ``device`` run ``task`` after all that it was given before; when that ends.

        The predecessors of ``task`` must have been run.
        """
        problem, place, there = self._problem, self.place, self.there
        moves = []
        for tensor in problem.reads[task]:
            source = place[problem.maker[tensor]]
            if source != device and (tensor, device) not in there:
                there.add((tensor, device))
                self.moved_bytes += problem.tensor_bytes[tensor]
                if problem.transfer_s[tensor][source][device]:
                    moves.append(problem.moves[tensor][source][device])
                    if (tensor, device) not in self.arrival_s:
                        self.send(problem.maker[tensor], moves[-1])
        before, duration_s = problem.predecessors[task], problem.latency_s[task][device]
        end_s = self.launch((task,), device, duration_s, before, moves)
        if self._sends:
            for move in self._sends[task]:
                self.send(task, move)
        return end_s


def sent(problem: Problem, launch: Iterable[int], assignment: Sequence[int]) -> list[Move]:
    """What ``launch`` sends if tasks are assigned to devices like this, in the clock's order."""
    found = {}
    for maker in launch:
        source = assignment[maker]
        for tensor, reader in problem.read_by[maker]:
            if assignment[reader] != source:
                move = problem.moves[tensor][source][assignment[reader]]
                found[move.name] = move
    return list(found.values())


def makespan_s(problem: Problem, assignment: Sequence[int], sequence: Iterable[int]) -> float:
    """Seconds of one inference in the planners' model of time: single tasks on a `Timeline`."""
    timeline = Timeline(problem, assignment)
    for task in sequence:
        timeline.run(task, assignment[task])
    return timeline.makespan_s
