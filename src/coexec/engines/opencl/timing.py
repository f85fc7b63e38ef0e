"""The times that an OpenCL device keeps of what it does."""

import time
from typing import Any, Literal

import pyopencl as cl

from coexec.timing.trace import Detail

__all__ = ["Timer"]


class Timer:
    """Collects events of a queue with profiling. The device's clock is not the host's: both are
    read when the timer is made, with nothing running."""

    def __init__(self, device: str, queue: Any) -> None:
        self._device = device
        marker = cl.enqueue_marker(queue)
        marker.wait()
        self._offset_s = time.perf_counter() - 1e-9 * marker.profile.end
        self._events: list[tuple[Any, str, Literal["copy", "kernel"], str]] = []

    def keep(self, event: Any, name: str, kind: Literal["copy", "kernel"], result: str) -> None:
        """Remember an event that was just enqueued."""
        self._events.append((event, name, kind, result))

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
