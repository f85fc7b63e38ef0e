"""What all planners share: the problem, their model of time, and how a plan is written."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from coexec.plans.plan import Plan, Provenance
from coexec.problem.fusion import joined
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, alone, simulated_s, written

__all__ = ["Problem", "Solution", "Timeline", "alone", "build_plan", "makespan_s", "simulated_s"]


class Timeline:
    """The clocks of all devices while tasks are given to them one by one.

    These are the rules of `coexec.timing.simulate` for a plan whose segments are single tasks: a
    task waits for its predecessors and for the latency of the links from them, a tensor moves to a
    device once, and a copy keeps source, target or nobody busy. What depends on how tasks are
    joined to segments is left out: that a segment pays for one launch only, and that it waits for
    all that it needs before its first task.

    With an ``assignment`` of all tasks the source of a tensor sends it as soon as it is made, to
    one device after the other in order of their first readers in the graph; the simulator takes
    its order of segments. Without it, readers are not known yet: a tensor is sent when its first
    reader is placed, as if right after it was made, but behind what the link got before; tasks
    that a busy source was given meanwhile stay where they are. That is exact where targets copy.
    """

    def __init__(self, problem: Problem, assignment: Sequence[int] | None = None) -> None:
        self._problem = problem
        self._sends = {} if assignment is None else _sends(problem, assignment)
        self.free_s = [0.0] * len(problem.devices)
        """By device, when it has nothing left to do."""
        self.end_s = [math.inf] * len(problem.tasks)
        """By task, when it ends; infinite before it is run."""
        self.device = [-1] * len(problem.tasks)
        self.arrival_s: dict[tuple[int, int], float] = {}
        """By (tensor, device), when one that was sent and not yet read gets there."""
        self.link_free_s: dict[tuple[int, int], float] = {}
        """By link that copies in the background, when it is done."""
        self.there: set[tuple[int, int]] = set()
        """All (tensor, device) that a reader has received from another device."""
        self.moved_bytes = 0
        self._sent_s: dict[int, float] = {}

    def copy(self) -> Self:
        """A second timeline that goes on from here on its own."""
        other = type(self).__new__(type(self))
        other._problem, other._sends = self._problem, self._sends
        other.free_s, other.end_s = self.free_s.copy(), self.end_s.copy()
        other.device, other.there = self.device.copy(), self.there.copy()
        other.arrival_s, other.link_free_s = self.arrival_s.copy(), self.link_free_s.copy()
        other.moved_bytes, other._sent_s = self.moved_bytes, self._sent_s.copy()
        return other

    @property
    def makespan_s(self) -> float:
        """End of the last task so far, and of what had to be sent on."""
        return max(self.free_s)

    def run(self, task: int, device: int) -> float:
        """Let ``device`` run ``task`` after all that it was given before; when that ends.

        The predecessors of ``task`` must have been run.
        """
        problem = self._problem
        start_s = self.free_s[device]
        for before in problem.predecessors[task]:
            source = self.device[before]
            if source != device:
                ready_s = self.end_s[before] + problem.links[source][device].latency_s
                start_s = max(start_s, ready_s)
        for tensor in problem.reads[task]:
            source = self.device[problem.maker[tensor]]
            if source != device and (tensor, device) not in self.there:
                start_s = self._receive(tensor, source, device, start_s)
        self.device[task] = device
        self.end_s[task] = self.free_s[device] = start_s + problem.latency_s[task][device]
        for tensor, target in self._sends.get(task, ()):
            self._send(tensor, device, target)
        return self.end_s[task]

    def _receive(self, tensor: int, source: int, target: int, start_s: float) -> float:
        self.there.add((tensor, target))
        self.moved_bytes += self._problem.tensor_bytes[tensor]
        if self._problem.links[source][target].busy == "target":
            return start_s + self._problem.copy_s[tensor][source][target]
        if (tensor, target) not in self.arrival_s:
            self._send(tensor, source, target)
        return max(start_s, self.arrival_s.pop((tensor, target)))

    def _send(self, tensor: int, source: int, target: int) -> None:
        link = self._problem.links[source][target]
        copy_s = self._problem.copy_s[tensor][source][target]
        maker = self._problem.maker[tensor]
        if link.busy == "target":
            return
        if link.busy == "source":
            done_s = self._sent_s.get(maker, self.end_s[maker]) + copy_s
            self._sent_s[maker] = done_s
            self.free_s[source] += copy_s
        else:
            done_s = max(self.end_s[maker], self.link_free_s.get((source, target), 0.0)) + copy_s
            self.link_free_s[source, target] = done_s
        self.arrival_s[tensor, target] = done_s + link.latency_s


def _sends(problem: Problem, assignment: Sequence[int]) -> dict[int, list[tuple[int, int]]]:
    """By task, the (tensor, device) that it has to send."""
    found: dict[int, dict[tuple[int, int], None]] = {}
    for reader in problem.tasks:
        for tensor in problem.reads[reader]:
            maker, target = problem.maker[tensor], assignment[reader]
            if assignment[maker] != target:
                found.setdefault(maker, {})[tensor, target] = None
    return {task: list(sends) for task, sends in found.items()}


def makespan_s(problem: Problem, assignment: Sequence[int], sequence: Iterable[int]) -> float:
    """Seconds of one inference in the planners' model of time (`Timeline`)."""
    timeline = Timeline(problem, assignment)
    for task in sequence:
        timeline.run(task, assignment[task])
    return timeline.makespan_s


def build_plan(
    problem: Problem, solution: Solution, planner: str, options: Mapping[str, Any]
) -> Plan:
    """The plan of a solution, with tasks joined as `problem.fusion.joined` does it.

    The bound is that of the problem unless the planner knows better. What the plan promises is in
    the planners' model of time, where every task is a launch.
    """
    predicted_s = makespan_s(problem, solution.assignment, solution.sequence)
    bound_s = problem.bound_s if solution.bound_s is None else solution.bound_s
    provenance = Provenance(planner, dict(options), solution.status, predicted_s, bound_s)
    return written(problem, joined(problem, solution), provenance)
