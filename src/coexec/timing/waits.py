"""What devices wait for, told from what they do: one rule for the simulator and the executor."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

from coexec.timing.trace import Span

__all__ = ["HAND_OVER", "Need", "with_waits"]

HAND_OVER = "hand-over"
"""Name of a wait in which nothing was missing."""


class Need(NamedTuple):
    """Something without which a span cannot start."""

    there_s: float
    """When it was there."""
    name: str
    segment: int
    """The segment that made it."""
    tensor: str = ""
    """If it is a tensor that came over a link in the background, or was sent by its source."""


def with_waits(spans: Iterable[Span], needs: Callable[[Span], Iterable[Need]]) -> tuple[Span, ...]:
    """Compute and transfer spans in order of start, and between them the waits of each device.

    Args:
        spans: those of one device do not overlap.
        needs: what a span could not start without, and what came in the meantime.
    """
    free_s: dict[str, float] = {}
    found: list[Span] = []
    for span in sorted(spans, key=_order):
        from_s = free_s.get(span.device, 0.0)
        if span.start_s > from_s:
            found.append(_wait(span, from_s, needs(span)))
        found.append(span)
        free_s[span.device] = span.end_s
    return tuple(sorted(found, key=_order))


def _order(span: Span) -> tuple[float, float, str]:
    return span.start_s, span.end_s, span.device


def _wait(before: Span, from_s: float, needs: Iterable[Need]) -> Span:
    """The wait from ``from_s`` until the span ``before`` which it lies."""
    missing = [need for need in needs if from_s < need.there_s <= before.start_s]
    last = max(missing, key=lambda need: need.there_s, default=Need(0.0, HAND_OVER, -1))
    name = f"for {last.name}" if missing else HAND_OVER
    return Span(name, before.device, from_s, before.start_s, "wait", segment=before.segment,
                request=before.request, tensor=last.tensor, awaited=last.segment)  # fmt: skip
