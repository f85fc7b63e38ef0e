"""Traces in Chrome's trace event format, as Perfetto's trace processor reads them.

Perfetto cuts times off at whole nanoseconds. It drops an event that overlaps the previous one of
its row, and shows escaped characters as they are written. Its version 52 did both.
"""

import json
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coexec.timing.trace import Flow, Span, Trace


def events(trace: Trace) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(trace.to_chrome())["traceEvents"]
    return found


def in_a_row(durations_s: list[float]) -> Trace:
    """Spans of one device without a gap."""
    spans, end_s = [], 0.0
    for n, duration_s in enumerate(durations_s):
        spans.append(Span(f"s{n}", "cpu:0", end_s, end_s + duration_s, segment=n))
        end_s += duration_s
    return Trace(("cpu:0",), tuple(spans))


def nanoseconds(time_us: float) -> int:
    """A time as Perfetto reads it."""
    return round(time_us * 1000)


@given(st.lists(st.floats(1e-9, 1.0), min_size=2, max_size=20))
def test_spans_in_a_row_do_not_overlap(durations_s: list[float]) -> None:
    rows = [event for event in events(in_a_row(durations_s)) if event["ph"] == "X"]
    assert len(rows) == len(durations_s)
    for before, after in pairwise(rows):
        end_ns = nanoseconds(before["ts"]) + nanoseconds(before["dur"])
        assert end_ns == nanoseconds(after["ts"])
    for event, duration_s in zip(rows, durations_s, strict=True):
        assert abs(1e3 * event["dur"] - 1e9 * duration_s) < 1.01  # both ends are rounded
        for time_us in (event["ts"], event["dur"]):  # whole nanoseconds
            assert round(time_us * 1e3) / 1e3 == time_us


@given(st.floats(2e-9, 1e-3), st.floats(2e-9, 1e-3))
def test_arrows_begin_and_end_inside_of_their_spans(first_s: float, second_s: float) -> None:
    spans = (
        Span("a", "cpu:0", 0.0, first_s, segment=0),
        Span("b", "cpu:1", first_s, first_s + second_s, segment=1),
    )
    trace = Trace(("cpu:0", "cpu:1"), spans, (Flow("t", 4, 0, 1),))
    found = events(trace)
    whole = {event["tid"]: event for event in found if event["ph"] == "X"}
    arrows = [event for event in found if event["ph"] in "sf"]
    assert len(arrows) == 2
    for arrow in arrows:
        span = whole[arrow["tid"]]
        start_ns, at_ns = nanoseconds(span["ts"]), nanoseconds(arrow["ts"])
        assert start_ns <= at_ns <= start_ns + nanoseconds(span["dur"])


def test_characters_are_not_escaped() -> None:
    span = Span("first … last (2)", "cpu:0", 0.0, 1e-3)
    assert '"first … last (2)"' in Trace(("cpu:0",), (span,)).to_chrome()
