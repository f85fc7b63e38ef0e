"""Which tasks of a device are fused into one launch, and what a plan of such launches takes.

A launch is a tuple of tasks, none before its predecessors; a queue is what a device launches, in
order. Fusing two launches saves one, but what needs the first then waits for both, and both wait
for what the second needs. `coexec.plans.derive` fuses where that delays nothing, whatever tasks
take; here it is also done where what waits has time, as predicted.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

from coexec.plans.derive import derive
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, written
from coexec.problem.timeline import sent
from coexec.timing.clock import Clock, Move, launched_s

__all__ = ["Evaluation", "Evaluator", "Launch", "Queues", "found_in", "fuse", "fused", "queues_of"]

Launch = tuple[int, ...]
Queues = list[list[Launch]]

_ROUNDED = 1.0 + 1e-9
"""Sums of the same seconds in another order differ by less."""
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
    run = Evaluation(Evaluator(problem), queues)
    behind = (task for queue in queues for launch in queue for task in launch[1:])
    return Solution(run.place, [t for launch in run.done for t in launch], frozenset(behind))


def fused(problem: Problem, found: Solution) -> Solution:
    """The same plan with launches fused as long as that makes it no longer. O(tries |V|).

    Only where nothing is copied between devices. Elsewhere launches are short beside the rest, and
    copies for a later task of a launch delay its first.
    """
    evaluator = Evaluator(problem)
    if not any(problem.launches_s) or evaluator.moves:
        return found
    queues = queues_of(problem, found)
    run = evaluator.run(queues)
    if run.total_s == inf:  # some task cannot run where it is
        return found
    before = None
    while before != queues:
        before = queues
        for device in problem.devices:
            queues, run = _fused_on(evaluator, queues, device, run)
    return found_in(problem, queues)


def _fused_on(
    evaluator: "Evaluator", queues: Queues, device: int, run: "Evaluation"
) -> tuple[Queues, "Evaluation"]:
    """The launches of one device fused, the first ones first."""
    rest_s = _rest_s(evaluator, queues, run)
    at = 0
    while at + 1 < len(queues[device]):
        # Most launches cannot be fused with the next one: no need to run all others again.
        if _least_s(evaluator, queues, device, at, run, rest_s) <= run.total_s * _ROUNDED:
            tried = fuse(queues, device, at)
            tried_run = evaluator.run(tried)
            if tried_run.total_s <= run.total_s:
                queues, run = tried, tried_run
                continue
        at += 1
    return queues, run


def fuse(queues: Queues, device: int, at: int) -> Queues:
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


class Evaluator:
    """Times queues by the clock's rules, many times as fast as `derive` and `simulate`.

    That is what the simulator says where each launch is a segment.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.takes_time = [any(any(row) for row in rows_s) for rows_s in problem.transfer_s]
        """By tensor, whether a copy of it does."""
        self.moves = any(self.takes_time)
        self.sends = self.moves and any(
            link.busy != "target" for row in problem.links for link in row
        )
        self.facts = lru_cache(maxsize=_FACTS)(self._facts)

    def run(self, queues: Queues) -> "Evaluation":
        """What happens if devices launch what the queues say."""
        return Evaluation(self, queues)

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


class Evaluation(Clock):
    """Every launch of some queues as early as it can. Nodes are tasks."""

    def __init__(self, evaluator: Evaluator, queues: Queues) -> None:
        problem = evaluator.problem
        super().__init__(problem.places, len(problem.tasks))
        self._evaluator = evaluator
        self._incoming: Mapping[int, list[Move]] = {}
        self._outgoing: Mapping[int, list[Move]] = {}
        if evaluator.moves:
            self._incoming, self._outgoing = _moves(evaluator, queues)
        self.done: list[Launch] = []
        """All launches, none before what it waits for."""
        self._run(queues)
        all_done = len(self.done) == sum(map(len, queues))
        self.total_s = self.makespan_s if all_done else inf
        """Seconds until all is done; infinite if launches wait for each other in a circle."""

    def _run(self, queues: Queues) -> None:
        """Let each device in turn launch all that it can, until none can go on."""
        launch_all, facts, done = self.launch, self._evaluator.facts, self.done
        incoming, outgoing = self._incoming, self._outgoing
        rest = list(map(iter, queues))
        heads = [next(queue, None) for queue in rest]
        going = True
        while going:
            going = False
            for device, queue in enumerate(rest):
                while (tasks := heads[device]) is not None:
                    run_s, before, _ = facts(tasks)
                    moves = incoming.get(tasks[0], ())
                    if launch_all(tasks, device, run_s[device], before, moves) == inf:
                        break
                    if outgoing:
                        for move in outgoing.get(tasks[0], ()):
                            self.send(tasks[0], move)
                    done.append(tasks)
                    heads[device] = next(queue, None)
                    going = True


def _rest_s(evaluator: Evaluator, queues: Queues, run: Evaluation) -> list[float]:
    """By task, from the start of its launch until all that waits for it has ended, where nothing is
    copied. It stays as it is while launches are fused that the task waits for."""
    rest_s = [0.0] * len(run.end_s)
    next_s = [0.0] * len(queues)
    for launch in reversed(run.done):
        device = run.place[launch[0]]
        behind_s = _behind_s(evaluator, launch, run, rest_s, next_s[device])
        next_s[device] = evaluator.facts(launch).run_s[device] + behind_s
        for task in launch:
            rest_s[task] = next_s[device]
    return rest_s


def _behind_s(
    evaluator: Evaluator, launch: Launch, run: Evaluation, rest_s: Sequence[float], next_s: float
) -> float:
    """From the end of a launch until all that waits for it has ended, if what its device does next
    takes until ``next_s``."""
    problem, place, inside = evaluator.problem, run.place, set(launch)
    device, sync_latency_s = place[launch[0]], problem.places.sync_latency_s
    for task in launch:
        for reader in problem.successors[task]:
            if reader not in inside:
                next_s = max(next_s, sync_latency_s[place[reader]][device] + rest_s[reader])
    return next_s


def _least_s(
    evaluator: Evaluator, queues: Queues, device: int, at: int, run: Evaluation,
    rest_s: Sequence[float],
) -> float:  # fmt: skip
    """What a plan takes at least with launch ``at`` of a device and the one behind it made one: the
    longest way through both.

    Unless they wait for what waits for them, so that nothing would go on, all that they wait for
    ends as it did, and all that is behind them takes as long as it did.
    """
    queue = queues[device]
    both = queue[at] + queue[at + 1]
    run_s, before, _ = evaluator.facts(both)
    sync_latency_s = evaluator.problem.places.sync_latency_s[device]
    start_s = run.end_s[queue[at - 1][0]] if at else 0.0
    for task in before:
        start_s = max(start_s, run.end_s[task] + sync_latency_s[run.place[task]])
    next_s = rest_s[queue[at + 2][0]] if at + 2 < len(queue) else 0.0
    return start_s + run_s[device] + _behind_s(evaluator, both, run, rest_s, next_s)


def _moves(
    evaluator: Evaluator, queues: Queues
) -> tuple[dict[int, list[Move]], dict[int, list[Move]]]:
    """By the first task of a launch, what it receives and what it sends."""
    problem = evaluator.problem
    home = [0] * len(problem.tasks)
    for place, queue in enumerate(queues):
        for launch in queue:
            for task in launch:
                home[task] = place
    incoming: dict[int, list[Move]] = {}
    makers = set()
    for place, queue in enumerate(queues):
        there = set()
        for launch in queue:
            for tensor in evaluator.facts(launch).tensors:
                maker = problem.maker[tensor]
                if home[maker] != place and tensor not in there:
                    there.add(tensor)
                    makers.add(maker)
                    move = problem.moves[tensor][home[maker]][place]
                    incoming.setdefault(launch[0], []).append(move)
    outgoing: dict[int, list[Move]] = {}
    for launch in (launch for queue in queues for launch in queue if evaluator.sends):
        if sending := [task for task in launch if task in makers]:
            outgoing[launch[0]] = sent(problem, sending, home)
    return incoming, outgoing
