"""How far long work is, on standard error: bars on a terminal, else lines."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from coexec.cli.console import err

__all__ = ["Tell", "announce", "progress", "repeated"]

Tell = Callable[[str, int, int], None]
"""``tell(what, done, total)``; a total of 0: how much there is, is not known."""

_LOOK_S = 2.0
"""From one look at what is done to the next: what takes less gets no line."""
_LINE_S = 5.0
"""From one line to the next while the same thing is done."""


@contextmanager
def progress(what: str) -> Iterator[Tell]:
    """A callback that shows what is done, as long as this lasts, and how much of it.

    Args:
        what: is done until the callback says something else.
    """
    with _bars() if err.is_terminal else _lines() as tell:
        tell(what, 0, 0)
        yield tell


def announce(what: str) -> None:
    """One line for what must not be disturbed by drawing, as times are measured."""
    err.print(f"coexec: {what}", soft_wrap=True)


@contextmanager
def repeated(act: Callable[[], None], every_s: float) -> Iterator[None]:
    """Let a thread call ``act`` again and again, the first time after ``every_s``."""
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
def _bars() -> Iterator[Tell]:
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True) as bars:
        rows: dict[str, TaskID] = {}
        endless: set[TaskID] = set()

        def tell(what: str, done: int, total: int) -> None:
            if what not in rows:
                for name, row in tuple(rows.items()):
                    if row in endless:  # it is over when something else begins
                        bars.remove_task(rows.pop(name))
                rows[what] = bars.add_task(what, total=total or None)
                if not total:
                    endless.add(rows[what])
            bars.update(rows[what], completed=done)

        yield tell


@contextmanager
def _lines() -> Iterator[Tell]:
    lines = _ProgressLines()
    with repeated(lines.look, _LOOK_S):
        yield lines.tell


class _ProgressLines:
    """Lines about what is done now, but not about each step."""

    def __init__(self) -> None:
        self._now = ("", 0, 0)
        self._said = self._now
        self._said_s = 0.0

    def tell(self, what: str, done: int, total: int) -> None:
        self._now = what, done, total

    def look(self) -> None:
        """Print a line if something else is done, or enough time has gone by."""
        now, now_s = self._now, time.monotonic()
        what, done, total = now
        later = now != self._said and now_s - self._said_s >= _LINE_S
        if what != self._said[0] or later:
            self._said, self._said_s = now, now_s
            err.print(f"coexec: {what}{f', {done} of {total}' if total > 1 else ''}",
                      soft_wrap=True)  # fmt: skip
