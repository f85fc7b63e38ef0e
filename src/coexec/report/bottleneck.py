"""What bounds the time of a request: the largest shares of its critical path."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from coexec.report.contents import Contents, TaskRow
from coexec.timing.critical_path import critical_path
from coexec.timing.trace import Span

_WORTH_SAYING = 0.01
"""Share of the time of a request; smaller shares of transfers and waiting are left out."""


def bottleneck_of(contents: Contents) -> str:
    """A sentence about the recorded run, or else about the simulation; "" if there is none."""
    trace = contents.measured or contents.predicted
    path = () if trace is None else critical_path(trace)
    computing = [span for span in path if span.kind == "compute"]
    if trace is None or not trace.makespan_s or not computing:
        return ""
    makespan_s = trace.makespan_s
    (device, device_s), *_ = _sums((span.device, span.duration_s) for span in computing)
    computing_s = sum(span.duration_s for span in computing)
    transfers_s = sum(span.duration_s for span in path if span.kind == "transfer")
    waiting_s = max(0.0, makespan_s - transfers_s - computing_s)
    others = _sums([("transfers", transfers_s), ("waiting and launches", waiting_s)])
    bound = f"Computing on {device} bounds a request"
    if others[0][1] > device_s:
        other = others[0][0].capitalize()
        bound = f"{other} bound a request more than any device does; computing on {device}"
    details = [
        f"; {what} {seconds / makespan_s:.0%}"
        for what, seconds in sorted(others)
        if seconds > _WORTH_SAYING * makespan_s
    ]
    own = [span for span in computing if span.device == device]
    most = "".join(_kind_with_most(own, contents.tasks, makespan_s))
    where = "recorded run" if trace is contents.measured else "simulation"
    share = f"{device_s / makespan_s:.0%} of the critical path"
    return f"{bound}: {share}{most}{''.join(details)} ({where})."


def _kind_with_most(
    spans: Iterable[Span], tasks: Sequence[TaskRow], makespan_s: float
) -> Iterator[str]:
    """The kind of tasks with most time in these spans; nothing if no kind is known. The tasks of a
    span have parts of its seconds by their prediction."""
    rows = {row.name: row for row in tasks} | {row.task: row for row in tasks}
    pairs: list[tuple[str, float]] = []
    for span in spans:
        known = [rows[name] for name in span.tasks if name in rows]
        predicted_s = sum(row.predicted_s for row in known)
        for row in known if predicted_s else ():
            pairs.append((row.kind, span.duration_s * row.predicted_s / predicted_s))
    if pairs:
        (kind, kind_s), *_ = _sums(pairs)
        is_most = kind_s > sum(seconds for _, seconds in pairs) / 2
        part = "most of it" if is_most else "the largest part"
        yield f", {part} in {kind} ({kind_s / makespan_s:.0%})"


def _sums(pairs: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """The sum of the seconds by name, the largest first."""
    sums: Counter[str] = Counter()
    for name, seconds in pairs:
        sums[name] += seconds  # type: ignore[assignment]
    return [(name, float(seconds)) for name, seconds in sums.most_common()]
