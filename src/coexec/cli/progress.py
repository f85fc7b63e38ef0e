"""Progress of long work on standard error: bars on a terminal, else lines."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from coexec.cli.console import err
from coexec.progress import ReportProgress

LOOK_S = 2.0
"""Seconds between two checks of the work. Work that ends sooner gets no line."""
LINE_S = 5.0
"""Seconds between two lines about the same work."""


@contextmanager
def progress(what: str) -> Iterator[ReportProgress]:
    """Context with a callback that shows the current work and its progress.

    Args:
        what: description of the first work.
    """
    with _bars() if err.is_terminal else _lines() as tell:
        tell(what, 0, 0)
        yield tell


def announce(what: str) -> None:
    """Print one line about work whose times are measured: drawing progress would disturb it."""
    err.print(f"coexec: {what}", soft_wrap=True)


@contextmanager
def repeated(act: Callable[[], None], every_s: float) -> Iterator[None]:
    """Call ``act`` from a thread every ``every_s`` seconds until the block ends."""
    ended = threading.Event()

    def loop() -> None:
        while not ended.wait(every_s):
            act()

    thread = threading.Thread(target=loop, name="coexec-lines", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _bars() -> Iterator[ReportProgress]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bars:
        rows: dict[str, TaskID] = {}
        endless: set[TaskID] = set()

        def tell(what: str, done: int, total: int) -> None:
            if what not in rows:
                for name, row in tuple(rows.items()):
                    if row in endless:  # without a total, it ends when other work begins
                        bars.remove_task(rows.pop(name))
                rows[what] = bars.add_task(what, total=total or None)
                if not total:
                    endless.add(rows[what])
            bars.update(rows[what], completed=done)

        yield tell


@contextmanager
def _lines() -> Iterator[ReportProgress]:
    lines = _ProgressLines()
    with repeated(lines.look, LOOK_S):
        yield lines.tell


class _ProgressLines:
    """Prints lines about the current work; not every step gets a line."""

    def __init__(self) -> None:
        self._now = ("", 0, 0)
        self._said = self._now
        self._said_s = 0.0

    def tell(self, what: str, done: int, total: int) -> None:
        self._now = what, done, total

    def look(self) -> None:
        """Print a line if other work has begun, or if the work has progressed for `LINE_S`."""
        now, now_s = self._now, time.monotonic()
        what, done, total = now
        later = now != self._said and now_s - self._said_s >= LINE_S
        if what != self._said[0] or later:
            self._said, self._said_s = now, now_s
            err.print(
                f"coexec: {what}{f', {done} of {total}' if total > 1 else ''}", soft_wrap=True
            )
