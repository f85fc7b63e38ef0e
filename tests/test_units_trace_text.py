"""Units, traces and the text form of graphs."""

import json

import pytest

from coexec.errors import UsageError
from coexec.graph.graph import Graph, Operator, Task, Tensor
from coexec.graph.text import format_graph
from coexec.graph.width import critical_path, width
from coexec.timing.trace import Flow, Span, Trace
from coexec.units import (
    format_bytes,
    format_count,
    format_joules,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
)


def chainable(name: str, reads: tuple[str, ...], macs: int = 0) -> Task:
    op = Operator("Add", reads, (name,), {}, {})
    return Task(name, (op,), reads, (), (name,), "add", macs)


def diamond() -> Graph:
    reads = {"a": ("x",), "b": ("a",), "c": ("a",), "d": ("b",), "e": ("c", "d")}
    tasks = tuple(chainable(n, r, macs=10 * i) for i, (n, r) in enumerate(reads.items()))
    tensors = {n: Tensor(n, (1, 4), "float32") for n in ["x", *reads]}
    tensors["x"] = Tensor("x", (1, 4), "int64")
    return Graph("diamond", tensors, tasks, ("x",), ("e",))


def test_graph_as_text() -> None:
    assert format_graph(diamond()) == (
        "graph diamond (x: 1x4 int64)\n"
        "  a: 1x4 = Add(x)\n"
        "  b: 1x4 = Add(a)  # 10 MACs\n"
        "  c: 1x4 = Add(a)  # 20 MACs\n"
        "  d: 1x4 = Add(b)  # 30 MACs\n"
        "  e: 1x4 = Add(c, d)  # 40 MACs\n"
        "return e"
    )


def test_width_and_critical_path() -> None:
    graph = diamond()
    assert width(graph) == 2
    assert [t.name for t in critical_path(graph, lambda t: 1.0)] == ["a", "b", "d", "e"]
    independent = tuple(chainable(f"t{i}", ("x",)) for i in range(9))
    tensors = {n: Tensor(n, (1,), "float32") for n in ["x", *(t.name for t in independent)]}
    assert width(Graph("wide", tensors, independent, ("x",), ("t0",))) == 9


@pytest.mark.parametrize(
    ("text", "size"), [("8GB", 8 * 10**9), ("8 GiB", 2**33), ("512", 512), ("1.5kB", 1500)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_bytes(text) == size


def test_bandwidths_and_nonsense() -> None:
    assert parse_bandwidth("50Mbit") == 6.25e6
    assert parse_bandwidth("1.5GB/s") == 1.5e9
    for text in ("", "fast", "8XB", "-1GB"):
        with pytest.raises(UsageError, match="is not a"):
            parse_bytes(text)
    with pytest.raises(UsageError, match="counts bits"):
        parse_bytes("8Gbit")


def test_numbers_for_people() -> None:
    assert [format_seconds(s) for s in (1.5, 0.00123, 4.2e-5, 3e-9, float("inf"), 0.0)] == [
        "1.50 s",
        "1.23 ms",
        "42.0 us",
        "3.00 ns",
        "never",
        "0.00 ns",
    ]
    assert [format_joules(j) for j in (1.92, 0.72, 3e-6, 0.0)] == [
        "1.92 J",
        "720 mJ",
        "3.00 uJ",
        "0.00 uJ",
    ]
    assert format_bytes(2**20) == "1.00 MiB"
    assert format_count(5713216096) == "5.71 G"
    assert format_count(12) == "12.0"


def test_traces_open_in_perfetto() -> None:
    spans = (
        Span("first", "cpu:0", 0.0, 1e-3, tasks=("a",), segment=0),
        Span("second", "cpu:1", 1.1e-3, 2e-3, tasks=("b",), segment=1),
    )
    trace = Trace(("cpu:0", "cpu:1"), spans, (Flow("t", 64, 0, 1),))
    assert trace.makespan_s == 2e-3 and trace.utilisation("cpu:0") == 0.5
    events = json.loads(trace.to_chrome())["traceEvents"]
    phases = [e["ph"] for e in events]
    assert phases == ["M", "M", "M", "M", "M", "X", "X", "s", "f"]
    start, finish = events[-2:]
    assert start["id"] == finish["id"] and start["tid"] == 0 and finish["tid"] == 1
    slices = {e["tid"]: e for e in events if e["ph"] == "X"}
    for event in (start, finish):  # each arrow ends inside of its slice
        box = slices[event["tid"]]
        assert box["ts"] <= event["ts"] <= box["ts"] + box["dur"]
