"""Kernels that overlap have rows of their own in traces, and the report counts them."""

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coexec.report.contents import Contents
from coexec.timing.lanes import kernels_in_words, lanes
from coexec.timing.trace import Detail, Span, Trace

PERIODS = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=40,
)


def kernel(start_s: float, end_s: float, name: str = "conv", device: str = "gpu:0") -> Detail:
    return Detail(name, device, "kernel", 0.0, 0.0, start_s, end_s, result=f"r{start_s}")


def deepest(periods: list[tuple[int, int]]) -> int:
    """Most periods at the same moment. An empty one takes a lane between others."""

    def at(moment: int) -> int:
        around = sum(start < moment < end for start, end in periods)
        begin = [end for start, end in periods if start == moment]
        return around + max(sum(end > moment for end in begin), bool(begin))

    return max((at(start) for start, _ in periods), default=0)


@given(PERIODS)
def test_lanes_do_not_overlap_and_are_as_few_as_possible(periods: list[tuple[int, int]]) -> None:
    found = lanes(periods)
    assert sorted(set(found)) == list(range(deepest(periods)))
    for lane in set(found):
        own = sorted(p for p, number in zip(periods, found, strict=True) if number == lane)
        assert all(end <= start for (_, end), (start, _) in pairwise(own))


@given(PERIODS)
def test_a_trace_draws_no_kernel_over_another(periods: list[tuple[int, int]]) -> None:
    """Perfetto drops an event that begins inside of another one of its row."""
    details = tuple(kernel(1e-6 * start, 1e-6 * end) for start, end in periods)
    span = Span("s", "gpu:0", 0.0, 1e-3)
    rows: dict[int, list[tuple[float, float]]] = {}
    for event in events(Trace(("gpu:0",), (span,), (), details)):
        if event["ph"] == "X":
            rows.setdefault(event["tid"], []).append((event["ts"], event["ts"] + event["dur"]))
    assert len(rows) == 1 + deepest(periods)
    for row in rows.values():
        row.sort()
        assert all(end <= start + 1e-4 for (_, end), (start, _) in pairwise(row))


def events(trace: Trace) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(trace.to_chrome())["traceEvents"]
    return found


def test_rows_of_a_device_follow_each_other() -> None:
    details = (kernel(0.0, 2.0), kernel(0.0, 2.0, device="gpu:1"), kernel(1.0, 3.0))
    layouts = tuple(Span("reorder", "gpu:0", 0.0, 1.0, "layout") for _ in range(2))
    found = events(Trace(("gpu:0", "gpu:1"), layouts, (), details))
    assert [e["args"]["name"] for e in found if e["name"] == "thread_name"] == [
        "gpu:0",
        "gpu:1",
        "gpu:0 layout",
        "gpu:0 layout, branch 2",
        "gpu:0 kernels, by the engine's clock",
        "gpu:0 kernels, by the engine's clock, branch 2",
        "gpu:1 kernels, by the engine's clock",
    ]


def test_kernels_are_counted_in_words() -> None:
    beside = [kernel(0.0, 1e-3), kernel(0.5e-3, 1.5e-3), kernel(1.5e-3, 2e-3)]
    words = "3 kernels, up to 2 side by side, 2.50 ms of work in 2.00 ms"
    assert kernels_in_words(beside) == words
    alone = "1 kernel, one after the other, 1.00 ms of work in 1.00 ms"
    assert kernels_in_words(beside[:1]) == alone
    assert kernels_in_words([]) == ""


def test_the_report_draws_branches_as_rows() -> None:
    details = (kernel(0.0, 1.0, "a"), kernel(0.5, 1.0, "b"))
    trace = Trace(("gpu:0",), (Span("s", "gpu:0", 0.0, 1.0),), (), details)
    drawn = Contents("m", "m", measured=trace).to_json()["measured"]
    assert drawn["utilisation"] == {"gpu:0": 1.0, "gpu:0 kernels": 1.0, "gpu:0 branch 2": 0.5}
    rows = [(block["device"], block["name"], block["kind"]) for block in drawn["blocks"]]
    assert rows[1:] == [("gpu:0 kernels", "a", "kernel"), ("gpu:0 branch 2", "b", "kernel")]
