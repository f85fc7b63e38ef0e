"""Bytes that each machine of a pipeline plan needs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from coexec.graph.graph import Graph
from coexec.graph.receptive import needed_inputs
from coexec.pipeline.plan.plan import PipelinePlan, boundary, stage_outputs
from coexec.pipeline.plan.work import share_strip
from coexec.pipeline.strip import Strip


class MachineMemory(NamedTuple):
    """Memory that one machine needs."""

    weight_bytes: int
    """Weights of the tasks in its shares, each tensor once."""
    feature_bytes: int
    """Parts of feature maps that are alive at the same time, for one frame in each stage."""

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.feature_bytes


def machine_memory(graph: Graph, plan: PipelinePlan) -> Mapping[str, MachineMemory]:
    """Memory that each machine needs, by machine.

    Each stage of a machine may compute a different frame, so the feature maps of its stages add up;
    with one frame at a time, only the largest counts. A leader of several shares also holds all
    inputs and outputs of its stage. Frames that wait in queues are not counted.
    """
    weights: dict[str, set[str]] = {name: set() for name in plan.machines}
    features: dict[str, list[int]] = {name: [] for name in plan.machines}
    for index, stage in enumerate(plan.stages):
        for number, share in enumerate(stage.shares):
            strip = share_strip(graph, stage, number)
            features[share.machine].append(_peak_bytes(graph, strip))
            for piece in strip.pieces:
                weights[share.machine].update(graph.task[piece.task].weights)
        if len(stage.shares) > 1:
            names = dict.fromkeys(
                (*boundary(graph, plan.stages, index), *stage_outputs(graph, plan.stages, index))
            )
            boundary_bytes = sum(graph.tensors[name].size_bytes for name in names)
            features[stage.leader].append(boundary_bytes)
    gathered = max if plan.at_once == 1 else sum
    return {
        name: MachineMemory(
            sum(graph.tensors[weight].size_bytes for weight in weights[name]),
            gathered(features[name]) if features[name] else 0,
        )
        for name in plan.machines
    }


def _peak_bytes(graph: Graph, strip: Strip) -> int:
    """The most bytes of parts that are alive at the same time, while the pieces run one by one."""
    made = {graph.task[piece.task].outputs[0]: piece.region for piece in strip.pieces}
    regions = dict(strip.reads) | made
    last = _last_reads(graph, strip)
    kept = {name for name, _ in strip.writes}

    def size(name: str) -> int:
        return regions[name].size * graph.tensors[name].item_bytes

    alive = {name for name, _ in strip.reads}
    alive_bytes = peak = sum(map(size, alive))
    for step, piece in enumerate(strip.pieces):
        output = graph.task[piece.task].outputs[0]
        alive_bytes += size(output)
        alive.add(output)
        peak = max(peak, alive_bytes)
        for name in [n for n in alive if last.get(n, -1) <= step and n not in kept]:
            alive_bytes -= size(name)
            alive.discard(name)
    return peak


def _last_reads(graph: Graph, strip: Strip) -> Mapping[str, int]:
    """Index of the last piece that reads a tensor, by tensor."""
    last_reads: dict[str, int] = {}
    for step, piece in enumerate(strip.pieces):
        names: Sequence[str] = graph.task[piece.task].inputs
        needed = needed_inputs(graph, graph.task[piece.task], piece.region)
        last_reads |= {name: step for name in names if needed[name].size}
    return last_reads
