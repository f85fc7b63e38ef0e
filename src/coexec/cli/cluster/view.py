"""Progress of a running pipeline: a table on a terminal, else a line every few seconds."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from coexec.cli.console import err, visible
from coexec.cli.progress import repeated
from coexec.pipeline.cluster.session import ClusterSession, MachineStatus, Status
from coexec.units import format_bytes, format_numbers, format_seconds

_WINDOW_S = 3.0
"""Seconds over which rates are computed."""
_LINE_S = 5.0
"""Seconds from one line to the next, without a terminal."""
_A_SECOND = 2
"""Number of tables per second."""


class _Look(NamedTuple):
    at_s: float
    status: Status


@contextmanager
def watched(session: ClusterSession, total: int, quiet: bool) -> Iterator[None]:
    """Context that shows the progress of a session, and changes of plans, on standard error."""
    view = _View(session, total)
    with logged(quiet):
        if quiet:
            yield
        elif err.is_terminal:
            with Live(
                get_renderable=view.table, console=err, refresh_per_second=_A_SECOND, transient=True
            ):
                yield
        else:
            with _lines(view):
                yield


class _View:
    def __init__(self, session: ClusterSession, total: int) -> None:
        self._session, self._total = session, total
        self._looks: deque[_Look] = deque()
        self._lock = threading.Lock()

    def look(self) -> tuple[_Look, _Look]:
        """State of the session `_WINDOW_S` seconds ago, and now."""
        with self._lock:
            now = time.monotonic()
            self._looks.append(_Look(now, self._session.status()))
            while len(self._looks) > 2 and now - self._looks[1].at_s >= _WINDOW_S:
                self._looks.popleft()
            return self._looks[0], self._looks[-1]

    def line(self) -> str:
        """A line of text with progress and rate."""
        before, now = self.look()
        seconds = now.at_s - before.at_s
        came = now.status.answered - before.status.answered
        parts = [
            f"{now.status.answered} of {self._total} frames answered",
            f"{now.status.inside} inside of {now.status.credits} credits",
        ]
        if came and seconds > 0:
            predicted = format_seconds(now.status.predicted_period_s)
            parts.append(
                f"{came / seconds:.1f} answers a second, {format_seconds(seconds / came)} "
                f"each, predicted {predicted}"
            )
        return "; ".join(parts)

    def table(self) -> Group:
        """A table with a row for each machine, and the line of `line`."""
        before, now = self.look()
        seconds = max(now.at_s - before.at_s, 1e-9)
        table = Table(
            "machine", "stages", "queue", "frames", "busy", "shares/s", "in/s", "out/s", box=None
        )
        old = {machine.name: machine for machine in before.status.machines}
        for machine in now.status.machines:
            table.add_row(*_row(machine, old.get(machine.name, machine), seconds))
        return Group(table, Text(visible(self.line())))


def _row(now: MachineStatus, before: MachineStatus, seconds: float) -> list[str]:
    return [
        now.name,
        format_numbers(now.stages, ", ") or "none",
        str(now.waiting),
        str(now.inside),
        f"{min(1.0, (now.busy_s - before.busy_s) / seconds):.0%}",
        f"{(now.shares - before.shares) / seconds:.1f}",
        format_bytes((now.received_bytes - before.received_bytes) / seconds),
        format_bytes((now.sent_bytes - before.sent_bytes) / seconds),
    ]


@contextmanager
def _lines(view: _View) -> Iterator[None]:
    view.look()
    with repeated(lambda: err.print(view.line(), soft_wrap=True), _LINE_S):
        yield


class _Console(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        err.print(f"coexec: {record.getMessage()}", soft_wrap=True)


@contextmanager
def logged(quiet: bool) -> Iterator[None]:
    """Context in which log messages of the cluster are printed on standard error."""
    log, handler = logging.getLogger("coexec.pipeline.cluster"), _Console()
    before, passes_on = log.level, log.propagate
    log.addHandler(handler)
    log.setLevel(logging.WARNING if quiet else logging.INFO)
    log.propagate = False
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
        log.propagate = passes_on
