"""How long planning may take.

A step that measures reports its progress, and is broken off at the next report when the time is
over. What cannot be broken off (a driver that compiles, a session that is created) ends first.
"""

import math
import time
from collections.abc import Callable

__all__ = ["Deadline", "OutOfTimeError"]


class OutOfTimeError(Exception):
    """The time for a step is over. It never leaves the room: what was not tried is reported."""


class Deadline:
    """A moment until which planning may go on."""

    def __init__(
        self, seconds: float = math.inf, *, now_s: Callable[[], float] = time.monotonic,
        paused_s: Callable[[], float] = lambda: 0.0,
    ) -> None:  # fmt: skip
        """
        Args:
            seconds: from now on.
            paused_s: seconds in which planning waited for the user's own requests. They do not
                count.
        """
        self.seconds = seconds
        self._now_s, self._paused_s = now_s, paused_s
        self._start_s = self._clock_s()

    def _clock_s(self) -> float:
        return self._now_s() - self._paused_s()

    def left_s(self, share: float = 1.0) -> float:
        """Seconds until ``share`` of the time is over; negative behind that."""
        return self._start_s + share * self.seconds - self._clock_s()

    def check(self, share: float = 1.0) -> None:
        """
        Raises:
            OutOfTimeError: ``share`` of the time is over.
        """
        if self.left_s(share) <= 0:
            raise OutOfTimeError
