"""Traces drawn as text."""

from coexec.cli.gantt import draw
from coexec.timing.trace import Span, Trace


def test_computing_copying_and_waiting_look_different() -> None:
    spans = (
        Span("a", "cpu:0", 0.0, 2.0),
        Span("for a", "gpu:0", 0.0, 2.0, "wait"),
        Span("a: cpu:0 -> gpu:0", "gpu:0", 2.0, 4.0, "transfer"),
        Span("reorder a", "gpu:0", 3.0, 4.0, "layout"),
        Span("b", "gpu:0", 4.0, 8.0),
        Span("hand-over", "cpu:0", 2.0, 6.5, "wait"),
        Span("c", "cpu:0", 6.5, 7.0),
    )
    first, second, legend = draw(Trace(("cpu:0", "gpu:0"), spans), width=8).splitlines()
    assert first == "cpu:0 │██····▄ │  31%"
    assert second == "gpu:0 │··▓▓████│  75%"
    assert "█ computing  ▓ copying  · waiting" in legend and legend.endswith("8.00 s")


def test_a_column_tells_how_much_of_its_time_was_used() -> None:
    spans = (
        Span("a", "cpu:0", 0.0, 0.25),
        Span("copy", "cpu:0", 0.25, 0.5, "transfer"),
        Span("copy", "cpu:0", 1.0, 1.4, "transfer"),
        Span("b", "cpu:0", 2.0, 4.0),
    )
    assert draw(Trace(("cpu:0",), spans), width=4).startswith("cpu:0 │▄░██│")
    assert draw(Trace(("cpu:0",), ())) == "nothing ran"
