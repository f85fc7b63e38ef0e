"""The threads of devices, and their queues."""

import os
import threading
import time
from collections.abc import Collection, Mapping
from queue import SimpleQueue
from typing import Protocol

from coexec.errors import UnfinishedError

__all__ = ["LOOK_S", "Job", "Worker", "Workers", "bind_thread"]

Job = int | tuple[str, int]
"""A segment to run, or a value to move for the segment that reads it."""

LOOK_S = 0.5
"""Seconds after which a waiting thread checks again whether the awaited thread is alive."""
_END_S = 10.0
"""Seconds to wait for the end of each thread."""


class JobRunner(Protocol):
    """Carries out the jobs of one inference."""

    def advance(self, job: Job, device: str) -> None: ...

    def fail(self, error: BaseException) -> None: ...


_Queue = SimpleQueue[tuple[JobRunner, Job] | threading.Event | None]
"""A job with its run; an event that is set when all earlier jobs are done; or None, which ends the
thread."""


class Worker:
    """The thread of one device.

    It owns a job from the moment at which it takes the job from its queue. Jobs of a stopped run
    stay in the queue and are dropped when they reach its front.
    """

    def __init__(self, name: str, cores: Collection[int]) -> None:
        """Start the thread.

        Args:
            name: of the device.
            cores: to bind the thread to. Empty: the thread is not bound.
        """
        self._name = name
        self._queue: _Queue = SimpleQueue()
        # The thread holds no reference to the executor, which can be collected when unused.
        self._thread = threading.Thread(
            target=_serve, args=(name, cores, self._queue), name=f"coexec {name}", daemon=True
        )
        try:
            self._thread.start()
        except BaseException:  # the thread may run already, but no reference to it remains
            self._queue.put(None)
            raise

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def give(self, run: JobRunner, job: Job) -> None:
        self._queue.put((run, job))

    def rest(self, end_s: float) -> bool:
        """Wait until all jobs in the queue are done, at most until ``end_s``. Returns whether they
        are done."""
        done = threading.Event()
        self._queue.put(done)
        while self.alive and time.monotonic() < end_s:
            if done.wait(LOOK_S):
                return True
        return not self.alive

    def tell_to_end(self) -> None:
        self._queue.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread. In the thread itself (garbage collection): no wait."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)


class Workers:
    """The threads of a plan's devices, except the device that the caller's thread serves."""

    def __init__(self, cores: Mapping[str, Collection[int]]) -> None:
        """``cores``: by device, as for `Worker`. No thread is started yet."""
        self._cores = cores
        self._workers: dict[str, Worker] = {}

    def complete(self) -> Mapping[str, Worker]:
        """All workers by device; threads that have ended are replaced."""
        for name, cores in self._cores.items():
            worker = self._workers.get(name)
            if worker is None or not worker.alive:
                self._workers[name] = Worker(name, cores)
        return self._workers.copy()

    def restless(self, end_s: float) -> str | None:
        """Wait until all jobs are done, at most until ``end_s``. Returns the first device whose
        thread is still busy then."""
        return next((n for n, w in self._workers.items() if not w.rest(end_s)), None)

    def forget(self) -> None:
        """Drop the threads, in a forked child, where they do not exist."""
        self._workers.clear()

    def end(self) -> None:
        """End the threads, and wait for them for a limited time."""
        for worker in self._workers.values():
            worker.tell_to_end()
        for worker in self._workers.values():
            worker.join(_END_S)


def _serve(name: str, cores: Collection[int], queue: _Queue) -> None:
    bind_thread(cores)
    run: JobRunner | None = None
    try:
        while (entry := queue.get()) is not None:
            if isinstance(entry, threading.Event):
                entry.set()
                continue
            run, job = entry
            run.advance(job, name)
            run = None
            del entry, job  # frees the tensors of a run that is over
    except BaseException as error:
        # Another thread raised it in this one. Errors of segments are caught in the run.
        if run is not None:
            run.fail(
                UnfinishedError(
                    f"the thread of {name} was ended by {type(error).__name__}; run again"
                )
            )


def bind_thread(cores: Collection[int]) -> None:
    """Bind the calling thread to ``cores``, if there are any and the system supports it."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
