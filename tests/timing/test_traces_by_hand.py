"""The kinds of spans, by hand, and as Chrome's format tells them."""

import json
import math
from typing import Any

from coexec.hardware.hardware import Device, Link, Place, System
from coexec.plan.derive import derive
from coexec.timing.simulate import simulate
from coexec.timing.trace import Kind, Span, Trace
from coexec.timing.waits import HAND_OVER, Need, with_waits
from tests.helpers.graphs import ITEM_BYTES, Busy, at, make_graph, make_plan, make_system, table

INF = math.inf
FORK = make_graph({"a": [], "b": ["a"], "c": []}, {"a": 4})
"""b on B waits for a on A; c follows a on A."""
A, B = Place("A", "null"), Place("B", "null")


def simulate_fork(busy: Busy) -> Trace:
    system = make_system("AB", latency_s=1, items_per_s=2, busy=busy)
    cost = table(FORK, {"A": (2, INF, 5), "B": (INF, 3, INF)})
    return simulate(derive(make_plan(FORK, A="ac", B="b"), FORK), cost, system)


def rows(trace: Trace, kind: Kind) -> list[tuple[str, str, float, float, str, str]]:
    """With the name of the segment that it is for, and that of the one it waits for."""
    name = {s.segment: s.name for s in trace.of("compute")} | {-1: ""}
    return [
        (s.name, s.device, s.start_s, s.end_s, name[s.segment], name[s.awaited])
        for s in trace.of(kind)
    ]


def test_a_reader_that_copies_waits_for_the_maker_and_its_latency() -> None:
    trace = simulate_fork("target")
    assert rows(trace, "wait") == [("for a", "B", 0, 3, "b", "a")]
    assert rows(trace, "transfer") == [("a: A -> B", "B", 3, 5, "b", "")]
    assert not trace.of("layout")


def test_a_reader_that_does_not_copy_waits_for_the_tensor() -> None:
    for busy in ("source", "none"):
        trace = simulate_fork(busy)
        assert rows(trace, "wait") == [("for a: A -> B", "B", 0, 5, "b", "a")]
        assert [span.tensor for span in trace.of("wait")] == ["a"]
    sent = [("a: A -> B", "A", 2, 4, "a", "")]
    assert rows(simulate_fork("source"), "transfer") == sent
    assert rows(simulate_fork("none"), "transfer") == []


def test_transfers_name_what_is_copied_from_where_to_where() -> None:
    for busy in ("source", "target"):
        (span,) = simulate_fork(busy).of("transfer")
        assert (span.tensor, span.size_bytes) == ("a", 4 * ITEM_BYTES)
        assert (span.source, span.target) == (A, B)


def test_what_comes_last_is_waited_for() -> None:
    graph = make_graph({"a": [], "b": [], "c": ["a", "b"]})
    for a_s, b_s, last in ((2, 3, "b"), (3, 2, "a")):
        cost = table(graph, {"A": (a_s, INF, INF), "B": (INF, b_s, INF), "C": (INF, INF, 1)})
        plan = make_plan(graph, A="a", B="b", C="c")
        trace = simulate(derive(plan, graph), cost, make_system("ABC"))
        assert rows(trace, "wait") == [(f"for {last}", "C", 0, 3, "c", last)]


def test_a_device_may_wait_before_and_behind_a_copy() -> None:
    graph = make_graph({"a": [], "b": [], "c": ["a", "b"]}, {"a": 2, "b": 10})
    links = (
        Link(at("A"), at("C"), 0, ITEM_BYTES, "target"),
        Link(at("B"), at("C"), 0, ITEM_BYTES, "none"),
    )
    cost = table(graph, {"A": (2, INF, INF), "B": (INF, 1, INF), "C": (INF, INF, 1)})
    system = System(tuple(Device(name, "null") for name in "ABC"), links)
    trace = simulate(derive(make_plan(graph, A="a", B="b", C="c"), graph), cost, system)
    assert rows(trace, "transfer") == [("a: A -> C", "C", 2, 4, "c", "")]
    # b is copied in the background from 1 to 11.
    assert rows(trace, "wait") == [
        ("for a", "C", 0, 2, "c", "a"),
        ("for b: B -> C", "C", 4, 11, "c", "b"),
    ]


def test_waiting_is_not_busy() -> None:
    trace = simulate_fork("target")
    assert (trace.makespan_s, trace.busy_s("A"), trace.busy_s("B")) == (8, 7, 5)
    assert trace.utilisation("B") == 5 / 8


def test_nothing_is_awaited_that_was_there_before() -> None:
    spans = [Span("a", "A", 0, 2, segment=0), Span("b", "A", 3, 4, segment=1)]
    early, late = Need(2, "a", 0), Need(5, "c", 2)
    wait = with_waits(spans, lambda span: [early, late])[1]
    assert (wait.name, wait.start_s, wait.end_s, wait.awaited) == (HAND_OVER, 2, 3, -1)
    assert with_waits(spans, lambda span: [early, Need(2.5, "d", 3), late])[1].awaited == 3


def test_chromes_categories_are_the_kinds() -> None:
    layout = Span("reorder a", "B", 3, 4, "layout", tensor="a")
    found = simulate_fork("target")
    trace = Trace(found.devices, (*found.spans, layout), found.flows)
    events: list[dict[str, Any]] = json.loads(trace.to_chrome())["traceEvents"]
    process, *_ = events
    assert (process["name"], process["args"]) == ("process_name", {"name": "coexec"})
    rows = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert list(rows.values()) == ["A", "B", "B layout"]
    boxes = [e for e in events if e["ph"] == "X"]
    assert sorted(e["cat"] for e in boxes) == [
        "compute",
        "compute",
        "compute",
        "layout",
        "transfer",
        "wait",
    ]
    told = {e["cat"]: e["args"] for e in boxes}
    assert {"tensor": "a", "bytes": 16, "source": "A/null", "target": "B/null"}.items() <= told[
        "transfer"
    ].items()
    assert told["wait"]["awaited"] == 0 and told["layout"]["tensor"] == "a"
    row = {e["cat"]: rows[e["tid"]] for e in boxes}
    assert (row["transfer"], row["wait"], row["layout"]) == ("B", "B", "B layout")
    assert {e["cat"] for e in events if e["ph"] in "sf"} == {"flow"}
