"""CoDL's planner: shares, chains, and what it costs to share."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from coexec.costs.base import PartSeconds
from coexec.errors import UsageError
from coexec.graph.graph import Graph, Task
from coexec.graph.region import Region
from coexec.graph.stitch import missing
from coexec.graph.task_samples import TaskParts
from coexec.hardware.hardware import Device, Link, Place, System
from coexec.model.load import load
from coexec.plan.derive import derive
from coexec.plan.plan import Plan
from coexec.planners import PLANNERS
from coexec.planners.methods.splitting.climb import tried_cuts
from coexec.planners.methods.splitting.placed import Sharing
from coexec.planners.methods.splitting.shares import Cut, parts, ratios
from coexec.planners.methods.splitting.walk import Reached
from coexec.problem.problem import Problem
from coexec.timing.simulate import simulate
from tests.helpers.onnx_models import direct, tensor
from tests.helpers.small_models import branches


@dataclass(frozen=True)
class Proportional:
    """Costs in proportion to the share, at so many elements a second, and a launch."""

    rates: dict[str, float]
    launch: float = 0.0
    stitch_byte_s: float = 0.0
    stitch_tensor_s: float = 0.0
    join_byte_s: float = 0.0
    dear: str = ""
    """The tensor of which each byte takes a millisecond to be handed over."""

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        return region.size / self.rates[place.device] + self.launch

    def parts_s(self, parts: TaskParts, place: Place) -> PartSeconds:
        return lambda task, region: self.piece_s(parts.graph, task, region, place)

    def launch_s(self, place: Place) -> float:
        return self.launch

    def stitch_s(self, tensor: str, size_bytes: int, own_bytes: int, place: Place) -> float:
        return self.stitch_tensor_s + size_bytes * self.stitch_byte_s

    def join_s(self, size_bytes: int) -> float:
        return size_bytes * self.join_byte_s

    def transfer_s(self, tensor: str, size_bytes: int, link: Link) -> float:
        return link.copy_s(size_bytes) + (1e-3 * size_bytes if tensor == self.dear else 0.0)


def chain_model(length: int, size: int = 40) -> Graph:
    names = ["x", *(f"t{i}" for i in range(length))]
    weights = {"w": np.ones((16, 16, 3, 3), np.float32)}
    nodes = [
        helper.make_node("Conv", [a, "w"], [b], name=b, pads=[1, 1, 1, 1])
        for a, b in pairwise(names)
    ]
    return direct(nodes, [tensor("x", (1, 16, size, size))], [names[-1]], weights).graph


def system(count: int, latency_s: float = 0.0, bandwidth: float = math.inf) -> System:
    devices = [Device(f"null:{i}", "null") for i in range(count)]
    pairs = permutations([device.place for device in devices], 2)
    return System(tuple(devices), tuple(Link(a, b, latency_s, bandwidth) for a, b in pairs))


def all_ratios(devices: int, steps: int) -> list[tuple[int, ...]]:
    return list(ratios(steps, [range(steps + 1)] * devices, range(steps, -1, -1)))


def shares(plan: Plan, task: str) -> dict[str, Region]:
    return {d: p.region for d, order in plan.order.items() for p in order if p.task == task}


@given(st.integers(1, 4), st.integers(1, 12), st.integers(1, 70), st.sampled_from([1, 4, 16]))
@settings(deadline=None)
def test_parts_cover_the_whole_once(devices: int, steps: int, size: int, block: int) -> None:
    whole = Region.whole((1, size, 3, 3))
    for given_steps in all_ratios(devices, steps):
        found = [p for p in parts(whole, Cut(1, given_steps, block)) if p is not None]
        assert not missing(whole, found) and sum(p.size for p in found) == whole.size
        assert all(p.start[1] % block == 0 for p in found)
        assert all(p.size for p in found)


def test_ratios_are_all_there_are() -> None:
    assert len(all_ratios(2, 10)) == 11 and len(set(all_ratios(3, 10))) == 66


@pytest.mark.parametrize("dimension", ["H", "OC", "hybrid"])
def test_sharing_that_costs_nothing_is_proportional(dimension: str) -> None:
    graph, cost = chain_model(3), Proportional({"null:0": 3e6, "null:1": 2e6})
    plan = PLANNERS["codl"](
        graph, cost, system(2), dimension=dimension, chains=False, channel_block=1
    )
    axis = 1 if dimension == "OC" else 2
    for task in graph.tasks:
        found = shares(plan, task.name)
        if dimension != "hybrid":
            assert found["null:0"].shape[axis] / graph.output_of(task).shape[axis] == (
                pytest.approx(0.6, abs=0.05)
            )
    whole_s = sum(graph.output_of(t).whole.size for t in graph.tasks) / 5e6
    assert plan.provenance.predicted_s == pytest.approx(whole_s, rel=0.08)


def test_a_climb_gives_no_step_to_a_second_device_of_a_processor() -> None:
    """Devices 0 and 1 are one processor; the fastest of it counts. The last device ends last."""
    own = system(3).devices
    where = System((replace(own[0], engine=replace(own[0].engine, name="b")), *own))
    cost = Proportional(dict.fromkeys(where.names, 1e6))
    problem = Problem(chain_model(1), cost, where)
    state = Reached((0.0, 0.0, 0.0, 1.0), {}, {}, processors=problem.processors)
    cuts = list(tried_cuts(Sharing(problem, 10, 1), 0, "H", state))
    assert [cut.steps[3] for cut in cuts[:4]] == [3, 2, 1, 0]
    assert not any(cut.steps[0] and cut.steps[1] for cut in cuts)


def test_waiting_for_each_other_makes_chains() -> None:
    """Each hand-over costs a latency: with chains there are fewer of them."""
    graph, cost = chain_model(8), Proportional({"null:0": 1e6, "null:1": 1e6})
    both = system(2, latency_s=2e-3)
    apart = PLANNERS["codl"](graph, cost, both, dimension="H", chains=False)
    chained = PLANNERS["codl"](graph, cost, both, dimension="H")
    assert (chained.provenance.predicted_s or 0) < (apart.provenance.predicted_s or 0)
    assert len(derive(chained, graph).segments) < len(derive(apart, graph).segments)
    elements = sum(piece.region.size for order in chained.order.values() for piece in order)
    assert elements > sum(graph.output_of(t).whole.size for t in graph.tasks), "halos are computed"


def test_sharing_that_is_too_dear_is_left(branch_graph: Graph) -> None:
    cost = Proportional({"null:0": 1e9, "null:1": 1e8})
    plan = PLANNERS["codl"](branch_graph, cost, system(2, latency_s=1.0))
    assert plan.used == ("null:0",)


@pytest.fixture(scope="module")
def branch_graph() -> Graph:
    return load(branches()).graph


@pytest.mark.parametrize(("devices", "tasks", "steps"), [(2, 3, 16), (2, 301, 10), (3, 3, 10)])
def test_shares_are_finer_where_there_is_time(devices: int, tasks: int, steps: int) -> None:
    speeds = {f"null:{device}": 1.0 for device in range(devices)}
    plan = PLANNERS["codl"](chain_model(tasks), Proportional(speeds), system(devices))
    assert plan.provenance.options["steps"] == steps
    given = PLANNERS["codl"](chain_model(3), Proportional(speeds), system(devices), steps=7)
    assert given.provenance.options["steps"] == 7


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dimension": "W"}, "hybrid, H, OC"),
        ({"steps": -1}, "at least 1"),
        ({"delta": -0.1}, "at least 0"),
    ],
)
def test_options_out_of_range(options: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        PLANNERS["codl"](chain_model(1), Proportional({"null:0": 1.0}), system(1), **options)


def test_what_lies_side_by_side_need_not_be_put_together() -> None:
    """Where only putting rows together costs something, tasks are divided by channels."""
    graph = chain_model(6)
    cost = Proportional({"null:0": 1e6, "null:1": 1e6}, stitch_byte_s=1e-7)
    plan = PLANNERS["codl"](graph, cost, system(2), chains=False, channel_block=8)
    schedule = derive(plan, graph)
    assert not any(schedule.stitched(segment) for segment in schedule.segments)
    rows = derive(PLANNERS["codl"](graph, cost, system(2), chains=False, dimension="H"), graph)
    assert any(rows.stitched(segment) for segment in rows.segments)
    free = Proportional({"null:0": 1e6, "null:1": 1e6})
    each = Proportional({"null:0": 1e6, "null:1": 1e6}, stitch_tensor_s=1e-3)
    bytes_s, tensors_s, free_s = (
        simulate(rows, c, system(2)).makespan_s for c in (cost, each, free)
    )
    assert min(bytes_s, tensors_s) > free_s


def test_an_output_is_divided_only_if_joining_it_costs_less_than_it_saves() -> None:
    graph, rates = chain_model(2), {"null:0": 1e6, "null:1": 1e6}
    free, dear = Proportional(rates), Proportional(rates, join_byte_s=1e-6)
    plan, kept = (PLANNERS["codl"](graph, cost, system(2)) for cost in (free, dear))
    first, last = (task.name for task in graph.tasks)
    assert len(shares(plan, last)) == 2
    assert len(shares(kept, last)) == 1 and len(shares(kept, first)) == 2
    joined_s, free_s = (
        simulate(derive(plan, graph), cost, system(2)).makespan_s for cost in (dear, free)
    )
    size_bytes = graph.tensors[graph.outputs[0]].size_bytes
    assert joined_s - free_s == pytest.approx(size_bytes * 1e-6)


def test_a_tensor_that_is_dear_to_hand_over_stays_where_it_is() -> None:
    """As one does whose layout would have to be changed. All others are handed over as before."""
    graph, rates = chain_model(6), {"null:0": 1e6, "null:1": 1e6}
    options = {"chains": False, "dimension": "H"}
    cheap, dear = Proportional(rates), Proportional(rates, dear="t2")
    moved = {
        cost.dear: {t.tensor for t in derive(plan, graph).transfers}
        for cost in (cheap, dear)
        for plan in [PLANNERS["codl"](graph, cost, system(2), **options)]
    }
    assert moved[""] == {"t0", "t1", "t2", "t3", "t4"} and "t2" not in moved["t2"] != set()
    plan = PLANNERS["codl"](graph, dear, system(2))
    assert simulate(derive(plan, graph), dear, system(2)).makespan_s < 0.6 * 6 * 0.0256
    assert "t2" not in {t.tensor for t in derive(plan, graph).transfers}
