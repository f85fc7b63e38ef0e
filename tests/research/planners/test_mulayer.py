"""uLayer's planner: output channels, and whole branches; and what codl has in common with it."""

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from coexec.errors import UsageError
from coexec.graph.graph import Graph, Task
from coexec.graph.region import Region
from coexec.graph.stitch import missing
from coexec.hardware.hardware import Place, System
from coexec.model.load import load
from coexec.model.model import Model
from coexec.plan.derive import derive
from coexec.plan.plan import Plan
from coexec.planners import PLANNERS
from coexec.planners.methods.splitting.branches import distributed, forks
from coexec.planners.methods.splitting.placed import Sharing
from coexec.planners.methods.splitting.shares import axis_of
from coexec.planners.methods.splitting.strips import RegionsByTask, StripRegions, Strips
from coexec.planners.methods.splitting.walk import Reached, quickest
from coexec.problem.problem import Problem
from coexec.timing.simulate import simulate
from tests.helpers.examples import scaled
from tests.helpers.network_cases import networks
from tests.helpers.onnx_models import direct, tensor
from tests.helpers.small_models import branches
from tests.planners.test_codl import Proportional, chain_model, shares, system

RATES = st.lists(st.floats(1e4, 1e6), min_size=1, max_size=3)
LATENCIES = st.sampled_from([0.0, 1e-5, 1e-3])
BANDWIDTHS = st.sampled_from([math.inf, 1e7])


def costs(names: tuple[str, ...], rates: list[float], launch: float = 0.0) -> Proportional:
    return Proportional(dict(zip(names, rates, strict=True)), launch)


def simulated_s(plan: Plan, graph: Graph, *case: object) -> float:
    cost, where = case
    return simulate(derive(plan, graph), cost, where).makespan_s  # type: ignore[arg-type]


@given(networks(), RATES, LATENCIES, BANDWIDTHS, st.sampled_from([1, 2, 4]))
@settings(max_examples=scaled(10), deadline=None)
def test_each_output_is_computed_once_and_cut_along_channels(
    model: Model, rates: list[float], latency_s: float, bandwidth: float, block: int
) -> None:
    graph, where = model.graph, system(len(rates), latency_s, bandwidth)
    plan = PLANNERS["mulayer"](graph, costs(where.names, rates), where, channel_block=block)
    for task in graph.tasks:
        whole = graph.output_of(task).whole
        regions = list(shares(plan, task.name).values())
        assert sum(region.size for region in regions) == whole.size
        assert not missing(whole, regions)
        channels = axis_of(graph, task, "OC")
        for region in regions:
            cut = {a for a in range(len(whole.stop)) if region.shape[a] != whole.shape[a]}
            assert cut <= {channels}
            assert region == whole or region.start[channels or 0] % block == 0


@pytest.mark.parametrize("name", ["codl", "mulayer"])
@given(networks(), RATES, LATENCIES, BANDWIDTHS, st.sampled_from([0.0, 1e-4]))
@settings(max_examples=scaled(10), deadline=None)
def test_never_slower_than_one_device(
    name: str, model: Model, rates: list[float], latency_s: float, bandwidth: float, launch: float
) -> None:
    graph, where = model.graph, system(len(rates), latency_s, bandwidth)
    cost = costs(where.names, rates, launch)
    plan = PLANNERS[name](graph, cost, where)
    found_s = simulated_s(plan, graph, cost, where)
    wholes = {graph.whole_piece(task) for task in graph.tasks}
    if not wholes.issuperset(plan.device_of):  # what divides nothing promises as other planners do
        assert found_s == pytest.approx(plan.provenance.predicted_s)
    for device in where.names:
        alone = PLANNERS["single"](graph, cost, where, device=device)
        assert found_s <= simulated_s(alone, graph, cost, where) * (1 + 1e-9)


def parallel(count: int, length: int = 2, channels: int = 8) -> Graph:
    """``count`` equal branches of so many convolutions behind one, joined by Concat."""
    weights = {"w": np.ones((channels, channels, 3, 3), np.float32)}
    ends, nodes = [], [_conv("x", "stem")]
    for b in range(count):
        names = ["stem", *(f"b{b}.{i}" for i in range(length))]
        nodes += [_conv(a, z) for a, z in pairwise(names)]
        ends.append(names[-1])
    nodes.append(helper.make_node("Concat", ends, ["y"], "join", axis=1))
    return direct(nodes, [tensor("x", (1, channels, 16, 16))], ["y"], weights).graph


def _conv(source: str, name: str) -> object:
    return helper.make_node("Conv", [source, "w"], [name], name, pads=[1] * 4)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_equal_branches_on_equal_devices_go_one_to_each(count: int) -> None:
    graph, where = parallel(count), system(count, latency_s=1e-3)
    plan = PLANNERS["mulayer"](graph, costs(where.names, [1e5] * count), where)
    device_of = {piece.task: device for device, own in plan.order.items() for piece in own}
    used = [{device_of[f"b{b}.{i}"] for i in range(2)} for b in range(count)]
    assert all(len(devices) == 1 for devices in used)
    assert len(set.union(*used)) == count


def test_many_branches_are_shared_out_evenly() -> None:
    """More ways than are tried: the longest first."""
    graph, where = parallel(12), system(3, latency_s=1e-3)
    plan = PLANNERS["mulayer"](graph, costs(where.names, [1e5] * 3), where)
    device_of = {piece.task: device for device, own in plan.order.items() for piece in own}
    counts = Counter(device_of[f"b{b}.0"] for b in range(12))
    assert sorted(counts.values()) == [4, 4, 4]


def test_branches_are_divided_where_that_is_quicker() -> None:
    """One branch is nearly all of the work, and handing over costs nothing."""
    nodes = [
        _conv("x", "stem"),
        *(_conv(a, b) for a, b in pairwise(["stem", "a", "b", "c"])),
        helper.make_node("Relu", ["stem"], ["d"], "d"),
        helper.make_node("Concat", ["c", "d"], ["y"], "join", axis=1),
    ]
    weights = {"w": np.ones((8, 8, 3, 3), np.float32)}
    graph = direct(nodes, [tensor("x", (1, 8, 16, 16))], ["y"], weights).graph
    where = system(2)
    plan = PLANNERS["mulayer"](graph, costs(where.names, [1e5, 1e5]), where, channel_block=4)
    assert len(shares(plan, "b")) == 2


def test_parts_are_whole_blocks_of_every_engine() -> None:
    """Else they change their layout where they are handed over."""
    graph, where = parallel(1, length=4, channels=48), system(2)
    plan = PLANNERS["mulayer"](graph, costs(where.names, [1e5, 1.2e5]), where)
    found = [shares(plan, f"b0.{i}") for i in range(4)]
    assert all(len(regions) == 2 for regions in found)
    assert {r.start[1] for regions in found for r in regions.values()} <= {0, 16, 32}


def test_a_latency_that_nothing_pays_for_leaves_one_device() -> None:
    """Or a chain of all tasks, in which nothing is handed over."""
    for graph in (parallel(3), chain_model(3)):
        where = system(2, latency_s=1e6)
        cost = costs(where.names, [1e5, 1e5])
        assert len(PLANNERS["mulayer"](graph, cost, where).used) == 1
        assert len(PLANNERS["codl"](graph, cost, where, chains=False).used) == 1
        assert not derive(PLANNERS["codl"](graph, cost, where), graph).transfers


def test_forks_are_branches_that_do_not_read_each_other() -> None:
    graph, where = parallel(3), system(1)
    problem = Problem(graph, costs(where.names, [1.0]), where)
    (found,) = forks(problem)[1]
    assert found.tasks == range(1, 7) and found.branches == ((1, 2), (3, 4), (5, 6))


class _OneEngineEach(Proportional):
    """Costs of a processor with two engines, which can run one branch each."""

    def piece_s(self, graph: Graph, task: Task, region: Region, place: Place) -> float:
        refused = {"a": "b0", "b": "b1"}[place.engine]
        return math.inf if task.name.startswith(refused) else 1.0


def test_branches_that_only_two_devices_of_one_processor_run_are_not_distributed() -> None:
    [device] = system(1).devices
    engines = [replace(device, engine=replace(device.engine, name=name)) for name in "ab"]
    problem = Problem(parallel(2), _OneEngineEach({}), System(tuple(engines)))
    (fork,) = forks(problem)[1]
    state = Reached((0.0, 0.0), {}, {}, processors=problem.processors)
    assert distributed(Sharing(problem, 10, 1), fork, state) is None


@given(networks())
@settings(max_examples=scaled(15), deadline=None)
def test_forks_of_any_network(model: Model) -> None:
    where = system(1)
    problem = Problem(model.graph, costs(where.names, [1.0]), where)
    for first, each in forks(problem).items():
        for fork in each:
            assert fork.tasks.start == first and len(fork.branches) > 1
            assert sorted(t for branch in fork.branches for t in branch) == list(fork.tasks)
            for branch in fork.branches:
                others = set(fork.tasks) - set(branch)
                assert all(others.isdisjoint(problem.successors[task]) for task in branch)


@given(st.integers(1, 6), st.floats(0.2, 1.0), LATENCIES, BANDWIDTHS)
@settings(max_examples=scaled(10), deadline=None)
def test_chains_of_tasks_are_no_slower_with_codl(
    length: int, ratio: float, latency_s: float, bandwidth: float
) -> None:
    graph, where = chain_model(length), system(2, latency_s, bandwidth)
    cost = costs(where.names, [1e6, ratio * 1e6])
    ours_s, theirs_s = (
        simulated_s(PLANNERS[name](graph, cost, where, channel_block=4), graph, cost, where)
        for name in ("codl", "mulayer")
    )
    assert ours_s <= theirs_s * (1 + 1e-9)


@pytest.mark.parametrize("name", ["codl", "mulayer"])
@pytest.mark.parametrize("rank", [2, 3])
def test_products_of_matrices_are_divided_by_columns_of_the_weights(name: str, rank: int) -> None:
    shape = (1, 64) if rank == 2 else (1, 1, 64)
    nodes = [
        helper.make_node("MatMul" if rank == 3 else "Gemm", [a, "w"], [b], b)
        for a, b in pairwise("xab")
    ]
    weights = {"w": np.ones((64, 64), np.float32)}
    graph = direct(nodes, [tensor("x", shape)], ["b"], weights).graph
    where = system(2)
    plan = PLANNERS[name](graph, costs(where.names, [3e3, 1e3]), where)
    for task in ("a", "b"):
        start = (0,) * (rank - 1)
        ones = (1,) * (rank - 1)
        assert set(shares(plan, task).values()) == {
            Region((*start, 0), (*ones, 48)),
            Region((*start, 48), (*ones, 64)),
        }


def test_rows_and_channels_by_rank() -> None:
    graph = load(branches()).graph
    assert axis_of(graph, graph.task["stem"], "H") == 2
    assert axis_of(graph, graph.task["stem"], "OC") == 1
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "a"),
        helper.make_node("Conv", ["x", "v"], ["b"], "b"),
        helper.make_node("Softmax", ["x"], ["c"], "c", axis=-1),
    ]
    weights = {"w": np.ones((9, 4), np.float32), "v": np.ones((5, 6, 2), np.float32)}
    graph = direct(nodes, [tensor("x", (1, 6, 9))], ["a", "b", "c"], weights).graph
    found = {
        task.name: (axis_of(graph, task, "H"), axis_of(graph, task, "OC")) for task in graph.tasks
    }
    assert found == {"a": (1, 2), "b": (2, 1), "c": (1, None)}


def test_options_out_of_range() -> None:
    for options in ({"steps": 0}, {"channel_block": 0}):
        with pytest.raises(UsageError, match="at least 1, not"):
            PLANNERS["mulayer"](chain_model(1), Proportional({"null:0": 1.0}), system(1), **options)


@given(st.integers(1, 4), st.floats(0.2, 1.0), LATENCIES, st.sampled_from([math.inf, 1e6]))
@settings(max_examples=15, deadline=None)
def test_the_search_is_exact_for_chains(
    length: int, ratio: float, latency_s: float, bandwidth: float
) -> None:
    """If devices wait for each other after each task, and as many ways are kept as there are cuts:
    against all sequences of cuts."""
    graph, where = chain_model(length, size=4), system(2, latency_s, bandwidth)
    problem = Problem(graph, costs(where.names, [1e6, ratio * 1e6]), where)
    sharing = Sharing(problem, steps=4, channel_block=4)
    cuts = [*sharing.alone, *sharing.cuts(0, "OC"), *sharing.cuts(0, "H")]

    def moves(number: int, state: Reached) -> list[Strips]:
        found = (sharing.strips((number,), cut, state) for cut in cuts)
        return [strips for strips in found if strips is not None]

    def least_s(number: int, held: RegionsByTask) -> float:
        if number == length:
            return 0.0
        found = []
        made_s = {(name, device): 0.0 for name, there in held.items() for device, _ in there}
        for step in moves(number, Reached((0.0, 0.0), held, made_s)):
            parts: dict[str, StripRegions] = {}
            for name, device, region in step.made(problem):
                parts[name] = (*parts.get(name, ()), (device, region))
            found.append(step.seconds + least_s(number + 1, parts))
        return min(found)

    ways = quickest(problem, moves, len(cuts), barriers=True)
    assert math.fsum(step.seconds for step in ways) == pytest.approx(least_s(0, {}))
