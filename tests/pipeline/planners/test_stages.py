"""What searches know of stages equals what follows from their plans."""

import math
import random
from itertools import combinations, pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.graph.stitch import missing
from coexec.model.load import load
from coexec.model.model import Model
from coexec.pipeline.plan.flow import Message, actions
from coexec.pipeline.plan.plan import PipelinePlan
from coexec.pipeline.plan.verify import verify_pipeline
from coexec.pipeline.planners.methods.bodies import StageBody, balanced, equal_cuts, in_proportion
from coexec.pipeline.planners.methods.building import stages_of_groups
from coexec.pipeline.planners.methods.network import MODELS, StageTime, Wires
from coexec.pipeline.planners.methods.pipeline import fine_pieces, least_period
from coexec.pipeline.planners.methods.problem import Group, PipelineProblem
from coexec.pipeline.planners.methods.table import StageTable
from coexec.pipeline.simulate import simulate_pipeline
from coexec.pipeline.strip import strip_of
from coexec.plan.plan import Provenance
from coexec.research.zoo import build
from tests.helpers.network_cases import networks
from tests.helpers.pipeline_cases import NETWORKS, cluster

examples = settings(max_examples=40, deadline=None)
ZOO = ["squeezenet", "resnet34", "mobilenet_v3", "yolov2"]


def cuts_of(data: st.DataObject, count: int) -> list[int]:
    """Sets of tasks in order, as bits, that are all tasks together."""
    inner = data.draw(st.sets(st.integers(1, max(1, count - 1)), max_size=3))
    edges = sorted({0, count, *(i for i in inner if i < count)})
    return [sum(1 << t for t in range(a, b)) for a, b in pairwise(edges)]


@given(networks(), st.data())
@examples
def test_shares_of_rows_are_strips(model: Model, data: st.DataObject) -> None:
    """What a share computes and moves; tasks that turn rows into columns are counted as whole."""
    problem = PipelineProblem(model.graph, *cluster([1e6, 1e6]))
    rows = problem.rows
    for tasks in cuts_of(data, len(model.graph.tasks)):
        body = problem.bodies.of(tasks)
        count = data.draw(st.integers(1, 3))
        for share in equal_cuts(body.height, count):
            if share[0] == share[1]:
                continue
            strip = strip_of(model.graph, body.graph_tasks(), dict(body.outputs(share)))
            work = body.work(share)
            tensors = model.graph.tensors
            read = sum(region.size * tensors[n].item_bytes for n, region in strip.reads)
            made = sum(region.size * tensors[n].item_bytes for n, region in strip.writes)
            turned = any(
                2 in _axes(model, task) and not rows.cuttable[task]
                for task in range(len(rows.macs))
                if tasks >> task & 1
            )
            assert made == work.made_bytes
            if turned:
                assert strip.macs <= work.macs and read <= work.read_bytes
            else:
                assert (strip.macs, read) == (work.macs, work.read_bytes)


@given(networks(), st.data())
@examples
def test_shares_hand_on_all_outputs_once(model: Model, data: st.DataObject) -> None:
    """Wherever rows are cut; shares may be empty, and the first one is."""
    bodies = PipelineProblem(model.graph, *cluster([1e6])).bodies
    for tasks in cuts_of(data, len(model.graph.tasks)):
        body = bodies.of(tasks)
        marks = data.draw(st.lists(st.integers(0, body.height), max_size=3))
        shares = pairwise([0, 0, *sorted(marks), body.height])
        parts = [dict(body.outputs(share)) for share in shares]
        for name in _sinks(body).union(*parts):
            whole = model.graph.tensors[name].whole
            found = [part[name] for part in parts if name in part]
            assert not missing(whole, found)
            assert sum(region.size for region in found) == whole.size


def _sinks(body: StageBody) -> set[str]:
    return {name for name, _ in body.outputs((0, body.height))}


def _axes(model: Model, task: int) -> tuple[int, ...]:
    from coexec.graph.receptive import splittable_axes

    return splittable_axes(model.graph, model.graph.tasks[task])


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ZOO)
def test_the_table_equals_single_stages(name: str) -> None:
    """Loads of stages of equal machines, worked out together and one by one."""
    problem = PipelineProblem(load(build(name)).graph, *cluster([1e9] * 4))
    pieces = fine_pieces(problem.bodies).chain
    table = StageTable(problem.rows, pieces, 4, problem.mean_mac_s)
    rng = random.Random(name)
    for first, last, count in rng.sample(sorted(table.loads), 60):
        done = sum(pieces[:first])
        body = problem.bodies.of(sum(pieces[first : last + 1]))
        shares = equal_cuts(body.height, count)
        names = problem.machines[:count]
        load_ = problem.load(done, body, names, shares)
        found = table.loads[first, last, count]
        assert found[1:] == load_[1:]
        if not body.tail:
            assert found.compute_s == pytest.approx(load_.compute_s)


@given(networks(), st.data(), st.sampled_from(NETWORKS))
@examples
def test_predicted_periods_are_what_stages_keep_occupied(
    model: Model, data: st.DataObject, network: str
) -> None:
    """The busiest machine, port or shared medium of the plan, from its messages."""
    problem = PipelineProblem(model.graph, *cluster([1e6, 2e6, 5e5, 7e5], 1e5, network))  # type: ignore[arg-type]
    parts = cuts_of(data, len(model.graph.tasks))[:4]
    parts[-1] |= problem.all & ~sum(parts)
    names = list(problem.machines)
    groups = []
    for k, tasks in enumerate(parts):
        own = [names.pop(0)]
        while names and len(names) > len(parts) - k - 1 and data.draw(st.booleans()):
            own.append(names.pop(0))
        groups.append(Group(tasks, tuple(own)))
    plan = PipelinePlan(
        model.graph.fingerprint, stages_of_groups(problem, groups), Provenance("by hand")
    )
    verify_pipeline(plan, model.graph, problem.system)
    run = simulate_pipeline(plan, model.graph, problem.cost, problem.system, 1)
    busy: dict[str, float] = {}
    for span in run.trace.spans:
        busy[span.device] = busy.get(span.device, 0.0) + span.duration_s
    for action in actions(plan, model.graph):
        if isinstance(what := action.what, Message):
            link = problem.system.link(
                *(problem.system.device[n].place for n in (what.source, what.target))
            )
            for medium in link.media:
                busy[medium] = busy.get(medium, 0.0) + link.copy_s(what.size_bytes)
    predicted = problem.period_s(groups, "overlap")
    turned = any(
        2 in _axes(model, t) and not problem.rows.cuttable[t] for t in range(len(model.graph.tasks))
    )
    collected = model.graph.outputs and any(
        name in model.graph.outputs for stage in plan.stages[:-1] for name in stage.tasks
    )
    if not turned and not collected:
        assert max(busy.values()) == pytest.approx(predicted) or max(busy.values()) < predicted


@given(st.data(), st.integers(1, 4), st.integers(1, 3), st.booleans())
@settings(max_examples=150, deadline=None)
def test_algorithm_2_equals_all_chains_of_stages(
    data: st.DataObject, pieces: int, machines: int, limited: bool
) -> None:
    numbers = st.integers(0, 9).map(float)
    keys = [
        (first, last, count)
        for first in range(pieces)
        for last in range(first, pieces)
        for count in range(1, machines + 1)
    ]
    triples = st.tuples(numbers, numbers, numbers)
    drawn = data.draw(st.lists(triples, min_size=len(keys), max_size=len(keys)))
    times = {key: StageTime(*row) for key, row in zip(keys, drawn, strict=True)}
    limit = data.draw(numbers) if limited else math.inf
    values = []
    for k in range(pieces):
        for inner in combinations(range(1, pieces), k):
            edges = [0, *inner, pieces]
            for counts in product(range(1, machines + 1), repeat=len(edges) - 1):
                if sum(counts) <= machines:
                    chain = [
                        times[a, b - 1, n]
                        for a, b, n in zip(edges, edges[1:], counts, strict=False)
                    ]
                    latency = sum(time.latency_s for time in chain)
                    period = max(
                        max(time.period_s for time in chain), sum(time.shared_s for time in chain)
                    )
                    if latency <= limit:
                        values.append((period, latency))
    found = least_period(times, pieces, machines, limit)
    assert (found is None) == (not values)
    if found is not None:
        chain = [times[key] for key in found]
        assert [key[0] for key in found] == [0, *(key[1] + 1 for key in found[:-1])]
        assert sum(key[2] for key in found) <= machines
        period = max(max(t.period_s for t in chain), sum(t.shared_s for t in chain))
        assert (period, sum(t.latency_s for t in chain)) == min(values)


@given(networks(), st.lists(st.integers(1, 5), min_size=1, max_size=4))
@examples
def test_no_rows_end_sooner_than_balanced_ones(model: Model, capacities: list[int]) -> None:
    """Against all cuts of the whole graph in this order."""
    problem = PipelineProblem(model.graph, *cluster([c * 1e6 for c in capacities]))
    body = problem.bodies.of(problem.all)
    weights = [float(c) for c in capacities]

    def ends(k: int, share: tuple[int, int]) -> float:
        tail = body.tail_macs / weights[0] if k == 0 else 0.0
        return tail + body.work(share).macs / weights[k]

    found = balanced(body, weights, ends)
    assert found[0][0] == 0 and found[-1][1] == body.height
    assert all(one[1] == two[0] for one, two in pairwise(found))
    best = min(
        max(
            ends(k, share)
            for k, share in enumerate(zip([0, *inner], [*inner, body.height], strict=True))
        )
        for inner in product(range(body.height + 1), repeat=len(weights) - 1)
        if list(inner) == sorted(inner)
    )
    worst = max(ends(k, share) for k, share in enumerate(found))
    assert worst <= best * 1.002 + 1e-12
    proportional = enumerate(in_proportion(body.height, weights))
    assert worst <= max(ends(k, share) for k, share in proportional)


@pytest.mark.parametrize(
    "network, duplex, shared",
    [("ports", True, False), ("half-duplex ports", False, False), ("shared", False, True)],
)
def test_networks_are_told_apart(network: str, duplex: bool, shared: bool) -> None:
    _, system = cluster([1, 1, 1], 2.0, network, 3.0)  # type: ignore[arg-type]
    assert Wires.of(system) == Wires(0.5, 3.0, duplex, shared)


def test_models_of_time_by_hand() -> None:
    """Eq. 11 sums computing and what the leader moves inside; forwarding adds what it hands on."""
    from coexec.pipeline.planners.methods.network import StageLoad

    load_ = StageLoad(10.0, 3, 2, 4, 1)
    times = {m: Wires(1.0, 0.0, True, False).stage_time(load_, m) for m in MODELS}
    assert times["eq11"] == (15.0, 0.0, 15.0)
    assert times["forwarding"] == (16.0, 0.0, 19.0)
    assert times["overlap"] == (10.0, 0.0, 19.0)
    slow = Wires(10.0, 0.0, True, False).stage_time(load_, "overlap")
    assert slow.period_s == 60.0  # gathers 2 and is forwarded 4
    assert Wires(10.0, 0.0, False, False).stage_time(load_, "overlap").period_s == 100.0
    assert Wires(10.0, 0.0, False, True).stage_time(load_, "overlap") == (10.0, 90.0, 100.0)
