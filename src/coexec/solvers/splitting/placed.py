"""Where the parts of tensors lie while a plan of shares grows, and what a strip costs there."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coexec.ir.graph import Piece, Task
from coexec.ir.receptive import needed_inputs
from coexec.ir.region import Region
from coexec.ir.stitch import missing
from coexec.problem.problem import Problem
from coexec.solvers.splitting.shares import Cut, parts

__all__ = ["Held", "Strips", "strips_of"]

Held = Mapping[str, Sequence[tuple[int, Region]]]
"""By tensor: the devices that have a part of it, and which. Nothing of inputs of the model: all
devices have them."""


@dataclass(frozen=True)
class Strips:
    """What the devices compute of consecutive tasks, with one cut, handing over nothing inside."""

    tasks: tuple[int, ...]
    cut: Cut
    pieces: tuple[tuple[Piece, ...], ...]
    """By device, in the order of the tasks; none where it has no share."""
    seconds: float
    """Until the last device has ended, if all begin when everything they read is made."""
    moved: Held = field(default_factory=dict)
    """What devices fetch first."""

    def held_after(self, problem: Problem, held: Held) -> dict[str, list[tuple[int, Region]]]:
        """Where things lie when it has ended."""
        found = {name: list(there) for name, there in held.items()}
        for name, there in self.moved.items():
            found.setdefault(name, []).extend(there)
        last = problem.graph.tasks[self.tasks[-1]]
        for device, own in enumerate(self.pieces):
            for piece in own:
                task = problem.graph.task[piece.task]
                if task is last or not problem.graph.readers.get(task.outputs[0], ()):
                    for name in task.outputs:
                        region = piece.region if name == task.outputs[0] else (
                            problem.graph.tensors[name].whole)  # fmt: skip
                        found.setdefault(name, []).append((device, region))
        return found


def strips_of(
    problem: Problem, tasks: Sequence[int], cut: Cut, held: Held, block: int
) -> Strips | None:
    """The strips of a chain of tasks, each reading the one before; None if that cannot be: a task
    does not run on a device with a share, or two devices would compute the same.

    The last task is divided as ``cut`` says. Before it, each device computes what its own part is
    computed from.
    """
    graph = problem.graph
    last = graph.tasks[tasks[-1]]
    shares = parts(graph.output_of(last).whole, cut, block)
    pieces: list[tuple[Piece, ...]] = []
    seconds, moved = 0.0, dict[str, list[tuple[int, Region]]]()
    for device, region in enumerate(shares):
        if region is None:
            pieces.append(())
            continue
        own = _own(problem, tasks, region)
        compute_s = _compute_s(problem, tasks, own, device)
        if compute_s == math.inf or any(set(own) & set(other) for other in pieces):
            return None
        pieces.append(tuple(own))
        fetch_s = _fetch_s(problem, graph.tasks[tasks[0]], own[0].region, device, held, moved)
        seconds = max(seconds, fetch_s + compute_s)
    return Strips(tuple(tasks), cut, tuple(pieces), seconds, moved)


def _own(problem: Problem, tasks: Sequence[int], region: Region) -> list[Piece]:
    """The pieces of one device, from the first task to the last."""
    graph, found = problem.graph, list[Piece]()
    for number in reversed(tasks):
        task = graph.tasks[number]
        found.append(Piece(task.name, region))
        if number != tasks[0]:
            before = graph.tasks[tasks[tasks.index(number) - 1]]
            region = needed_inputs(graph, task, region)[before.outputs[0]]
    return found[::-1]


def _compute_s(problem: Problem, tasks: Sequence[int], own: Sequence[Piece], device: int) -> float:
    """One launch for all of them."""
    graph, place = problem.graph, problem.system.places[device]
    each_s = [
        problem.cost.piece_s(graph, graph.tasks[number], piece.region, place)
        for number, piece in zip(tasks, own, strict=True)
    ]
    if math.inf in each_s or math.inf in (problem.latency_s[number][device] for number in tasks):
        return math.inf
    return math.fsum(each_s) - (len(each_s) - 1) * problem.launches_s[device]


def _fetch_s(
    problem: Problem, task: Task, region: Region, device: int, held: Held,
    moved: dict[str, list[tuple[int, Region]]],
) -> float:  # fmt: skip
    """Seconds until a device has what it needs of others; noted in ``moved``."""
    graph = problem.graph
    copies_s, latency_s = 0.0, 0.0
    for name, needed in needed_inputs(graph, task, region).items():
        there = held.get(name, ())
        rest = missing(needed, [part for owner, part in there if owner == device])
        for owner, part in there:
            if owner == device or not rest:
                continue
            boxes = [box.overlap(part) for box in rest]
            items = sum(box.size for box in boxes)
            if not items:
                continue
            link = problem.links[owner][device]
            copies_s += problem.cost.transfer_s(items * graph.tensors[name].item_bytes, link)
            latency_s = max(latency_s, link.sync_latency_s)
            rest = tuple(left for box in rest for left in missing(box, [part]))
        if there and any(owner != device for owner, _ in there):
            moved.setdefault(name, []).append((device, needed))
    return copies_s + latency_s
