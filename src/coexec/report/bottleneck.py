"""What bounds the time of a request: the largest shares of its critical path."""

import math
from collections import Counter
from collections.abc import Iterator

from coexec.report.contents import Contents, DrawnSpan, TaskRow

__all__ = ["bottleneck_of"]

_WORTH_SAYING = 0.01
"""Share of the time of a request; smaller shares of transfers and waiting are left out."""


def bottleneck_of(contents: Contents) -> str:
    """A sentence about the recorded run, or else about the simulation; "" if there is none."""
    trace = contents.measured or contents.predicted
    if trace is None or not trace.makespan_s:
        return ""
    where = "recorded run" if trace is contents.measured else "simulation"
    path = [span for span in trace.blocks if span.is_critical]
    on_device: Counter[str] = Counter()
    on_kind: Counter[tuple[str, str]] = Counter()
    rows = {row.name: row for row in contents.tasks} | {row.task: row for row in contents.tasks}
    for span in path:
        if span.kind == "compute":
            on_device[span.device] += span.end_s - span.start_s  # type: ignore[assignment]
            for kind, seconds in _kinds_of(span, rows):
                on_kind[span.device, kind] += seconds  # type: ignore[assignment]
    if not on_device:
        return ""
    copying_s = math.fsum(s.end_s - s.start_s for s in path if s.kind == "transfer")
    waiting_s = max(0.0, trace.makespan_s - copying_s - math.fsum(on_device.values()))
    device, device_s = on_device.most_common(1)[0]
    kinds = Counter({kind: s for (name, kind), s in on_kind.items() if name == device})
    most = "".join(
        f", most of it in {kind} ({seconds / trace.makespan_s:.0%})"
        for kind, seconds in kinds.most_common(1)
    )
    others = "".join(
        f"; {what} {seconds / trace.makespan_s:.0%}"
        for what, seconds in (("transfers", copying_s), ("waiting and launches", waiting_s))
        if seconds > _WORTH_SAYING * trace.makespan_s
    )
    if max(copying_s, waiting_s) > device_s:
        bound = "transfers" if copying_s > waiting_s else "waiting and launches"
        first = f"{bound} bound a request more than any device does; computing on {device}"
    else:
        first = f"computing on {device} bounds a request"
    first = first[0].upper() + first[1:]
    share = device_s / trace.makespan_s
    return f"{first}: {share:.0%} of the critical path{most}{others} ({where})."


def _kinds_of(span: DrawnSpan, rows: dict[str, TaskRow]) -> Iterator[tuple[str, float]]:
    """The kinds of the tasks in a span, with their parts of its seconds by prediction."""
    known = [rows[name] for name in span.tasks if name in rows]
    predicted_s = math.fsum(row.predicted_s for row in known)
    for row in known if predicted_s else ():
        yield row.kind, (span.end_s - span.start_s) * row.predicted_s / predicted_s
