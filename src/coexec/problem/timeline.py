"""The clock for tasks of a problem, for list schedulers and searches that place one task at a
time."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from coexec.problem.problem import Problem
from coexec.timing.clock import Clock, Move


class Timeline(Clock):
    """The clock while tasks are placed on devices one by one, each as a launch of its own.

    Nodes are tasks. A tensor moves to a device once and stays. Two effects of fusing tasks to
    segments are left out: a segment pays for one launch only, and it waits for all its inputs
    before its first task.

    With an ``assignment`` of all tasks, the source of a tensor sends it as soon as it is made.
    Without it, the readers are not yet known: a tensor is sent when its first reader is placed. The
    send then starts right after the tensor was made, but after all earlier sends of the link; tasks
    that were placed on a busy source meanwhile are not moved. This is exact where targets copy.
    """

    def __init__(self, problem: Problem, assignment: Sequence[int] | None = None) -> None:
        super().__init__(problem.places, len(problem.tasks))
        self._problem = problem
        self._sends: Mapping[int, list[Move]] = {}
        if assignment is not None:
            self._sends = {t: sent(problem, (t,), assignment) for t in problem.tasks}
        self.there: set[tuple[int, int]] = set()
        """All (tensor, device) pairs of tensors that a device has received from another one."""
        self.moved_bytes = 0

    def copy(self) -> Self:
        """An independent copy of this timeline."""
        other = super().copy()
        other._problem, other._sends = self._problem, self._sends
        other.there, other.moved_bytes = self.there.copy(), self.moved_bytes
        return other

    def run(self, task: int, device: int) -> float:
        """Run ``task`` on ``device`` after all its earlier launches; return when it ends.

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
    """Moves that ``launch`` sends with this assignment, in the clock's order."""
    move_by_name = {}
    for maker in launch:
        source = assignment[maker]
        for tensor, reader in problem.read_by[maker]:
            if assignment[reader] != source:
                move = problem.moves[tensor][source][assignment[reader]]
                move_by_name[move.name] = move
    return list(move_by_name.values())


def makespan_s(problem: Problem, assignment: Sequence[int], sequence: Iterable[int]) -> float:
    """Makespan of one inference in seconds, in the planners' model of time: single tasks on a
    `Timeline`."""
    timeline = Timeline(problem, assignment)
    for task in sequence:
        timeline.run(task, assignment[task])
    return timeline.makespan_s
