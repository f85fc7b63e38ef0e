"""Requests of a program, so that another process measures between them and not beside them.

One number in a mapped file: when the latest request ended, in seconds of the system's monotonic
clock, which all processes share; infinite while one is under way. Threads write it without a lock:
requests of several threads at once may hide each other, but then the next one comes soon.
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

__all__ = ["Quiet", "Traffic", "undisturbed"]

_T = TypeVar("_T")

_SIZE_BYTES = 8
_GAP_S = 0.15
"""Without a request for as long: nothing runs, and threads have stopped spinning for work (50 ms).
"""
_STEP_S = 0.005


class Traffic:
    """The program's side: it tells when requests begin and end."""

    def __init__(self) -> None:
        self._cell = memoryview(bytearray(_SIZE_BYTES)).cast("d")
        self._path = ""
        self._publishing = threading.Lock()

    def begin(self) -> None:
        """A request begins."""
        self._cell[0] = math.inf

    def end(self) -> None:
        """It has ended."""
        self._cell[0] = time.monotonic()

    def publish(self) -> str:
        """The path of the file that `Quiet` reads; made the first time.

        Raises:
            OSError: there is no place for it.
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
        """In a forked child: the file is the parent's."""
        self._cell, self._path = memoryview(bytearray(_SIZE_BYTES)).cast("d"), ""
        self._publishing = threading.Lock()  # another thread of the parent may have held it

    def withdraw(self) -> None:
        """Remove the file. Who has opened it can go on reading."""
        path, self._path = self._path, ""
        if path:
            with contextlib.suppress(OSError):
                os.unlink(path)


class Quiet:
    """The other side: waits until no request is near, and tells whether one came meanwhile."""

    def __init__(
        self,
        path: str,
        patience_s: float = math.inf,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """
        Args:
            path: of `Traffic.publish`.
            patience_s: after so long without a gap between requests, `wait` gives up for good:
                a program that never rests has to be measured beside.

        Raises:
            OSError: there is no such file.
        """
        with open(path, "rb") as file:
            self._cell = memoryview(
                mmap.mmap(file.fileno(), _SIZE_BYTES, access=mmap.ACCESS_READ)
            ).cast("d")
        self._left_s = patience_s
        self._sleep = sleep
        self.waited_s = 0.0
        """Seconds that `wait` took so far."""

    def wait(self) -> None:
        """Until the program has not been asked for a while."""
        while self._left_s > 0 and time.monotonic() - self._cell[0] < _GAP_S:
            self._sleep(_STEP_S)
            self._left_s -= _STEP_S
            self.waited_s += _STEP_S

    def disturbed(self, since_s: float) -> bool:
        """Whether a request ran after this moment of `time.monotonic`, if it is still minded."""
        return self._left_s > 0 and self._cell[0] > since_s


def undisturbed(measure: Callable[[], _T], quiet: Quiet | None) -> _T:
    """What ``measure`` returns, measured while nothing else was asked for."""
    while quiet is not None:
        quiet.wait()
        start_s = time.monotonic()
        measured = measure()
        if not quiet.disturbed(start_s):
            return measured
    return measure()
