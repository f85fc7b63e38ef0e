"""Random pipeline plans of random graphs, and clusters to run them on."""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import strategies as st
from onnx import helper

from coexec.costs.capacity import Capacity, CapacityCosts
from coexec.graph.graph import Graph
from coexec.graph.receptive import splittable_axes
from coexec.graph.region import Region
from coexec.hardware.hardware import System
from coexec.pipeline.network import NetworkKind, connected, machine
from coexec.pipeline.plan.plan import PipelinePlan, Share, Stage, stage_outputs
from coexec.plan.plan import Provenance
from coexec.plan.schedule import TaskRegion
from tests.helpers.onnx_models import direct, tensor

Draw = Callable[[st.SearchStrategy[Any]], Any]
NETWORKS: tuple[NetworkKind, ...] = ("ports", "half-duplex ports", "shared")


def cluster(
    capacities: Sequence[float],
    bandwidth: float = 1e6,
    network: NetworkKind = "ports",
    latency_s: float = 0.0,
) -> tuple[CapacityCosts, System]:
    """Costs and system of machines "A", "B", ... with these capacities in FLOP/s."""
    names = [chr(ord("A") + i) for i in range(len(capacities))]
    system = connected([machine(name) for name in names], bandwidth, network, latency_s)
    costs = {n: Capacity(c) for n, c in zip(names, capacities, strict=True)}
    return CapacityCosts(costs), system


@st.composite
def pipeline_plans(draw: Draw, graph: Graph, machines: Sequence[str]) -> PipelinePlan:
    """Plans with random stages, outputs that are cut along random axes, and random machines."""
    names = [task.name for task in graph.tasks]
    inner = draw(st.sets(st.integers(1, max(1, len(names) - 1)), max_size=3))
    edges = sorted({0, len(names), *(i for i in inner if i < len(names))})
    groups = [tuple(names[a:b]) for a, b in pairwise(edges)]
    bare = [Stage(group, machines[0], ()) for group in groups]
    stages = []
    for index, group in enumerate(groups):
        chosen = draw(st.lists(st.sampled_from(machines), min_size=1, unique=True))
        parts: dict[str, list[TaskRegion]] = {name: [] for name in chosen}
        for output in stage_outputs(graph, bare, index):
            for where, region in zip(
                chosen, _regions(draw, graph, output, len(chosen)), strict=False
            ):
                parts[where].append((output, region))
        shares = tuple(Share(name, tuple(outputs)) for name, outputs in parts.items() if outputs)
        leader = draw(st.sampled_from(machines))
        exchange = draw(st.sampled_from(["leader", "neighbours"]))
        stages.append(Stage(group, leader, shares, exchange))
    return PipelinePlan(graph.fingerprint, tuple(stages), Provenance("by hand"))


def _regions(draw: Draw, graph: Graph, name: str, count: int) -> list[Region]:
    """At most ``count`` disjoint regions that cover a tensor."""
    task, whole = graph.producer[name], graph.tensors[name].whole
    axes = splittable_axes(graph, task) if name == task.outputs[0] else ()
    if not axes or count == 1:
        return [whole]
    axis = draw(st.sampled_from(axes))
    size = whole.stop[axis]
    inner = draw(st.sets(st.integers(1, size - 1), max_size=count - 1)) if size > 1 else set()
    edges = [0, *sorted(inner), size]
    return [whole.with_axis(axis, a, b) for a, b in pairwise(edges)]


def chain(count: int = 2, size: int = 8) -> Graph:
    """A chain of ``count`` 3x3 convolutions with one channel."""
    nodes = [
        helper.make_node("Conv", [f"t{i}", f"w{i}"], [f"t{i + 1}"], name=f"c{i}", pads=[1] * 4)
        for i in range(count)
    ]
    weights = {f"w{i}": np.ones((1, 1, 3, 3), np.float32) for i in range(count)}
    return direct(nodes, [tensor("t0", (1, 1, size, size))], [f"t{count}"], weights).graph


def rows(start: int, stop: int, size: int = 8) -> Region:
    return Region((0, 0, start, 0), (1, 1, stop, size))


def halves() -> tuple[Graph, PipelinePlan]:
    """Two stages of one convolution each: A and B compute halves of the first, C the second."""
    graph = chain()
    shares = Share("A", (("t1", rows(0, 4)),)), Share("B", (("t1", rows(4, 8)),))
    stages = (
        Stage(("c0",), "A", shares),
        Stage(("c1",), "C", (Share("C", (("t2", rows(0, 8)),)),)),
    )
    return graph, PipelinePlan(graph.fingerprint, stages, Provenance("by hand"))
