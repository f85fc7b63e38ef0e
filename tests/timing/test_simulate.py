"""What follows from a plan, and when it happens: by hand on small plans, by rule on random ones."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.errors import PlanError
from coexec.graph.graph import Piece
from coexec.graph.region import Region
from coexec.plan.derive import derive
from coexec.plan.schedule import Schedule, ended_before
from coexec.problem.problem import Problem
from coexec.problem.timeline import makespan_s
from coexec.timing.simulate import simulate
from coexec.timing.trace import Trace
from tests.helpers.examples import scaled
from tests.helpers.graphs import (
    Busy,
    Case,
    cases,
    hand_made,
    make_graph,
    make_plan,
    make_system,
    placed,
    placements,
    table,
)

examples = settings(max_examples=scaled(40), deadline=None, derandomize=True)
INF = math.inf


def spans(trace: Trace) -> list[tuple[str, str, float, float]]:
    busy = trace.of("compute", "transfer")
    return [(span.name, span.device, span.start_s, span.end_s) for span in busy]


# Segments and transfers

DIAMOND = make_graph({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "e": ["d"]})


def runs(schedule: Schedule) -> dict[str, list[str]]:
    """The segments of each device as the letters of their tasks."""
    return {
        device: ["".join(p.task for p in schedule.segments[i].pieces) for i in indices]
        for device, indices in schedule.by_device.items()
    }


def test_segments_of_a_diamond() -> None:
    schedule = derive(make_plan(DIAMOND, A="abde", B="c"), DIAMOND)
    assert runs(schedule) == {"A": ["a", "b", "de"], "B": ["c"]}
    by_name = {"".join(p.task for p in s.pieces): s for s in schedule.segments}
    a, b, c, de = (by_name[name] for name in ("a", "b", "c", "de"))
    assert (a.after, set(c.after), set(b.after)) == ((), {a.index}, {a.index})
    assert set(de.after) == {b.index, c.index}
    assert [name for name, _ in a.reads] == ["x"] and [name for name, _ in a.writes] == ["a"]
    assert {name for name, _ in de.reads} == {"b", "c"}
    assert [name for name, _ in de.writes] == ["e"]
    moves = [(t.tensor, t.size_bytes, t.source, t.target) for t in schedule.transfers]
    assert moves == [("a", 4, a.index, c.index), ("c", 4, c.index, de.index)]
    assert ended_before(schedule.segments)[de.index] == 1 << a.index | 1 << b.index | 1 << c.index


def test_all_on_one_device_is_one_segment() -> None:
    schedule = derive(make_plan(DIAMOND, A="abcde"), DIAMOND)
    assert runs(schedule) == {"A": ["abcde"]} and schedule.transfers == ()


def test_data_that_came_before_the_segment_does_not_cut_it() -> None:
    graph = make_graph({"a": [], "b": ["a"], "c": ["b"], "d": ["a", "c"]})
    assert runs(derive(make_plan(graph, A="a", B="bcd"), graph)) == {"A": ["a"], "B": ["bcd"]}


def test_a_tensor_moves_to_a_device_once() -> None:
    graph = make_graph({"a": [], "b": ["a"], "c": ["a"], "d": ["b"], "e": ["a", "c", "d"]})
    schedule = derive(make_plan(graph, A="ad", B="bce"), graph)
    assert runs(schedule) == {"A": ["a", "d"], "B": ["b", "c", "e"]}
    assert sorted(t.tensor for t in schedule.transfers) == ["a", "b", "d"]


def test_a_split_task_moves_the_overlap_only() -> None:
    graph = make_graph({"a": [], "b": ["a"]}, {"x": 8, "a": 8})
    upper, lower = Region((0,), (6,)), Region((6,), (8,))
    first, last = Piece("a", upper), graph.whole_piece(graph.task["b"])
    order = {"A": (first, last), "B": (Piece("a", lower),)}
    schedule = derive(hand_made(graph, order), graph)
    assert [(t.region, t.size_bytes) for t in schedule.transfers] == [(lower, 8)]
    assert runs(schedule) == {"A": ["a", "b"], "B": ["a"]}


def test_a_deadlock_is_found() -> None:
    graph = make_graph({"a": [], "b": ["a"], "c": [], "d": ["c"]})
    with pytest.raises(PlanError, match="deadlock: 4 of 4 pieces can never start"):
        derive(make_plan(graph, A="da", B="bc"), graph)


@given(data=st.data())
@examples
def test_segments_are_units(data: st.DataObject) -> None:
    case = data.draw(cases(max_tasks=9))
    plan = placed(case, data.draw(placements(case)))
    schedule = derive(plan, case.graph)
    for device, indices in schedule.by_device.items():
        pieces = tuple(p for i in indices for p in schedule.segments[i].pieces)
        assert pieces == plan.order[device]
    segment_of = {p.task: s for s in schedule.segments for p in s.pieces}
    ended = ended_before(schedule.segments)
    for segment in schedule.segments:
        assert all(before < segment.index for before in segment.after)
        for name, _ in segment.reads:
            maker = case.graph.producer.get(name)
            assert not maker or ended[segment.index] >> segment_of[maker.name].index & 1
        for piece in segment.pieces[:-1]:
            readers = case.graph.successors[piece.task]
            assert all(segment_of[r.name].device == segment.device for r in readers)


@given(data=st.data())
@examples
def test_segments_are_maximal(data: st.DataObject) -> None:
    case = data.draw(cases(max_tasks=9))
    schedule = derive(placed(case, data.draw(placements(case))), case.graph)
    segment_of = {p.task: s for s in schedule.segments for p in s.pieces}
    ended = ended_before(schedule.segments)
    for device, indices in schedule.by_device.items():
        for first, second in pairwise(schedule.segments[i] for i in indices):
            readers = case.graph.successors[first.pieces[-1].task]
            awaited = any(segment_of[r.name].device != device for r in readers)
            sources = (segment_of[p.name] for p in case.graph.predecessors[second.pieces[0].task])
            elsewhere = [s.index for s in sources if s.device != device]
            assert awaited or any(not ended[first.index] >> index & 1 for index in elsewhere)


@given(data=st.data())
@examples
def test_transfers_are_what_first_readers_elsewhere_miss(data: st.DataObject) -> None:
    case = data.draw(cases(max_tasks=9))
    schedule = derive(placed(case, data.draw(placements(case))), case.graph)
    segment_of = {p.task: s for s in schedule.segments for p in s.pieces}
    first: dict[tuple[str, str], int] = {}
    for segment in schedule.segments:
        for piece in segment.pieces:
            for name in case.graph.task[piece.task].inputs:
                maker = case.graph.producer.get(name)
                if maker and segment_of[maker.name].device != segment.device:
                    first.setdefault((name, segment.device), segment.index)
    found = {(t.tensor, schedule.segments[t.target].device): t.target for t in schedule.transfers}
    assert found == first and len(schedule.transfers) == len(first)
    for t in schedule.transfers:
        assert t.source == segment_of[case.graph.producer[t.tensor].name].index
        assert t.size_bytes == case.graph.tensors[t.tensor].size_bytes


# The clock

FORK = make_graph({"a": [], "b": ["a"], "c": []}, {"a": 4})
"""b on B waits for a on A; c follows a on A."""


def simulate_fork(busy: Busy) -> Trace:
    system = make_system("AB", latency_s=1, items_per_s=2, busy=busy)
    cost = table(FORK, {"A": (2, INF, 5), "B": (INF, 3, INF)})
    return simulate(derive(make_plan(FORK, A="ac", B="b"), FORK), cost, system)


def test_the_target_copies_after_the_latency() -> None:
    trace = simulate_fork("target")
    copy = ("a: A -> B", "B", 3, 5)
    assert spans(trace) == [("a", "A", 0, 2), ("c", "A", 2, 7), copy, ("b", "B", 5, 8)]
    assert (trace.makespan_s, trace.busy_s("A"), trace.busy_s("B")) == (8, 7, 5)


def test_other_copies_start_behind_the_source() -> None:
    after_source = [("a: A -> B", "A", 2, 4), ("c", "A", 4, 9), ("b", "B", 5, 8)]
    in_the_background = [("c", "A", 2, 7), ("b", "B", 5, 8)]
    assert spans(simulate_fork("source")) == [("a", "A", 0, 2), *after_source]
    assert spans(simulate_fork("none")) == [("a", "A", 0, 2), *in_the_background]


def test_copies_in_the_background_queue_for_the_link() -> None:
    graph = make_graph({"a": [], "b": [], "c": ["a"], "d": ["b"]}, {"a": 8, "b": 2})
    cost = table(graph, {"A": (2, 1, INF, INF), "B": (INF, INF, 1, 1)})
    system = make_system("AB", items_per_s=2, busy="none")
    trace = simulate(derive(make_plan(graph, A="ab", B="cd"), graph), cost, system)
    # a is copied from 2 to 6, b, made at 3, from 6 to 7.
    assert spans(trace)[2:] == [("c", "B", 6, 7), ("d", "B", 7, 8)]


def test_a_segment_is_launched_once() -> None:
    cost = table(DIAMOND, {"A": (3, 3, 3, 3, 3)}, A=1)
    trace = simulate(derive(make_plan(DIAMOND, A="abcde"), DIAMOND), cost, make_system("A"))
    assert trace.makespan_s == 15 - 4
    assert [(span.name, span.tasks) for span in trace.spans] == [("a … e (5)", tuple("abcde"))]


def test_requests_overlap_as_in_a_pipeline() -> None:
    graph = make_graph({"a": [], "b": ["a"]})
    cost = table(graph, {"A": (2, INF), "B": (INF, 3)})
    schedule = derive(make_plan(graph, A="a", B="b"), graph)
    trace = simulate(schedule, cost, make_system("AB"), requests=2)
    rows = [(s.name, s.request, s.start_s, s.end_s) for s in trace.of("compute")]
    assert rows == [("a", 0, 0, 2), ("a", 1, 2, 4), ("b", 0, 2, 5), ("b", 1, 5, 8)]
    assert trace.utilisation("A") == 0.5 and len(trace.flows) == 2


def check_trace(case: Case, schedule: Schedule, trace: Trace, requests: int) -> None:
    """No device does two things at once, nobody starts before the data has come."""
    for device in trace.devices:
        row = [span for span in trace.spans if span.device == device]
        assert all(a.end_s <= b.start_s + 1e-9 for a, b in pairwise(row))
    at = {(s.request, s.segment): s for s in trace.of("compute")}
    assert len(at) == requests * len(schedule.segments)
    for (request, index), span in at.items():
        for before in (at[request, i] for i in schedule.segments[index].after):
            latency_s = case.system.link(before.place, span.place).sync_latency_s
            assert span.start_s >= before.end_s + latency_s - 1e-9
    for flow in trace.flows:
        source, target = at[flow.request, flow.source], at[flow.request, flow.target]
        link = case.system.link(source.place, target.place)
        arrival_s = source.end_s + link.sync_latency_s + link.copy_s(flow.size_bytes)
        assert target.start_s >= arrival_s - 1e-9


@given(data=st.data())
@examples
def test_traces_keep_the_rules(data: st.DataObject) -> None:
    case = data.draw(cases(max_tasks=8))
    requests = data.draw(st.integers(1, 3))
    schedule = derive(placed(case, data.draw(placements(case))), case.graph)
    trace = simulate(schedule, case.cost, case.system, requests)
    check_trace(case, schedule, trace, requests)
    assert trace == simulate(schedule, case.cost, case.system, requests)
    assert trace.makespan_s >= Problem(*case).bounds.critical_path_s - 1e-9


@given(data=st.data())
@examples
def test_segments_only_ever_wait_longer_than_planners_think(data: st.DataObject) -> None:
    """Launches and the order of copies aside, and not at all where links have no latency."""
    case = data.draw(cases(max_tasks=8, busy="target", launch=False))
    placement = data.draw(placements(case))
    simulated = simulate(derive(placed(case, placement), case.graph), case.cost, case.system)
    predicted_s = makespan_s(Problem(*case), *placement)
    assert simulated.makespan_s >= predicted_s - 1e-9
    if not any(link.sync_latency_s for link in case.system.links):
        assert simulated.makespan_s == pytest.approx(predicted_s)
