"""What bounds the time of a request: the largest shares of its critical path."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from coexec.report.contents import Contents, DrawnSpan, TaskRow

__all__ = ["bottleneck_of"]

_WORTH_SAYING = 0.01
"""Share of the time of a request; smaller shares of transfers and waiting are left out."""


def bottleneck_of(contents: Contents) -> str:
    """A sentence about the recorded run, or else about the simulation; "" if there is none."""
    trace = contents.measured or contents.predicted
    if trace is None or not trace.makespan_s:
        return ""
    path = [span for span in trace.blocks if span.is_critical]
    computing = [span for span in path if span.kind == "compute"]
    if not computing:
        return ""
    by_device_s = _sums((span.device, span.end_s - span.start_s) for span in computing)
    device = _largest(by_device_s)
    transfers_s = sum(s.end_s - s.start_s for s in path if s.kind == "transfer")
    waiting_s = max(0.0, trace.makespan_s - transfers_s - sum(by_device_s.values()))
    others_s = {"transfers": transfers_s, "waiting and launches": waiting_s}
    share = by_device_s[device] / trace.makespan_s
    details = [
        *_kind_with_most(device, computing, contents.tasks, trace.makespan_s),
        *(
            f"; {what} {seconds / trace.makespan_s:.0%}"
            for what, seconds in others_s.items()
            if seconds > _WORTH_SAYING * trace.makespan_s
        ),
    ]
    where = "recorded run" if trace is contents.measured else "simulation"
    return (
        f"{_bound(device, by_device_s[device], others_s)}: {share:.0%} of the critical path"
        f"{''.join(details)} ({where})."
    )


def _bound(device: str, device_s: float, others_s: Mapping[str, float]) -> str:
    """The begin of the sentence, which ends with what the first share is of."""
    other = _largest(others_s)
    if others_s[other] <= device_s:
        return f"Computing on {device} bounds a request"
    return f"{other.capitalize()} bound a request more than any device does; computing on {device}"


def _kind_with_most(
    device: str, computing: Iterable[DrawnSpan], tasks: Iterable[TaskRow], makespan_s: float
) -> Iterator[str]:
    """The kind of tasks with most time on this device; nothing if no kind is known."""
    tasks = tuple(tasks)
    rows = {row.name: row for row in tasks} | {row.task: row for row in tasks}
    own = (span for span in computing if span.device == device)
    by_kind_s = _sums(pair for span in own for pair in _kinds_of(span, rows))
    if by_kind_s:
        kind = _largest(by_kind_s)
        is_most = by_kind_s[kind] > sum(by_kind_s.values()) / 2
        part = "most of it" if is_most else "the largest part"
        yield f", {part} in {kind} ({by_kind_s[kind] / makespan_s:.0%})"


def _kinds_of(span: DrawnSpan, rows: Mapping[str, TaskRow]) -> Iterator[tuple[str, float]]:
    """The kinds of the tasks in a span, with their parts of its seconds by prediction."""
    known = [rows[name] for name in span.tasks if name in rows]
    predicted_s = sum(row.predicted_s for row in known)
    for row in known if predicted_s else ():
        yield row.kind, (span.end_s - span.start_s) * row.predicted_s / predicted_s


def _sums(pairs: Iterable[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, float] = defaultdict(float)
    for name, seconds in pairs:
        sums[name] += seconds
    return sums


def _largest(seconds: Mapping[str, float]) -> str:
    return max(seconds, key=seconds.__getitem__)
