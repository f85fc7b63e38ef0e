"""Fuse tasks of a device into one launch, and evaluate plans of such launches.

A launch is a tuple of tasks, each after its predecessors. A queue holds the launches of a device,
in order. Fusing two launches saves one launch overhead. But readers of the first one then wait for
both, and both wait for the inputs of the second one. `coexec.plan.derive` fuses where this delays
nothing, whatever the tasks take. This module also fuses where, by the predicted times, the waiting
launches have time to spare.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

from coexec.plan.derive import derive
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, written
from coexec.problem.timeline import sent
from coexec.timing.clock import Clock, Move, launched_s

Launch = tuple[int, ...]
Queues = list[list[Launch]]

_ROUNDED = 1.0 + 1e-9
"""Sums of the same seconds in another order differ by less than this factor."""
_FACTS = 10_000
"""Number of launches whose facts are cached: several times as many as a search uses at a time."""


def queues_of(problem: Problem, solution: Solution) -> Queues:
    """Launches of a plan, by device: its segments."""
    number = {task.name: i for i, task in enumerate(problem.graph.tasks)}
    schedule = derive(written(problem, solution), problem.graph)
    return [
        [
            tuple(number[piece.task] for piece in schedule.segments[index].pieces)
            for index in schedule.by_device.get(name, ())
        ]
        for name in problem.system.names
    ]


def solution_of(problem: Problem, queues: Queues) -> Solution:
    """The plan with these launches. The queues must not have a deadlock."""
    run = Evaluation(Evaluator(problem), queues)
    behind = (task for queue in queues for launch in queue for task in launch[1:])
    return Solution(run.place, [t for launch in run.done for t in launch], frozenset(behind))


def fused(problem: Problem, solution: Solution) -> Solution:
    """The same plan, with launches fused as long as the makespan does not grow. O(tries |V|).

    Only where nothing is copied between devices and none share a processor. Elsewhere launch
    overheads are small compared with the rest, and copies for a later task of a launch delay its
    first task.
    """
    evaluator = Evaluator(problem)
    if not any(problem.launches_s) or evaluator.moves or problem.shares_processors:
        return solution
    queues = queues_of(problem, solution)
    run = evaluator.run(queues)
    if run.total_s == inf:  # a task cannot run on its device
        return solution
    before = None
    while before != queues:
        before = queues
        for device in problem.devices:
            queues, run = _fused_on(evaluator, queues, device, run)
    return solution_of(problem, queues)


def _fused_on(
    evaluator: "Evaluator", queues: Queues, device: int, run: "Evaluation"
) -> tuple[Queues, "Evaluation"]:
    """Fuse the launches of one device, from the first to the last."""
    rest_s = _rest_s(evaluator, queues, run)
    at = 0
    while at + 1 < len(queues[device]):
        # Most launches cannot be fused with the next one: this bound avoids a full evaluation.
        if _least_s(evaluator, queues, device, at, run, rest_s) <= run.total_s * _ROUNDED:
            candidate = fuse(queues, device, at)
            candidate_run = evaluator.run(candidate)
            if candidate_run.total_s <= run.total_s:
                queues, run = candidate, candidate_run
                continue
        at += 1
    return queues, run


def fuse(queues: Queues, device: int, at: int) -> Queues:
    """The queues with launch ``at`` of a device and the next one fused."""
    queue = queues[device]
    both = queue[at] + queue[at + 1]
    return [*queues[:device], [*queue[:at], both, *queue[at + 2 :]], *queues[device + 1 :]]


class _Facts(NamedTuple):
    """Duration and dependencies of a launch, whatever its position."""

    run_s: tuple[float, ...]
    """Seconds, by device."""
    before: tuple[int, ...]
    """Tasks of other launches whose results it reads."""
    tensors: tuple[int, ...]
    """Tensors of these tasks that it reads and whose copies take time."""


class Evaluator:
    """Times queues by the clock's rules, many times as fast as `derive` and `simulate`.

    The results are those of the simulator where each launch is a segment.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.takes_time = [any(any(row) for row in rows_s) for rows_s in problem.transfer_s]
        """Whether a copy of a tensor takes time, by tensor."""
        self.moves = any(self.takes_time)
        self.sends = self.moves and any(
            link.busy != "target" for row in problem.links for link in row
        )
        self.facts = lru_cache(maxsize=_FACTS)(self._facts)

    def run(self, queues: Queues) -> "Evaluation":
        """Run the launches of the queues."""
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
    """All launches of some queues, each as early as it can start. Nodes are tasks."""

    def __init__(self, evaluator: Evaluator, queues: Queues) -> None:
        problem = evaluator.problem
        super().__init__(problem.places, len(problem.tasks))
        self._evaluator = evaluator
        self._incoming: Mapping[int, list[Move]] = {}
        self._outgoing: Mapping[int, list[Move]] = {}
        if evaluator.moves:
            self._incoming, self._outgoing = _moves(evaluator, queues)
        self.done: list[Launch] = []
        """All launches, each after the launches that it depends on."""
        self._run(queues)
        all_done = len(self.done) == sum(map(len, queues))
        self.total_s = self.makespan_s if all_done else inf
        """Makespan in seconds; infinite if the queues have a deadlock."""

    def _run(self, queues: Queues) -> None:
        """Let each device in turn launch as far as it can, until no device can go on."""
        launch_all, facts, done = self.launch, self._evaluator.facts, self.done
        incoming, outgoing = self._incoming, self._outgoing
        iterators = list(map(iter, queues))
        heads = [next(queue, None) for queue in iterators]
        going = True
        while going:
            going = False
            for device, queue in enumerate(iterators):
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
    """Seconds by task, from the start of its launch to the end of the last launch that depends on
    it, if nothing is copied. The values stay valid while launches before the task are fused."""
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
    """Seconds from the end of a launch to the end of the last launch that depends on it, if the
    following launches of its device take ``next_s``."""
    problem, place, inside = evaluator.problem, run.place, set(launch)
    device, sync_latency_s = place[launch[0]], problem.places.sync_latency_s
    for task in launch:
        for reader in problem.successors[task]:
            if reader not in inside:
                next_s = max(next_s, sync_latency_s[place[reader]][device] + rest_s[reader])
    return next_s


def _least_s(
    evaluator: Evaluator,
    queues: Queues,
    device: int,
    at: int,
    run: Evaluation,
    rest_s: Sequence[float],
) -> float:
    """Lower bound of the makespan with launch ``at`` of a device and the next one fused: the
    longest path through both.

    Unless the fusion causes a deadlock, all launches before the two end as they did, and all
    launches after them take as long as they did.
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
    """By the first task of a launch, the moves that it receives and the moves that it sends."""
    problem = evaluator.problem
    home = [0] * len(problem.tasks)
    for place, queue in enumerate(queues):
        for launch in queue:
            for task in launch:
                home[task] = place
    incoming: dict[int, list[Move]] = {}
    makers = set()
    for place, queue in enumerate(queues):
        local_tensors = set()
        for launch in queue:
            for tensor in evaluator.facts(launch).tensors:
                maker = problem.maker[tensor]
                if home[maker] != place and tensor not in local_tensors:
                    local_tensors.add(tensor)
                    makers.add(maker)
                    move = problem.moves[tensor][home[maker]][place]
                    incoming.setdefault(launch[0], []).append(move)
    outgoing: dict[int, list[Move]] = {}
    for launch in (launch for queue in queues for launch in queue if evaluator.sends):
        if sending := [task for task in launch if task in makers]:
            outgoing[launch[0]] = sent(problem, sending, home)
    return incoming, outgoing
