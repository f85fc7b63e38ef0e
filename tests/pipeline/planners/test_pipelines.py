"""Every planner of pipelines: valid plans, the same again, and what each one promises."""

import math
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.errors import CoexecError, InfeasibleError, PlanError, UsageError
from coexec.graph.graph import Graph
from coexec.model.load import load
from coexec.model.model import Model
from coexec.pipeline.plan.verify import verify_pipeline
from coexec.pipeline.plan.work import redundancy
from coexec.pipeline.planners import PIPELINES
from coexec.pipeline.planners.methods.building import WHOLE_STAGES
from coexec.pipeline.planners.methods.problem import PipelineProblem
from coexec.pipeline.simulate import simulate_pipeline
from coexec.research.zoo import build
from tests.helpers.examples import scaled
from tests.helpers.network_cases import networks
from tests.helpers.pipeline_cases import NETWORKS, cluster

examples = settings(max_examples=scaled(8), deadline=None)
CAPACITIES = st.lists(st.sampled_from([1e5, 2e5, 1e6]), min_size=1, max_size=3)
PICO = ("pico", "pico_blocks")


@cache
def graph_of(name: str) -> Graph:
    return load(build(name)).graph


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", PIPELINES)
@given(networks(), CAPACITIES, st.sampled_from(NETWORKS), st.sampled_from([1e3, 1e6, math.inf]))
@examples
def test_plans_are_valid_and_the_same_again(
    name: str, model: Model, capacities: list[float], network: str, bandwidth: float
) -> None:
    case = model.graph, *cluster(capacities, bandwidth, network)  # type: ignore[arg-type]
    plan = PIPELINES[name](*case)
    verify_pipeline(plan, model.graph, case[2])
    assert plan == PIPELINES[name](*case)
    assert plan.provenance.planner == name
    run = simulate_pipeline(plan, *case, 2)
    assert math.isfinite(run.latency_s)


@pytest.mark.parametrize("name", PICO)
@given(networks(), CAPACITIES, st.sampled_from(NETWORKS), st.sampled_from([1e3, 1e6]))
@examples
def test_the_exhaustive_one_is_never_beaten(
    name: str, model: Model, capacities: list[float], network: str, bandwidth: float
) -> None:
    problem = PipelineProblem(model.graph, *cluster(capacities, bandwidth, network))  # type: ignore[arg-type]
    best = PIPELINES["pico_exhaustive"].plan(problem).provenance
    assert best.predicted_s is not None and best.bound_s == best.predicted_s
    shares = PIPELINES[name].plan(problem).provenance.predicted_s
    stages = PIPELINES[name].plan(problem, rebalance="stages").provenance.predicted_s
    assert shares is not None and stages is not None
    assert best.predicted_s <= stages * (1 + 1e-9)
    assert stages <= shares * (1 + 1e-9)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", ["squeezenet", "inception_v3"])
def test_the_simulated_period_is_the_predicted_one(name: str, network: str) -> None:
    """With a few frames in each stage, on a network that all stages wait for or none."""
    graph = graph_of(name)
    for bandwidth in (1e6, 1e8):
        case = graph, *cluster([2e9, 1e9, 1e9, 5e8], bandwidth, network)  # type: ignore[arg-type]
        plan = PIPELINES["pico"](*case)
        run = simulate_pipeline(plan, *case, 60, credits=2 * len(plan.stages) + 1)
        assert plan.provenance.predicted_s is not None
        assert run.period_s == pytest.approx(plan.provenance.predicted_s, rel=0.05)


def test_a_limit_of_latency_is_kept_or_refused() -> None:
    graph = graph_of("squeezenet")
    case = graph, *cluster([1e9] * 4, 6.25e6)
    free = PIPELINES["pico"](*case)
    fast = PIPELINES["pico"](*case, latency_limit_s=1.45)
    assert len(fast.stages) <= len(free.stages)
    assert (fast.provenance.predicted_s or 0) >= (free.provenance.predicted_s or 0)
    with pytest.raises(InfeasibleError, match="one stage takes"):
        PIPELINES["pico"](*case, latency_limit_s=1e-3)


def test_a_model_without_maps_is_a_chain_of_whole_stages_and_says_so() -> None:
    graph = graph_of("lstm")
    case = graph, *cluster([1e9] * 3, 1e9)
    for name in ("pico", "pico_blocks", "pico_exhaustive"):
        plan = PIPELINES[name](*case)
        assert plan.notes == (WHOLE_STAGES,)
        assert all(len(stage.shares) == 1 for stage in plan.stages)
        assert len({stage.leader for stage in plan.stages}) == len(plan.machines)


@pytest.mark.long
def test_redundancy_by_planner() -> None:
    """The paper's order, of Table V: CoEdge, PICO, optimal fused, early fused."""
    graph = graph_of("vgg16")
    case = graph, *cluster([2e9] * 8, 6.25e6)
    names = ("coedge", "layer_wise", "pico", "optimal_fused", "early_fused")
    ratio = {name: redundancy(graph, PIPELINES[name](*case)) for name in names}
    assert ratio["coedge"] == ratio["layer_wise"] == 0.0
    assert 0.0 < ratio["pico"] < ratio["optimal_fused"] < ratio["early_fused"]


def test_unlike_machines_need_other_stages() -> None:
    """One machine with ten times the capacity of the others: stages of equal numbers cannot use
    it, and those that are moved do."""
    graph = graph_of("resnet34")
    problem = PipelineProblem(graph, *cluster([4e10, 4e9, 4e9, 4e9], 1e9))
    shares = PIPELINES["pico"].plan(problem).provenance.predicted_s or 0.0
    stages = PIPELINES["pico"].plan(problem, rebalance="stages").provenance.predicted_s or 0.0
    perfect = 2 * graph.macs / 5.2e10
    assert perfect <= stages <= 1.15 * perfect
    assert stages <= shares


def test_what_is_known_of_a_graph_is_kept_for_other_machines() -> None:
    graph = graph_of("squeezenet")
    problem = PipelineProblem(graph, *cluster([1e9] * 3))
    PIPELINES["pico"].plan(problem)
    other = problem.on(*cluster([1e9, 2e9]))
    assert other.chains is problem.chains and other.bodies is problem.bodies
    assert PIPELINES["pico"].plan(other) == PIPELINES["pico"](graph, *cluster([1e9, 2e9]))


def test_both_chains_are_no_worse_than_either() -> None:
    graph = graph_of("resnet34")
    problem = PipelineProblem(graph, *cluster([8e9] * 8, 6.25e6, "half-duplex ports"))
    both = PIPELINES["pico"].plan(problem).provenance.predicted_s
    pieces = PIPELINES["pico"].plan(problem, cuts="pieces").provenance.predicted_s
    blocks = PIPELINES["pico_blocks"].plan(problem).provenance.predicted_s
    assert pieces is not None and blocks is not None and both == min(pieces, blocks)


BAD = [("pico", {"cuts": "none"}), ("pico", {"model": "eq12"}),
       ("pico", {"rebalance": "all"}), ("pico", {"diameter": -1}),
       ("pico", {"latency_limit_s": 0.0}), ("pico_blocks", {"latency_limit_s": -1.0}),
       ("early_fused", {"layers": 0}), ("pico_exhaustive", {"model": ""})]  # fmt: skip


@pytest.mark.parametrize("name, options", BAD)
def test_options_without_meaning_are_refused(name: str, options: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        PIPELINES[name](graph_of("squeezenet"), *cluster([1e9, 1e9]), **options)


def test_large_graphs_are_refused_by_the_exhaustive_one() -> None:
    with pytest.raises(PlanError, match="use pico, or raise max_fronts"):
        graph, where = graph_of("squeezenet"), cluster([1e9, 1e9])
        PIPELINES["pico_exhaustive"](graph, *where, max_fronts=40)


def test_machines_of_unknown_capacity_are_named() -> None:
    cost, _ = cluster([1e9])
    _, system = cluster([1e9, 1e9])
    with pytest.raises(CoexecError, match="capacity of machine 'B' is not known"):
        PIPELINES["pico"](graph_of("squeezenet"), cost, system)
