"""The tables of `coexec explain`."""

import statistics
from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table

from coexec.timing.explain import GROUPS, Group, Reason
from coexec.units import format_bytes, format_seconds

__all__ = ["group_table", "task_table"]


def group_table(reasons: Sequence[Reason]) -> Table:
    """Table with a row for equal reasons on a device; the rows with most computing time first."""
    table = Table("why", "where", "tasks", "computing", "elsewhere (median)", box=None)
    groups: dict[tuple[Group, str, str], list[Reason]] = {}
    for reason in reasons:
        groups.setdefault((reason.group, reason.device, reason.engine), []).append(reason)
    for (group, device, engine), own in sorted(
        groups.items(), key=lambda item: -sum(r.predicted_s for r in item[1])
    ):
        later_s = [r.elsewhere.end_s - r.here.end_s for r in own if r.elsewhere is not None]
        median_s = statistics.median(later_s) if later_s and group != "even" else None
        table.add_row(
            GROUPS[group],
            f"{device}/{engine}",
            str(len(own)),
            format_seconds(sum(r.predicted_s for r in own)),
            "" if median_s is None else _apart(median_s),
        )
    return table


def _apart(later_s: float) -> str:
    return f"{format_seconds(abs(later_s))} {'later' if later_s > 0 else 'sooner'}"


def task_table(reasons: Iterable[Reason], measured: Mapping[str, float]) -> Table:
    """Table with a row for each task, with its measured time."""
    table = Table("task", "where", "predicted", "measured", "moved", "elsewhere", box=None)
    for column in table.columns[:2]:  # long names are folded, not cut off
        column.overflow = "fold"
    for reason in reasons:
        seconds = measured.get(reason.task)
        table.add_row(
            reason.task,
            f"{reason.device}/{reason.engine}",
            format_seconds(reason.predicted_s),
            "" if seconds is None else format_seconds(seconds),
            format_bytes(reason.moved_bytes) if reason.moved_bytes else "",
            reason.why,
        )
    return table
