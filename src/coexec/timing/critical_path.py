"""The critical path of a trace: the segments whose delay would have delayed the end."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from coexec.timing.trace import Span, Trace


def critical_path(trace: Trace) -> tuple[Span, ...]:
    """The compute and transfer spans that determine the end of a trace of one request, in order.

    From the last span backwards: the span before is the segment that the device waited for, or else
    the span that the device had ended last. A hand-over that waited for nothing stays on its
    device.
    """
    rows: dict[str, list[Span]] = {}
    for span in trace.of("compute", "transfer", "wait"):
        rows.setdefault(span.device, []).append(span)
    computed = {span.segment: span for span in trace.of("compute")}
    busy = trace.of("compute", "transfer")
    path: list[Span] = []
    step = max(busy, key=lambda span: span.end_s, default=None)
    while step is not None and step not in path:
        if step.kind != "wait":
            path.append(step)
        step = _before(step, rows, computed)
    return tuple(reversed(path))


def _before(
    span: Span, rows: Mapping[str, Sequence[Span]], computed: Mapping[int, Span]
) -> Span | None:
    """The span whose end let ``span`` begin, or let it end if it is a wait."""
    if span.kind == "wait" and span.awaited >= 0:
        return computed.get(span.awaited)
    row = rows[span.device]
    index = bisect_left(row, span.start_s, key=lambda each: each.start_s)
    return row[index - 1] if index else None
