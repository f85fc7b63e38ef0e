"""A time limit for planning.

A measuring step reports its progress. When the time is over, the step is interrupted at its next
report. Work that cannot be interrupted (a driver that compiles, a session that is created) is
finished first.
"""

import math
import time
from collections.abc import Callable

from coexec.errors import ExecutionError

__all__ = ["Deadline", "LateError", "OutOfTimeError", "UntriedError"]


class OutOfTimeError(Exception):
    """The time for a step is over; the text is for the user. Raised inside this package only: the
    caller gets a report of the untried configurations instead."""


class Deadline:
    """The moment at which planning has to end."""

    def __init__(
        self,
        seconds: float = math.inf,
        *,
        now_s: Callable[[], float] = time.monotonic,
        paused_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """
        Args:
            seconds: time limit from now on.
            paused_s: seconds so far in which planning waited for the user's own requests. They do
                not count.
        """
        self.seconds = seconds
        self._now_s, self._paused_s = now_s, paused_s
        self._start_s = self._clock_s()

    def _clock_s(self) -> float:
        return self._now_s() - self._paused_s()

    def left_s(self, share: float = 1.0) -> float:
        """Seconds until ``share`` of the time is over; negative after that."""
        return self._start_s + share * self.seconds - self._clock_s()

    def check(self, share: float = 1.0) -> None:
        """Check that ``share`` of the time is not over.

        Raises:
            OutOfTimeError: it is over.
        """
        if self.left_s(share) <= 0:
            raise OutOfTimeError(f"there was no time for it within {self.seconds:.3g} s")


class UntriedError(ExecutionError):
    """A plan did not run, because a limit of time or memory did not allow it."""


class LateError(UntriedError):
    """A plan did not run, because the time for the choice was over before it was started."""
