"""Figures of a plan for CoDL's tables (bytes moved and stored, chains), and inexact cost models.

Everything here is computed from a plan and a cost model; nothing runs.
"""

import hashlib
import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

from coexec.costs.base import AlteredCosts, CostModel
from coexec.graph.graph import Graph, Piece, Task
from coexec.graph.receptive import operator_regions
from coexec.graph.region import Region
from coexec.hardware.hardware import Place, System
from coexec.plan.derive import derive
from coexec.plan.plan import Plan
from coexec.plan.schedule import Schedule
from coexec.timing.simulate import simulate

__all__ = [
    "HEAVY",
    "ByMacs",
    "Chain",
    "Uncertain",
    "chains_of",
    "held_bytes",
    "moved_bytes",
    "on_engine",
    "sharing_s",
    "ways_of",
]

HEAVY = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "MaxPool", "AveragePool"})
"""First operators of the tasks that CoDL counts as operators of a chain."""
_WAYS = {0: "one processor", 1: "OC", 2: "H"}


class Chain(NamedTuple):
    """Consecutive operators between which the processors do not synchronise."""

    length: int
    ratio: float
    """The GPU's share of the output of the last operator."""


def moved_bytes(schedule: Schedule) -> int:
    """Bytes that move between devices."""
    return sum(transfer.size_bytes for transfer in schedule.transfers)


def held_bytes(schedule: Schedule) -> int:
    """Bytes that all devices of a plan store: the weights that each device needs, its results, and
    the data that it receives. Memory of tensors is not reused."""
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
    """The weights of a task, with the bytes of each that a part of the task needs."""
    regions = operator_regions(graph, task, region)
    for op, part in zip(task.operators, regions, strict=True):
        for name, read in zip(op.inputs, part.inputs, strict=True):
            if name in task.weights and read is not None:
                yield name, read.size * graph.tensors[name].item_bytes


def sharing_s(schedule: Schedule, cost: CostModel, system: System) -> float:
    """Seconds that a plan would save if copies, mappings and waits took no time."""
    links = tuple(
        replace(link, sync_latency_s=0.0, bandwidth_bytes_per_s=math.inf) for link in system.links
    )
    free = simulate(schedule, cost, replace(system, links=links)).makespan_s
    return simulate(schedule, cost, system).makespan_s - free


def on_engine(plan: Plan, engine: str, instead: str) -> Plan:
    """``plan`` with the engine ``engine`` replaced by the engine ``instead``."""
    engine_of = {p: instead if e == engine else e for p, e in plan.engine_of.items()}
    return replace(plan, engine_of=engine_of)


def ways_of(plan: Plan, graph: Graph) -> Mapping[str, float]:
    """The shares of convolutions that are divided by H, divided by OC, or run by one processor."""
    counts: Counter[str] = Counter()
    for task in graph.tasks:
        if task.operators[0].op_type in ("Conv", "ConvTranspose"):
            counts[_WAYS[_axis(graph, task, _pieces(plan, task))]] += 1
    return {
        dimension: counts[dimension] / max(1, counts.total())
        for dimension in ("H", "OC", "one processor")
    }


def chains_of(plan: Plan, graph: Graph) -> list[Chain]:
    """The chains of a network without branches, as CoDL's paper lists them: operators that a single
    processor runs form chains, too."""
    schedule = derive(plan, graph)
    fed = {
        (t.tensor, piece.task)
        for t in schedule.transfers
        for piece in schedule.segments[t.target].pieces
    }
    chains: list[Chain] = []
    before: tuple[int, frozenset[str]] | None = None
    for task in graph.tasks:
        pieces = _pieces(plan, task)
        division = _axis(graph, task, pieces), frozenset(pieces)
        shared = division != before or any((name, task.name) in fed for name in task.inputs)
        length = 0 if shared else chains.pop().length
        length += task.operators[0].op_type in HEAVY
        chains.append(Chain(length, _gpu_share(graph, task, pieces)))
        before = division
    return [chain for chain in chains if chain.length]


def _pieces(plan: Plan, task: Task) -> dict[str, Piece]:
    """The piece of a task that each device computes."""
    return {
        device: piece
        for device, order in plan.order.items()
        for piece in order
        if piece.task == task.name
    }


def _axis(graph: Graph, task: Task, pieces: Mapping[str, Piece]) -> int:
    """The axis along which the task is divided; 0 if one device computes the whole task."""
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
    """Costs for a planner that counts only multiply-accumulates: every convolution has the mean
    rate of the network on each processor, so all convolutions are divided with one ratio."""

    mac_s: Mapping[Place, float]
    """Seconds per multiply-accumulate, by place."""

    @classmethod
    def of(cls, graph: Graph, cost: CostModel, places: Iterable[Place]) -> Self:
        tasks = [task for task in graph.tasks if task.macs]
        macs = sum(task.macs for task in tasks)
        return cls(
            cost,
            {
                place: math.fsum(
                    cost.piece_s(graph, t, graph.output_of(t).whole, place) for t in tasks
                )
                / macs
                for place in places
            },
        )

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        if not task.macs:
            return self.base.piece_s(graph, task, region, place)
        share = region.size / max(1, graph.output_of(task).whole.size)
        return task.macs * share * self.mac_s[place]


@dataclass(frozen=True)
class Uncertain(AlteredCosts):
    """Costs for a planner with an inexact predictor. The error of a task on a processor is a factor
    from a log-normal distribution, equal for all parts of the task."""

    spread: float
    """Standard deviation of the factor's logarithm."""
    draw: int
    """The seed of the factors."""

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        text = f"{self.draw} {place} {task.signature}"
        drawn = random.Random(hashlib.sha256(text.encode()).digest()).gauss(0.0, self.spread)
        return math.exp(drawn) * self.base.piece_s(graph, task, region, place)
