"""The threads of devices, and what they are given to do."""

import os
import threading
import time
from collections.abc import Collection
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, TypeVar

from coexec.errors import ExecutionError

if TYPE_CHECKING:
    from coexec.runtime.run import Job, Run

__all__ = ["LOOK_S", "Worker", "bind_thread", "next_of"]

LOOK_S = 0.5
"""How long a thread waits before it looks whether what it waits for can still come."""
_SPIN_S = 1.0
"""How long a thread that waits actively asks without a pause. Then it sleeps."""

_T = TypeVar("_T")
_Queue = SimpleQueue["tuple[Run, Job] | threading.Event | None"]
"""Jobs, each with its run; an event to set once all before it are done; None ends the thread."""


class Worker:
    """The thread of one device.

    It owns a job from the moment it takes it from its queue. A run tells it by `Run.stopped` that
    its jobs do not count any more, so that nobody has to take them out of the queue again.
    """

    def __init__(self, name: str, cores: Collection[int], active: bool) -> None:
        """Start the thread.

        Args:
            name: of the device.
            cores: to bind the thread to; none leaves it where it is.
            active: keep the core busy while a run is under way.
        """
        self._name = name
        self._queue: _Queue = SimpleQueue()
        # The thread knows its queue only: it does not keep an executor alive that nobody uses.
        self._thread = threading.Thread(
            target=_serve, args=(name, cores, self._queue, active), name=f"coexec {name}",
            daemon=True,
        )  # fmt: skip
        try:
            self._thread.start()
        except BaseException:  # it may run already, and nobody would ever give it anything
            self._queue.put(None)
            raise

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def give(self, run: "Run", job: "Job") -> None:
        self._queue.put((run, job))

    def rest(self, end_s: float) -> bool:
        """Wait until it has done all that it was given, or until ``end_s``; whether it has."""
        done = threading.Event()
        self._queue.put(done)
        while self.alive and time.monotonic() < end_s:
            if done.wait(LOOK_S):
                return True
        return not self.alive

    def tell_to_end(self) -> None:
        self._queue.put(None)

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end; not in the thread itself, where a collector may call it."""
        if self._thread is not threading.current_thread():
            self._thread.join(timeout_s)


def _serve(name: str, cores: Collection[int], queue: _Queue, active: bool) -> None:
    bind_thread(cores)
    run: Run | None = None
    try:
        while (given := next_of(queue, run)) is not None:
            if isinstance(given, threading.Event):
                given.set()
                continue
            run, job = given
            run.advance(job, name)
            if not active or run.stopped:
                run = None
            del given, job  # a run that is over keeps its tensors no longer
    except BaseException as error:
        # Raised into this thread from outside, as its own errors belong to the run.
        if run is not None:
            run.fail(ExecutionError(f"the thread of {name} was ended by "
                                    f"{type(error).__name__}; run again"))  # fmt: skip


def next_of(queue: "SimpleQueue[_T]", run: "Run | None", timeout_s: float | None = None) -> _T:
    """The next entry; as long as ``run`` goes on, by asking for it again and again.

    Raises:
        Empty: nothing came in ``timeout_s``.
    """
    if run is not None:
        end_s = time.monotonic() + _SPIN_S
        while not run.stopped and time.monotonic() < end_s:
            try:
                return queue.get_nowait()
            except Empty:
                time.sleep(0)  # the others need the interpreter
    return queue.get(timeout=timeout_s)


def bind_thread(cores: Collection[int]) -> None:
    """Bind the calling thread to ``cores``, if there are any and the system can."""
    if cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)
