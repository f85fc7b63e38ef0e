"""What CoDL's tables say of a plan: bytes moved and held, chains, its joules; and costs to plan by
that are less than known.

Everything here is calculated, from a plan and a cost model; nothing runs.
"""

import hashlib
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from coexec.costs.base import AlteredCosts, CostModel
from coexec.ir.graph import Graph, Piece, Task
from coexec.ir.receptive import operator_regions
from coexec.ir.region import Region
from coexec.plans.derive import derive
from coexec.plans.plan import Plan
from coexec.plans.schedule import Schedule
from coexec.system.hardware import Place, System
from coexec.timing.simulate import simulate

__all__ = [
    "HEAVY", "ByMacs", "Chain", "Uncertain", "chains_of", "held_bytes", "moved_bytes", "on_engine",
    "sharing_s", "ways_of",
]  # fmt: skip

HEAVY = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "MaxPool", "AveragePool"})
"""First operators of the tasks that CoDL counts as operators of a chain."""
_WAYS = {0: "one processor", 1: "OC", 2: "H"}


class Chain(NamedTuple):
    """Consecutive operators between which no processor waits for the other."""

    length: int
    ratio: float
    """The GPU's share of what the last of them computes."""


def moved_bytes(schedule: Schedule) -> int:
    """Bytes that one device makes and another reads."""
    return sum(transfer.size_bytes for transfer in schedule.transfers)


def held_bytes(schedule: Schedule) -> int:
    """Bytes of all that the devices of a plan hold: the weights that each needs, what each computes
    and what each receives. No tensor takes the memory of another one that is done with."""
    graph, weights = schedule.graph, dict[tuple[str, str], int]()
    activations = moved_bytes(schedule)
    for segment in schedule.segments:
        for piece in segment.pieces:
            task = graph.task[piece.task]
            activations += piece.region.size * graph.output_of(task).item_bytes
            for name, size in _weights(graph, task, piece.region):
                key = segment.device, name
                weights[key] = max(weights.get(key, 0), size)
    return activations + sum(weights.values())


def _weights(graph: Graph, task: Task, region: Region) -> Iterable[tuple[str, int]]:
    """The weights of a task, with the bytes that a part of it needs of each."""
    regions = operator_regions(graph, task, region)
    for op, part in zip(task.operators, regions, strict=True):
        for name, read in zip(op.inputs, part.inputs, strict=True):
            if name in task.weights and read is not None:
                yield name, read.size * graph.tensors[name].item_bytes


def sharing_s(schedule: Schedule, cost: CostModel, system: System) -> float:
    """Seconds that a plan would be shorter if nothing had to be copied, mapped or waited for."""
    links = tuple(replace(link, sync_latency_s=0.0, bandwidth_bytes_per_s=math.inf)
                  for link in system.links)  # fmt: skip
    free = simulate(schedule, cost, replace(system, links=links)).makespan_s
    return simulate(schedule, cost, system).makespan_s - free


def on_engine(plan: Plan, engine: str, instead: str) -> Plan:
    """``plan`` with all that ``engine`` computes computed by the engine ``instead``."""
    engine_of = {p: instead if e == engine else e for p, e in plan.engine_of.items()}
    return replace(plan, engine_of=engine_of)


def ways_of(plan: Plan, graph: Graph) -> Mapping[str, float]:
    """Of the convolutions, the share that is divided by H, by OC, and that one processor runs."""
    found: Counter[str] = Counter()
    for task in graph.tasks:
        if task.operators[0].op_type in ("Conv", "ConvTranspose"):
            found[_WAYS[_axis(graph, task, _pieces(plan, task))]] += 1
    return {way: found[way] / max(1, found.total()) for way in ("H", "OC", "one processor")}


def chains_of(plan: Plan, graph: Graph) -> list[Chain]:
    """The chains of a network without branches, as CoDL's paper lists them: also operators that one
    processor runs are chained."""
    schedule = derive(plan, graph)
    fed = {(t.tensor, piece.task) for t in schedule.transfers
           for piece in schedule.segments[t.target].pieces}  # fmt: skip
    found: list[Chain] = []
    before: tuple[int, frozenset[str]] | None = None
    for task in graph.tasks:
        pieces = _pieces(plan, task)
        way = _axis(graph, task, pieces), frozenset(pieces)
        shared = way != before or any((name, task.name) in fed for name in task.inputs)
        length = 0 if shared else found.pop().length
        length += task.operators[0].op_type in HEAVY
        found.append(Chain(length, _gpu_share(graph, task, pieces)))
        before = way
    return [chain for chain in found if chain.length]


def _pieces(plan: Plan, task: Task) -> dict[str, Piece]:
    """By device, what it computes of a task."""
    return {device: piece for device, order in plan.order.items() for piece in order
            if piece.task == task.name}  # fmt: skip


def _axis(graph: Graph, task: Task, pieces: Mapping[str, Piece]) -> int:
    """Along which the task is divided; 0 where one device computes all of it."""
    shape = graph.output_of(task).shape
    parts = [piece.region.shape for piece in pieces.values()]
    if len(parts) == 1:
        return 0
    axes = range(1, min(3, len(shape)))
    return next((axis for axis in axes if any(part[axis] < shape[axis] for part in parts)), 0)


def _gpu_share(graph: Graph, task: Task, pieces: Mapping[str, Piece]) -> float:
    own = sum(p.region.size for device, p in pieces.items() if device.startswith("gpu"))
    return own / max(1, graph.output_of(task).whole.size)


@dataclass(frozen=True)
class ByMacs(AlteredCosts):
    """What a planner believes that only counts multiply-accumulates: the mean rate of the network
    on each processor for every convolution, so that all of them are divided at one ratio."""

    mac_s: Mapping[Place, float]
    """By place, seconds of a multiply-accumulate."""

    @classmethod
    def of(cls, graph: Graph, cost: CostModel, places: Iterable[Place]) -> Self:
        tasks = [task for task in graph.tasks if task.macs]
        macs = sum(task.macs for task in tasks)
        return cls(cost, {
            place: math.fsum(cost.piece_s(graph, t, graph.output_of(t).whole, place) for t in tasks)
            / macs for place in places
        })  # fmt: skip

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        if not task.macs:
            return self.base.piece_s(graph, task, region, place)
        share = region.size / max(1, graph.output_of(task).whole.size)
        return task.macs * share * self.mac_s[place]


@dataclass(frozen=True)
class Uncertain(AlteredCosts):
    """What a planner believes whose predictor is off by a factor for each task on each processor,
    drawn from a log-normal distribution and the same for all parts of the task."""

    spread: float
    """Standard deviation of the factor's logarithm."""
    draw: int
    """The seed."""

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        text = f"{self.draw} {place} {task.signature}"
        drawn = random.Random(hashlib.sha256(text.encode()).digest()).gauss(0.0, self.spread)
        return math.exp(drawn) * self.base.piece_s(graph, task, region, place)
