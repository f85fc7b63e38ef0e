"""The threads that serve a run loop or a team, but the caller's."""

import os
import threading
import time
import weakref
from collections.abc import Collection, Mapping
from contextlib import suppress

from coexec.runtime.steps import ServedThreads

_END_S = 10.0
"""Seconds to wait for the end of each thread."""
_POLL_S = 1e-4
_LONGEST_POLL_S = 0.02


class DeviceThreads:
    """Threads of one loop. They end with this object, with `end`, and with the program."""

    def __init__(
        self, loop: ServedThreads, cores: Mapping[int, tuple[str, Collection[int]]], kept: object
    ) -> None:
        """Start the threads.

        Args:
            cores: by index of the device, its name and the cores that its thread is bound to;
                without cores it is not bound.
            kept: the owner of the memory of the loop's steps. The threads keep it alive.
        """
        self._loop = loop
        self._cores = cores
        self._kept = kept
        self._threads: dict[int, threading.Thread] = {}
        # The threads hold no reference to this object, so it is collected when unused.
        self._finalizer = weakref.finalize(self, _end, loop, self._threads)
        try:
            self.complete()
        except BaseException:
            self.end()
            raise

    def complete(self) -> None:
        """Replace threads that have ended."""
        for device, (name, cores) in self._cores.items():
            thread = self._threads.get(device)
            if thread is None or not thread.is_alive():
                self._threads[device] = thread = threading.Thread(
                    target=_serve,
                    args=(self._loop, device, cores, self._kept),
                    name=f"coexec {name}",
                    daemon=True,
                )
                thread.start()

    def dead(self) -> str | None:
        """The name of a device whose thread has ended; None if all live."""
        for device, thread in self._threads.items():
            if not thread.is_alive():
                return self._cores[device][0]
        return None

    def restless(self, end_s: float) -> str | None:
        """Wait until all threads have left the latest run, at most until ``end_s`` of
        `time.monotonic`. Returns the name of a device that has not."""
        poll_s = _POLL_S
        while True:
            busy = next(
                (d for d, t in self._threads.items() if t.is_alive() and not self._loop.rests(d)),
                None,
            )
            if busy is None:
                return None
            if time.monotonic() > end_s:
                return self._cores[busy][0]
            time.sleep(poll_s)
            poll_s = min(2 * poll_s, _LONGEST_POLL_S)

    def end(self) -> None:
        """End the threads, and wait for them for a limited time."""
        self._finalizer.detach()
        _end(self._loop, self._threads)


def _end(loop: ServedThreads, threads: Mapping[int, threading.Thread]) -> None:
    loop.end()
    for thread in threads.values():
        if thread.is_alive() and thread is not threading.current_thread():  # garbage collection
            thread.join(_END_S)


def bind_thread(cores: Collection[int]) -> None:
    """Bind the calling thread to ``cores``, if there are any and the system supports it.

    Where the process has lost them meanwhile, the thread stays on the cores that it has.
    """
    if cores and hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            os.sched_setaffinity(0, cores)


def _serve(loop: ServedThreads, device: int, cores: Collection[int], kept: object) -> None:
    try:
        bind_thread(cores)
        loop.serve(device)
    except BaseException:  # raised by another thread in this one, which ends it
        loop.stop()
