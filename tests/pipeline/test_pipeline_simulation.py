"""The clock of pipelines: periods by hand, bounds that are kept, and what no rule may break."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.errors import UsageError
from coexec.model.model import Model
from coexec.pipeline.plan.plan import PipelinePlan, Share, Stage
from coexec.pipeline.simulate import PipelineRun, simulate_pipeline
from coexec.plan.plan import Provenance
from tests.helpers.network_cases import networks
from tests.helpers.pipeline_cases import NETWORKS, chain, cluster, halves, pipeline_plans, rows

WORK = 8 * 8 * 9 * 2
"""FLOPs of one convolution of `chain`."""
MAP = 8 * 8 * 4
"""Bytes of one of its maps."""
examples = settings(max_examples=40, deadline=None)


def two_stages() -> tuple[object, PipelinePlan]:
    """One convolution on A, the next on B."""
    graph = chain()
    stages = tuple(
        Stage((f"c{i}",), name, (Share(name, ((f"t{i + 1}", rows(0, 8)),)),))
        for i, name in enumerate("AB")
    )
    return graph, PipelinePlan(graph.fingerprint, stages, Provenance("by hand"))


@pytest.mark.parametrize(
    "capacities, bandwidth, period, latency",
    [
        ((WORK, WORK), math.inf, 1.0, 2.0),
        ((WORK, WORK / 3), math.inf, 3.0, 4.0),
        ((WORK, WORK), MAP / 2, 2.0, 4.0),  # the network is the bottleneck
        ((WORK, WORK), MAP, 1.0, 3.0),  # computing and sending overlap
    ],
)
def test_two_stages_by_hand(
    capacities: tuple[float, ...], bandwidth: float, period: float, latency: float
) -> None:
    graph, plan = two_stages()
    run = simulate_pipeline(plan, graph, *cluster(capacities, bandwidth), frames=10)
    assert run.period_s == pytest.approx(period)
    assert run.latency_s == pytest.approx(latency)


@pytest.mark.parametrize(
    "network, busiest", [("ports", 13), ("half-duplex ports", 17), ("shared", 17)]
)
def test_what_leaders_send_and_receive_by_hand(network: str, busiest: int) -> None:
    """A row takes 1 s. A sends B 5 of 8 rows and C all 8, and gathers 4: 13 out, 4 in."""
    graph, plan = halves()
    where = cluster((1e9, 1e9, 1e9), MAP / 8, network)  # type: ignore[arg-type]
    for credits in (None, 6):
        run = simulate_pipeline(plan, graph, *where, frames=40, credits=credits)
        assert 40 * busiest <= max(run.answered_s) <= 40 * busiest + run.latency_s


def test_frames_wait_for_credits() -> None:
    graph, plan = two_stages()
    where = cluster((WORK, WORK), math.inf)
    run = simulate_pipeline(plan, graph, *where, frames=3, credits=1)
    assert run.let_in_s == (0.0, 2.0, 4.0) and run.period_s == 2.0


def test_one_machine_may_serve_two_stages() -> None:
    graph, plan = two_stages()
    stages = plan.stages[0], Stage(("c1",), "A", (Share("A", (("t2", rows(0, 8)),)),))
    plan = PipelinePlan(plan.model, stages, plan.provenance)
    run = simulate_pipeline(plan, graph, *cluster((WORK, WORK), 1.0), frames=10, credits=1)
    assert run.period_s == pytest.approx(2.0) and not run.sent
    assert run.utilisation("A") == pytest.approx(1.0) and run.utilisation("B") == 0.0


def test_a_machine_with_two_stages_computes_the_earliest_frame_first() -> None:
    """Else all nine frames pass A's first stage before one leaves A, and B waits for them."""
    graph = chain(4)
    stages = tuple(
        Stage((f"c{i}",), name, (Share(name, ((f"t{i + 1}", rows(0, 8)),)),))
        for i, name in enumerate("AABB")
    )
    plan = PipelinePlan(graph.fingerprint, stages, Provenance("by hand"))
    run = simulate_pipeline(plan, graph, *cluster((WORK, WORK), math.inf), frames=40, credits=9)
    assert run.period_s == pytest.approx(2.0)
    for machine in "AB":
        spans = [span for span in run.trace.of("compute") if span.device == machine]
        assert [span.request for span in spans] == [frame for frame in range(40) for _ in "xx"]


@pytest.mark.parametrize("options", [{"frames": 0}, {"credits": 0}])
def test_bad_numbers_are_refused(options: dict[str, object]) -> None:
    graph, plan = two_stages()
    with pytest.raises(UsageError):
        simulate_pipeline(plan, graph, *cluster((1, 1)), **options)  # type: ignore[arg-type]


@given(
    networks(),
    st.data(),
    st.sampled_from(NETWORKS),
    st.sampled_from([1e4, 1e6, math.inf]),
    st.integers(1, 5),
    st.none() | st.integers(1, 3),
)
@examples
def test_no_rule_is_broken(
    model: Model,
    data: st.DataObject,
    network: str,
    bandwidth: float,
    frames: int,
    credits: int | None,
) -> None:
    """Machines and media do one thing at a time; nobody starts early; bounds are kept."""
    plan = data.draw(pipeline_plans(model.graph, ["A", "B", "C"]))
    costs, system = cluster((1e6, 2e6, 5e5), bandwidth, network, 1e-4)  # type: ignore[arg-type]
    run = simulate_pipeline(plan, model.graph, costs, system, frames, credits=credits)
    for name in system.names:
        own = sorted((s.start_s, s.end_s) for s in run.trace.spans if s.device == name)
        assert all(one[1] <= two[0] + 1e-12 for one, two in pairwise(own))
    assert all(sent.arrived_s >= sent.ready_s for sent in run.sent)
    assert all(a < b or a == b for a, b in zip(run.let_in_s, run.answered_s, strict=True))
    _check_media(run, bandwidth, network)
    changes = [(t, 1) for t in run.let_in_s] + [(t, -1) for t in run.answered_s]
    assert _most(changes) <= (credits or frames)


def _check_media(run: PipelineRun, bandwidth: float, network: str) -> None:
    """A medium carries no more than it can between the first message and the last."""
    ends: dict[str, list[tuple[float, float]]] = {}
    for sent in run.sent:
        m, took_s = sent.message, sent.message.size_bytes / bandwidth
        media = {
            "shared": ["all"],
            "ports": [f"{m.source}>", f">{m.target}"],
            "half-duplex ports": [m.source, m.target],
        }[network]
        for medium in media:
            # Latency is no occupation.
            end_s = sent.arrived_s - (1e-4 if took_s else 0.0)
            ends.setdefault(medium, []).append((end_s - took_s, end_s))
    for busy in ends.values():
        busy.sort()
        assert all(one[1] <= two[0] + 1e-9 for one, two in pairwise(busy))


def _most(changes: list[tuple[float, int]]) -> int:
    """The most that are inside at a time; who leaves makes room first."""
    inside = most = 0
    for _, change in sorted(changes):
        inside += change
        most = max(most, inside)
    return most
