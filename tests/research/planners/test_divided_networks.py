"""How close divided plans of known networks come to dividing perfectly, on simulated processors."""

import math
from dataclasses import replace
from functools import cache
from itertools import permutations

import pytest

from coexec.graph.graph import Graph
from coexec.hardware.hardware import Link, System
from coexec.model.load import load
from coexec.plan.derive import derive
from coexec.planners import PLANNERS
from coexec.problem.problem import Problem
from coexec.research import platforms
from coexec.research.platforms.costs import PlatformCosts
from coexec.research.zoo import build
from coexec.timing.simulate import simulate


@cache
def graph_of(name: str) -> Graph:
    return load(build(name), digest=name).graph


def two_clusters() -> tuple[System, PlatformCosts]:
    """Of one chip, with one memory and the latency of waking a thread."""
    phone = platforms.load("snapdragon_855", ["cpu:4-7"])
    (cluster,), (rates,) = phone.system.devices, phone.cost.rates.values()
    names = ("cpu:0", "cpu:1")
    devices = tuple(replace(cluster, name=n, cores=(i,)) for i, n in enumerate(names))
    links = tuple(Link(a.place, b.place, 60e-6) for a, b in permutations(devices))
    system = System(devices, links)
    return system, PlatformCosts(dict.fromkeys(system.places, rates), {})


def perfect_s(graph: Graph, cost: PlatformCosts, system: System) -> float:
    """All devices at work all the time."""
    rows = zip(*Problem(graph, cost, system).latency_s, strict=True)
    return 1 / math.fsum(1 / math.fsum(row) for row in rows)


def shown_s(planner: str, graph: Graph, cost: PlatformCosts, system: System) -> float:
    plan = PLANNERS[planner](graph, cost, system)
    return simulate(derive(plan, graph), cost, system).makespan_s


PHONE = {
    "inception_v3": 0.85,
    "posenet": 0.9,
    "resnet34": 0.65,
    "retinaface": 0.9,
    "style_transfer": 0.9,
    "yolov2": 0.85,
}
"""Least share of perfect division on a phone. No figures of the paper: they are 0.02 to 0.05 below
what `codl` reached in November 2026 (0.88, 0.92, 0.68, 0.94, 0.93 and 0.89). On the Snapdragon 855
the paper's own plans reach 0.78 to 0.81 with retinaface, yolov2 and posenet; see "Share of perfect
division" in docs/measurements.md."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", PHONE)
def test_on_a_phone(name: str) -> None:
    """resnet34 has tasks of a millisecond, about what handing over to the CPU takes there."""
    phone, graph = platforms.load("snapdragon_855", ["cpu:4-7", "gpu:0/image"]), graph_of(name)
    found_s = shown_s("codl", graph, phone.cost, phone.system)
    assert found_s <= perfect_s(graph, phone.cost, phone.system) / PHONE[name]
    for other in ("mulayer", "heft", "hope_greedy"):
        assert found_s <= shown_s(other, graph, phone.cost, phone.system)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", PHONE)
def test_on_two_clusters(name: str) -> None:
    system, cost = two_clusters()
    graph = graph_of(name)
    # 0.01 below the worst in November 2026: resnet34 had 0.93, inception_v3 0.95, the others 0.99.
    assert shown_s("codl", graph, cost, system) <= perfect_s(graph, cost, system) / 0.92
