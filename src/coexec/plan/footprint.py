"""The least memory that the pieces of a plan need: their weights, and the tensors of the largest
piece.

Intermediate tensors that live longer need more memory on top.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from coexec.errors import InfeasibleError
from coexec.graph.graph import Graph, Piece, Task
from coexec.graph.receptive import needed_inputs, operator_regions
from coexec.graph.region import Region
from coexec.hardware.hardware import Memory, Place, System
from coexec.units import format_bytes


class _Footprint(NamedTuple):
    """Weights and tensors of a piece."""

    weights: Mapping[str, frozenset[Region]]
    """Regions that the piece reads, by weight."""
    beside_bytes: int
    """Bytes of its inputs and outputs."""


def task_bytes(graph: Graph, task: Task) -> int:
    """Bytes that must lie in a device's memory while it runs a task: weights, inputs, outputs."""
    weights, beside_bytes = _footprint(graph, graph.whole_piece(task))
    return beside_bytes + _weights_bytes(graph, [weights])


def verify_memory(placed: Mapping[Piece, Place], graph: Graph, system: System) -> None:
    """Refuse pieces whose weights, with the tensors of the largest piece, are larger than their
    memory.

    Raises:
        InfeasibleError: a memory cannot hold the pieces that are placed there.
    """
    by_memory: dict[Memory, list[Piece]] = {}
    for piece, place in placed.items():
        by_memory.setdefault(system.at[place].memory, []).append(piece)
    for memory, pieces in by_memory.items():
        limits = {
            device.name: device.engine.memory_bytes
            for device in system.devices
            if device.memory == memory and device.engine.memory_bytes is not None
        }
        if not limits:
            continue
        footprints = {piece: _footprint(graph, piece) for piece in pieces}
        weights_bytes = _weights_bytes(graph, (each.weights for each in footprints.values()))
        largest = max(footprints, key=lambda piece: footprints[piece].beside_bytes)
        needed = weights_bytes + footprints[largest].beside_bytes
        available = max(limits.values())
        if needed > available:
            raise InfeasibleError(
                f"the plan puts {format_bytes(needed)} into the memory of "
                f"{', '.join(limits)}, which has {format_bytes(available)}: "
                f"weights of {len({piece.task for piece in pieces})} tasks and the tensors of "
                f"{largest.task!r}; pin tasks to devices with another memory, or take a smaller "
                f"model or input"
            )


def _footprint(graph: Graph, piece: Piece) -> _Footprint:
    task = graph.task[piece.task]
    output = graph.output_of(task)
    if piece == graph.whole_piece(task):
        whole = {name: frozenset((graph.tensors[name].whole,)) for name in task.weights}
        names = dict.fromkeys((*task.inputs, *task.outputs))
        return _Footprint(whole, sum(graph.tensors[name].size_bytes for name in names))
    if not piece.region.size:
        return _Footprint({}, 0)
    read: dict[str, set[Region]] = {}
    cuts = operator_regions(graph, task, piece.region)
    for op, cut in zip(task.operators, cuts, strict=True):
        for name, region in zip(op.inputs, cut.inputs, strict=True):
            if name in task.weights and region is not None:
                read.setdefault(name, set()).add(region)
    needed = needed_inputs(graph, task, piece.region)
    beside_bytes = sum(_bytes(graph, name, region) for name, region in needed.items())
    parts = {name: frozenset(regions) for name, regions in read.items()}
    return _Footprint(parts, beside_bytes + _bytes(graph, output.name, piece.region))


def _weights_bytes(graph: Graph, read: Iterable[Mapping[str, frozenset[Region]]]) -> int:
    """Bytes of the weights that several pieces read. The same region counts once, and each weight
    at most as a whole."""
    parts: dict[str, set[Region]] = {}
    for each in read:
        for name, regions in each.items():
            parts.setdefault(name, set()).update(regions)
    return sum(
        min(graph.tensors[name].size_bytes, sum(_bytes(graph, name, r) for r in regions))
        for name, regions in parts.items()
    )


def _bytes(graph: Graph, name: str, region: Region) -> int:
    return region.size * graph.tensors[name].item_bytes
