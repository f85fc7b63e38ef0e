"""Shares the time of a program's last request, so that another process measures between requests.

A mapped file has one number: when the latest request ended, in seconds of the system's monotonic
clock, which all processes share; infinite while a request is running. Threads write it without a
lock. So simultaneous requests of several threads may overwrite each other's value, but then the
next request comes soon.
"""

import contextlib
import math
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable
from typing import TypeVar

_T = TypeVar("_T")

_SIZE_BYTES = 8
_GAP_S = 0.15
"""Seconds without a request after which nothing runs: threads spin for work for up to 50 ms."""
_STEP_S = 0.005


class Traffic:
    """The writing side, in the program: records when requests begin and end."""

    def __init__(self) -> None:
        self._cell = memoryview(bytearray(_SIZE_BYTES)).cast("d")
        self._path = ""
        self._publishing = threading.Lock()

    def begin(self) -> None:
        """Record that a request begins."""
        self._cell[0] = math.inf

    def end(self) -> None:
        """Record that the request has ended."""
        self._cell[0] = time.monotonic()

    def publish(self) -> str:
        """The path of the file that `Quiet` reads; the first call makes the file.

        Raises:
            OSError: the file cannot be made.
        """
        with self._publishing:
            self._path = self._path or self._publish()
        return self._path

    def _publish(self) -> str:
        file, path = tempfile.mkstemp(prefix="coexec-traffic-")
        try:
            os.truncate(file, _SIZE_BYTES)
            mapped = memoryview(mmap.mmap(file, _SIZE_BYTES)).cast("d")
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(file)
        mapped[0] = self._cell[0]
        self._cell = mapped
        return path

    def leave(self) -> None:
        """Use no file any more, in a forked child: the file belongs to the parent."""
        self._cell, self._path = memoryview(bytearray(_SIZE_BYTES)).cast("d"), ""
        self._publishing = threading.Lock()  # another thread of the parent may have held it

    def withdraw(self) -> None:
        """Remove the file. A process that has opened it can still read it."""
        path, self._path = self._path, ""
        if path:
            with contextlib.suppress(OSError):
                os.unlink(path)


TRAFFIC = Traffic()
"""Times of the requests of all sessions of this process."""


class Quiet:
    """The reading side: waits for a gap between requests, and detects requests in a period."""

    def __init__(
        self,
        path: str,
        patience_s: float = math.inf,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Args:
            path: result of `Traffic.publish`.
            patience_s: total seconds that `wait` may take. After that it never waits again: in a
                program without gaps, measurements run at the same time as requests.

        Raises:
            OSError: the file does not exist.
        """
        with open(path, "rb") as file:
            self._cell = memoryview(
                mmap.mmap(file.fileno(), _SIZE_BYTES, access=mmap.ACCESS_READ)
            ).cast("d")
        self._left_s = patience_s
        self._sleep = sleep
        self.waited_s = 0.0
        """Total seconds of all calls of `wait` so far."""

    def wait(self) -> None:
        """Wait until the program has run no request for a while."""
        while self._left_s > 0 and time.monotonic() - self._cell[0] < _GAP_S:
            self._sleep(_STEP_S)
            self._left_s -= _STEP_S
            self.waited_s += _STEP_S

    def disturbed(self, since_s: float) -> bool:
        """Whether a request ran after this second of `time.monotonic`; False after `patience_s`."""
        return self._left_s > 0 and self._cell[0] > since_s


def undisturbed(measure: Callable[[], _T], quiet: Quiet | None) -> _T:
    """The result of ``measure``, repeated until no request ran at the same time."""
    while quiet is not None:
        quiet.wait()
        start_s = time.monotonic()
        measured = measure()
        if not quiet.disturbed(start_s):
            return measured
    return measure()
