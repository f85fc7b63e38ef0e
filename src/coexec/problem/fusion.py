"""Which tasks of a device are launched as one, and what a plan of such launches takes.

A launch is a tuple of tasks, none before its predecessors; a queue is what a device launches, in
order. Joining two launches saves one, but who needs the first then waits for both, and both wait
for what the second needs. `coexec.plans.derive` joins where that delays nobody, whatever tasks
take; here it is also done where those who wait have time, as predicted.
"""

from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

from coexec.plans.derive import derive
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, written
from coexec.timing.simulate import launched_s

__all__ = ["Clock", "Launch", "Queues", "found_in", "join", "joined", "queues_of"]

Launch = tuple[int, ...]
Queues = list[list[Launch]]

_FACTS = 10_000
"""Launches whose facts are remembered: several times as many as a search has at hand."""


def queues_of(problem: Problem, found: Solution) -> Queues:
    """The launches of a plan: its segments."""
    number = {task.name: i for i, task in enumerate(problem.graph.tasks)}
    schedule = derive(written(problem, found), problem.graph)
    return [
        [
            tuple(number[piece.task] for piece in schedule.segments[index].pieces)
            for index in schedule.by_device.get(name, ())
        ]
        for name in problem.system.names
    ]


def found_in(problem: Problem, queues: Queues) -> Solution:
    """The plan that launches what the queues say. They must not wait for each other in a circle."""
    run = _Run(Clock(problem), queues)
    joined = (task for queue in queues for launch in queue for task in launch[1:])
    return Solution(run.device, [t for launch in run.done for t in launch], frozenset(joined))


def joined(problem: Problem, found: Solution) -> Solution:
    """The same plan with launches joined as long as that makes it no longer. O(tries |V|).

    Only where nothing is copied between devices. Elsewhere launches are short beside the rest, and
    copies for a later task of a launch delay its first.
    """
    clock = Clock(problem)
    if not any(problem.launches_s) or any(clock.takes_time):
        return found
    queues = queues_of(problem, found)
    best_s = clock.makespan_s(queues)
    if best_s == inf:  # some task cannot run where it is
        return found
    changed = True
    while changed:
        changed = False
        for device, queue in enumerate(queues):
            at = 0
            while at + 1 < len(queue):
                tried = join(queues, device, at)
                tried_s = clock.makespan_s(tried)
                if tried_s <= best_s:
                    queues, queue, best_s, changed = tried, tried[device], tried_s, True
                else:
                    at += 1
    return found_in(problem, queues)


def join(queues: Queues, device: int, at: int) -> Queues:
    """The queues with launch ``at`` of a device and the one behind it made one."""
    queue = queues[device]
    both = queue[at] + queue[at + 1]
    return [*queues[:device], [*queue[:at], both, *queue[at + 2 :]], *queues[device + 1 :]]


class _Facts(NamedTuple):
    """What a launch takes and needs, wherever it stands."""

    run_s: tuple[float, ...]
    """By device."""
    before: tuple[int, ...]
    """Tasks of other launches that it waits for."""
    tensors: tuple[int, ...]
    """What it reads of them and takes time to be copied."""


class Clock:
    """Times queues by the rules of the simulator, many times as fast.

    It differs in two things: what a task sends leaves in the order of the readers in the queues,
    device by device, in the simulator in that of all segments; and what takes no time to be copied
    does not stand in line for its link.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.wait_s = [
            [0.0 if a == b else link.latency_s for b, link in enumerate(row)]
            for a, row in enumerate(problem.links)
        ]
        self.takes_time = [any(any(row) for row in copies_s) for copies_s in problem.copy_s]
        """By tensor, whether a copy of it does."""
        self.sends = any(self.takes_time) and any(
            link.busy != "target" for row in problem.links for link in row
        )
        self.facts = lru_cache(maxsize=_FACTS)(self._facts)

    def makespan_s(self, queues: Queues) -> float:
        """Seconds until all is done; infinite if launches wait for each other in a circle."""
        return _Run(self, queues).makespan_s

    def ends_s(self, queues: Queues) -> list[float]:
        """By task, when its launch ends."""
        return _Run(self, queues).end_s

    def _facts(self, launch: Launch) -> _Facts:
        problem, inside = self.problem, set(launch)
        run_s = (
            launched_s([problem.latency_s[task][device] for task in launch], launch_s)
            for device, launch_s in enumerate(problem.launches_s)
        )
        before = {p: None for task in launch for p in problem.predecessors[task] if p not in inside}
        read = {tensor: None for task in launch for tensor in problem.reads[task]}
        tensors = (x for x in read if self.takes_time[x] and problem.maker[x] not in inside)
        return _Facts(tuple(run_s), tuple(before), tuple(tensors))


class _Run:
    """Every launch as early as it can."""

    def __init__(self, clock: Clock, queues: Queues) -> None:
        self._clock, self._problem = clock, clock.problem
        count = len(clock.problem.tasks)
        self.device = [0] * count
        """By task that has run, its device."""
        self.end_s = [inf] * count
        """By task, when its launch ends; infinite if it cannot start."""
        self._free_s = [0.0] * len(queues)
        self._there: set[tuple[int, int]] = set()
        self._arrival_s: dict[tuple[int, int], float] = {}
        self._link_free_s: dict[tuple[int, int], float] = {}
        self._sends = self._wanted(queues) if clock.sends else {}
        self.done: list[Launch] = []
        """All launches, none before what it waits for."""
        self._run(queues)
        all_done = len(self.done) == sum(map(len, queues))
        self.makespan_s = max(self._free_s) if all_done else inf

    def _run(self, queues: Queues) -> None:
        at = [0] * len(queues)
        going = True
        while going:
            going = False
            for device, queue in enumerate(queues):
                while at[device] < len(queue) and self._runs(queue[at[device]], device):
                    at[device] += 1
                    going = True

    def _runs(self, launch: Launch, device: int) -> bool:
        """Let a device run its next launch, unless something that this waits for has not run."""
        facts = self._clock.facts(launch)
        start_s = self._free_s[device]
        for task in facts.before:
            ready_s = self.end_s[task]
            if self.device[task] != device:
                ready_s += self._clock.wait_s[self.device[task]][device]
            if ready_s > start_s:
                start_s = ready_s
        if start_s == inf:
            return False
        if facts.tensors:
            start_s = self._received_s(facts.tensors, device, start_s)
        end_s = self._free_s[device] = start_s + facts.run_s[device]
        for task in launch:
            self.device[task], self.end_s[task] = device, end_s
        for tensor, target in self._sends.get(launch, ()):
            self._send(tensor, device, target, end_s)
        self.done.append(launch)
        return True

    def _received_s(self, tensors: Sequence[int], device: int, start_s: float) -> float:
        arrived_s = start_s
        for tensor in tensors:
            source = self.device[self._problem.maker[tensor]]
            if source == device or (tensor, device) in self._there:
                continue
            self._there.add((tensor, device))
            if self._problem.links[source][device].busy == "target":
                start_s += self._problem.copy_s[tensor][source][device]
            else:
                arrived_s = max(arrived_s, self._arrival_s[tensor, device])
        return max(start_s, arrived_s)

    def _send(self, tensor: int, source: int, target: int, end_s: float) -> None:
        link = self._problem.links[source][target]
        copy_s = self._problem.copy_s[tensor][source][target]
        if link.busy == "target":
            return
        if link.busy == "source":
            done_s = self._free_s[source] = self._free_s[source] + copy_s
        else:
            done_s = max(end_s, self._link_free_s.get((source, target), 0.0)) + copy_s
            self._link_free_s[source, target] = done_s
        self._arrival_s[tensor, target] = done_s + link.latency_s

    def _wanted(self, queues: Queues) -> dict[Launch, list[tuple[int, int]]]:
        """By launch, the (tensor, device) that it has to send: of what it made first first, and in
        the order of the readers."""
        launch_of = {task: launch for queue in queues for launch in queue for task in launch}
        home = {launch: device for device, queue in enumerate(queues) for launch in queue}

        def made(send: tuple[int, int]) -> int:
            task = self._problem.maker[send[0]]
            return launch_of[task].index(task)

        found: dict[Launch, dict[tuple[int, int], None]] = {}
        for target, queue in enumerate(queues):
            for tensor in (x for launch in queue for x in self._clock.facts(launch).tensors):
                source = launch_of[self._problem.maker[tensor]]
                if home[source] != target:
                    found.setdefault(source, {})[tensor, target] = None
        return {launch: sorted(sends, key=made) for launch, sends in found.items()}
