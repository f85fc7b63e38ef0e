"""The waits of devices, derived from their spans: one rule for the simulator and the executor."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from coexec.timing.trace import Span

HAND_OVER = "hand-over"
"""Name of a wait in which no input was missing."""


class Need(NamedTuple):
    """A result without which a span cannot start."""

    there_s: float
    """Second at which it was available."""
    name: str
    segment: int
    """The segment that made it."""
    tensor: str = ""
    """Its name, if it is a tensor that came over a background link or that its source sent."""


def with_waits(spans: Iterable[Span], needs: Callable[[Span], Iterable[Need]]) -> tuple[Span, ...]:
    """Compute and transfer spans with the waits of each device between them, in order of start.

    Args:
        spans: compute and transfer spans; spans of one device do not overlap.
        needs: returns the results that a span needs, with the second at which each was available.
    """
    free_s: dict[str, float] = {}
    all_spans: list[Span] = []
    for span in sorted(spans, key=_order):
        from_s = free_s.get(span.device, 0.0)
        if span.start_s > from_s:
            all_spans.append(_wait(span, from_s, needs(span)))
        all_spans.append(span)
        free_s[span.device] = span.end_s
    return tuple(sorted(all_spans, key=_order))


def _order(span: Span) -> tuple[float, float, str]:
    return span.start_s, span.end_s, span.device


def _wait(before: Span, from_s: float, needs: Iterable[Need]) -> Span:
    """The wait from ``from_s`` until the start of the span ``before`` which it lies."""
    # Results that were available before the wait began are no reason for it.
    missing = [need for need in needs if from_s < need.there_s <= before.start_s]
    last = max(missing, key=lambda need: need.there_s, default=Need(0.0, HAND_OVER, -1))
    name = f"for {last.name}" if missing else HAND_OVER
    return Span(
        name,
        before.device,
        from_s,
        before.start_s,
        "wait",
        segment=before.segment,
        request=before.request,
        tensor=last.tensor,
        awaited=last.segment,
    )
