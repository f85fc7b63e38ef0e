"""Times of commands, as an OpenCL device records them."""

import time
from typing import Any, Literal

import pyopencl as cl

from coexec.timing.trace import Detail

_READINGS = 5
"""Number of readings of both clocks."""


class Timer:
    """Collects the events of a queue with profiling.

    The device's clock differs from the host's. The offset between them is measured when the timer
    is made, while no command is running. It is the smallest one of a few commands: the host has
    seen the end of that command soonest.
    """

    def __init__(self, device: str, queue: Any) -> None:
        self._device = device
        self._offset_s = min(_offset_s(queue) for _ in range(_READINGS))
        self._events: list[tuple[Any, str, Literal["copy", "kernel"], str]] = []

    def keep(self, event: Any, name: str, kind: Literal["copy", "kernel"], result: str) -> None:
        """Remember an event that was just enqueued."""
        self._events.append((event, name, kind, result))

    def details(self) -> list[Detail]:
        """The recorded commands; waits until they have ended."""
        return [self._detail(*entry) for entry in self._events]

    def _detail(
        self, event: Any, name: str, kind: Literal["copy", "kernel"], result: str
    ) -> Detail:
        event.wait()
        profile = event.profile
        times = (profile.queued, profile.submit, profile.start, profile.end)
        queued_s, submitted_s, start_s, end_s = (1e-9 * t + self._offset_s for t in times)
        return Detail(name, self._device, kind, queued_s, submitted_s, start_s, end_s, result)


def _offset_s(queue: Any) -> float:
    """Host clock minus device clock in seconds, plus the time in which the host sees the end of a
    command."""
    marker = cl.enqueue_marker(queue)
    marker.wait()
    return time.perf_counter() - 1e-9 * marker.profile.end
