"""The times that an OpenCL device keeps of what it does."""

import time
from typing import Any, Literal

import pyopencl as cl

from coexec.timing.trace import Detail

__all__ = ["Timer"]

_READINGS = 5
"""Of both clocks."""


class Timer:
    """Collects events of a queue with profiling.

    The device's clock is not the host's. What is added to it is read when the timer is made, with
    nothing running: from a few commands, the one whose end the host sees soonest."""

    def __init__(self, device: str, queue: Any) -> None:
        self._device = device
        self._offset_s = min(_offset_s(queue) for _ in range(_READINGS))
        self._events: list[tuple[Any, str, Literal["copy", "kernel"], str]] = []

    def keep(self, event: Any, name: str, kind: Literal["copy", "kernel"], result: str) -> None:
        """Remember an event that was just enqueued."""
        self._events.append((event, name, kind, result))

    def span_s(self, first: Any, last: Any) -> tuple[float, float]:
        """From the begin of an event to the end of another one, which have ended, in seconds of
        `time.perf_counter`."""
        return (1e-9 * first.profile.start + self._offset_s,
                1e-9 * last.profile.end + self._offset_s)  # fmt: skip

    def details(self) -> list[Detail]:
        """What was kept, once all of it has ended."""
        return [self._detail(*kept) for kept in self._events]

    def _detail(
        self, event: Any, name: str, kind: Literal["copy", "kernel"], result: str
    ) -> Detail:
        event.wait()
        profile = event.profile
        times = (profile.queued, profile.submit, profile.start, profile.end)
        queued_s, submitted_s, start_s, end_s = (1e-9 * t + self._offset_s for t in times)
        return Detail(name, self._device, kind, queued_s, submitted_s, start_s, end_s, result)


def _offset_s(queue: Any) -> float:
    """The host's clock less the device's, and what it takes to see that a command has ended."""
    marker = cl.enqueue_marker(queue)
    marker.wait()
    return time.perf_counter() - 1e-9 * marker.profile.end
