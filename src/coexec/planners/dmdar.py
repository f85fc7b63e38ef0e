"""DMDAR: StarPU's scheduler that uses performance models, data locations and task readiness."""

import heapq
from dataclasses import dataclass, field

from coexec.problem.problem import Problem
from coexec.problem.solution import Solution


def solve(problem: Problem, *, alpha: float = 1.0, beta: float = 1.0) -> Solution:
    """Deque model, data aware, ready: a task is pushed to a device's queue as soon as it is ready.

    The task goes to the queue with the least ``alpha (expected end - best end) + beta transfer``.
    Inputs are prefetched, so only the part of a transfer counts that takes longer than the work in
    the queue. A free device takes from its queue the first task with the fewest missing inputs.
    There are no ranks and no look-ahead. Promises no quality; it is a baseline of HOPE.
    O(|V| (|V| + |D|)).

    Source: Augonnet, Thibault, Namyst, Wacrenier, "StarPU: a unified platform for task scheduling
    on heterogeneous multicore architectures", CCPE 23(2), 2011, and its policy "dmdar".

    Args:
        alpha: weight of time.
        beta: weight of data transfers.
    """
    run = _Scheduling(problem, alpha, beta)
    run.all()
    return Solution(run.assignment, run.sequence)


@dataclass(eq=False)
class _TaskQueue:
    """The queue of a processor, and its current task."""

    free_s: float = 0.0
    """The time at which the current task ends."""
    busy: bool = False
    queue: list[int] = field(default_factory=list)
    queued_s: float = 0.0


class _Scheduling:
    """A run in the scheduler's model, event by event."""

    def __init__(self, problem: Problem, alpha: float, beta: float) -> None:
        self._problem = problem
        self._alpha, self._beta = alpha, beta
        self._workers = {processor: _TaskQueue() for processor in problem.processors}
        self._worker = [self._workers[processor] for processor in problem.processors]
        self._arrival_s: dict[tuple[int, int], float] = {}
        """By (tensor, device): the time at which the tensor arrives or has arrived there."""
        self._charged_s = [0.0] * len(problem.tasks)
        self._missing = [len(problem.predecessors[t]) for t in problem.tasks]
        self.assignment = [0] * len(problem.tasks)
        self.sequence: list[int] = []

    def all(self) -> None:
        """Simulate the whole run: push ready tasks, let free devices take tasks, and advance to the
        next end of a task."""
        ends: list[tuple[float, int, int]] = []
        for task in self._problem.tasks:
            if not self._missing[task]:
                self._push(task, 0.0)
        self._pop(0.0, ends)
        while ends:
            now_s, task, device = heapq.heappop(ends)
            self._worker[device].busy = False
            for reader in self._problem.successors[task]:
                self._missing[reader] -= 1
                if not self._missing[reader]:
                    self._push(reader, now_s)
            self._pop(now_s, ends)

    def _push(self, task: int, now_s: float) -> None:
        problem = self._problem
        able = [d for d in problem.devices if problem.latency_s[task][d] < float("inf")]
        ends_s: dict[int, float] = {}
        waits_s: dict[int, float] = {}
        for device in able:
            worker = self._worker[device]
            start_s = max(worker.free_s, now_s) + worker.queued_s
            ends_s[device] = start_s + problem.latency_s[task][device]
            waits_s[device] = max(0.0, self._transfer_s(task, device) - (start_s - now_s))
        best_s = min(ends_s.values())
        chosen = min(
            able,
            key=lambda d: self._alpha * (ends_s[d] - best_s) + self._beta * waits_s[d],
        )
        worker = self._worker[chosen]
        worker.queue.append(task)
        self._charged_s[task] = problem.latency_s[task][chosen] + waits_s[chosen]
        worker.queued_s += self._charged_s[task]
        self.assignment[task] = chosen
        self._prefetch(task, chosen, now_s)

    def _transfer_s(self, task: int, device: int) -> float:
        """Seconds to move the inputs of ``task`` that ``device`` does not have."""
        problem = self._problem
        total_s = 0.0
        for tensor in problem.reads[task]:
            source = self.assignment[problem.maker[tensor]]
            if source != device and (tensor, device) not in self._arrival_s:
                link = problem.links[source][device]
                total_s += link.sync_latency_s + problem.transfer_s[tensor][source][device]
        return total_s

    def _prefetch(self, task: int, device: int, now_s: float) -> None:
        problem = self._problem
        for tensor in problem.reads[task]:
            source = self.assignment[problem.maker[tensor]]
            if source != device and (tensor, device) not in self._arrival_s:
                link = problem.links[source][device]
                transfer_s = problem.transfer_s[tensor][source][device]
                self._arrival_s[tensor, device] = now_s + link.sync_latency_s + transfer_s

    def _pop(self, now_s: float, ends: list[tuple[float, int, int]]) -> None:
        for worker in self._workers.values():
            if worker.busy or not worker.queue:
                continue
            task = min(worker.queue, key=lambda t: self._absent(t, now_s))
            device = self.assignment[task]
            worker.queue.remove(task)
            worker.queued_s -= self._charged_s[task]
            there_s = (self._arrival_s.get((t, device), 0.0) for t in self._problem.reads[task])
            start_s = max(now_s, max(there_s, default=0.0))
            worker.busy = True
            worker.free_s = start_s + self._problem.latency_s[task][device]
            self.sequence.append(task)
            heapq.heappush(ends, (worker.free_s, task, device))

    def _absent(self, task: int, now_s: float) -> int:
        """The number of inputs of ``task`` that have not arrived yet at its device."""
        device = self.assignment[task]
        arrivals = (self._arrival_s.get((t, device), 0.0) for t in self._problem.reads[task])
        return sum(arrival_s > now_s for arrival_s in arrivals)
