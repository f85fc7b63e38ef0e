"""Make plans in the background, in another process, while requests are served.

The other process has the lowest scheduling priority, and it measures only while the program runs no
request. Its choice is in the cache afterwards. It has memory of its own, so a driver that crashes
in it does not end the program.
"""

import atexit
import contextlib
import heapq
import itertools
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from coexec.errors import CoexecError, ExecutionError
from coexec.model.main_memory import bounded_memory, too_little_memory
from coexec.processes import Child, EndedError, Parent
from coexec.profiling.activity import TRAFFIC, Quiet
from coexec.selection.user_model import opened_cache
from coexec.settings import Settings

_PATIENCE_S = 20.0
"""Seconds to wait for gaps between requests. If there are none, requests and measurements run at
the same time."""
_END_S = 10.0
"""Seconds that the end of the program waits for a plan that is being loaded."""


_log = logging.getLogger("coexec")


@dataclass(eq=False)
class Job:
    """Work in the background."""

    run: Callable[["Job"], None]
    """Does the work, in the thread of a `Worker`."""
    after_s: float = 0.0
    """Seconds to wait before the job begins, so that a short program does not pay for it."""
    cancelled: threading.Event = field(default_factory=threading.Event)
    child: Child | None = None
    """The process that does the work."""


class Worker:
    """A thread that does jobs one after the other, and ends when there are none."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: list[tuple[float, int, Job]] = []
        """Jobs by the time at which they may begin, and by the order in which they came."""
        self._changed = threading.Condition()
        self.job: Job | None = None
        """The job at which the thread works."""
        self._numbers = itertools.count()
        self.thread: threading.Thread | None = None
        self._is_stopped = False

    def submit(self, job: Job) -> None:
        """Do ``job`` after the jobs that were submitted before."""
        with self._changed:
            due_s = time.monotonic() + job.after_s
            heapq.heappush(self._waiting, (due_s, next(self._numbers), job))
            self._changed.notify()
            if self.thread is None:
                self.thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self.thread.start()

    def cancel(self, job: Job) -> None:
        """End ``job`` and its process."""
        job.cancelled.set()
        # A session that is deleted while the interpreter ends must not wait for a thread.
        if self._changed.acquire(blocking=False):
            self._changed.notify()
            self._changed.release()
        child = job.child  # its thread may forget it at any time
        if child is not None:
            child.kill()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self.job = job
            if not self._is_stopped:
                try:
                    job.run(job)
                except Exception:  # the thread goes on with the jobs of other sessions
                    _log.exception("planning in the background failed")
            self.job = None  # it holds a session's plans

    def _next(self) -> Job | None:
        """The next job, when its time has come; None if there is none."""
        with self._changed:
            while True:
                self._waiting = [row for row in self._waiting if not row[2].cancelled.is_set()]
                heapq.heapify(self._waiting)
                if not self._waiting or self._is_stopped:
                    self.thread = None
                    return None
                wait_s = self._waiting[0][0] - time.monotonic()
                if wait_s <= 0:
                    return heapq.heappop(self._waiting)[2]
                self._changed.wait(wait_s)

    def stop(self) -> None:
        """Cancel the running job, and wait for the thread: a driver that loads a plan may abort the
        process if it ends meanwhile."""
        self._is_stopped = True
        with self._changed:
            self._changed.notify()
            thread = self.thread
        job = self.job  # its thread may forget it at any time
        if job is not None:
            self.cancel(job)
            if (child := job.child) is not None:
                child.close()
        if thread is not None:
            thread.join(_END_S)


LOADS, PLANS = Worker("coexec load"), Worker("coexec plan")
"""Loads and comparisons take a moment, and do not wait for the planning of another session."""


def cancel(job: Job) -> None:
    """End ``job`` and its process."""
    LOADS.cancel(job)
    PLANS.cancel(job)


def error_of_planning(job: Job, source: Any, settings: Settings, again: bool) -> CoexecError | None:
    """Make a plan in another process; None when it is in the cache, or else the error.

    Args:
        job: the job that gets the process.
        source: a path, "zoo:NAME", or the model's bytes.
        again: whether to race again because the earlier choice is in doubt.
    """
    root = opened_cache(settings.cache).root
    settings = replace(settings, cache=root, progress=None, quiet=None, background=False)
    try:
        job.child = child = Child("coexec.selection.background:serve", "plans in the background")
    except ExecutionError as error:
        return ExecutionError(f"{error}; make the session with background=False")
    try:
        if job.cancelled.is_set():  # before there was a process to kill
            child.kill()
        child.ask((source, settings, TRAFFIC.publish(), again))
    except EndedError as error:
        limit_bytes = settings.memory_limit
        return error if limit_bytes is None else too_little_memory(limit_bytes)
    except CoexecError as error:
        return error
    finally:
        # The process may be ended at any time: its cache entries are always complete.
        job.child = None
        child.close()
    return None


def _end() -> None:
    PLANS.stop()
    LOADS.stop()
    TRAFFIC.withdraw()


def _forget() -> None:
    """Start with no jobs in a forked child: threads and process belong to the parent."""
    global LOADS, PLANS
    LOADS, PLANS = Worker("coexec load"), Worker("coexec plan")
    TRAFFIC.leave()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def serve(parent: Parent) -> None:
    """Make the requested plan and send None or the error. Ends when its parent ends."""
    from coexec.selection.prepare import prepare

    source, settings, traffic, again = parent.receive()
    _step_back()
    try:
        settings = replace(settings, quiet=Quiet(traffic, _PATIENCE_S))
        with bounded_memory(settings.memory_limit):
            prepare(source, settings, again)
        answer: CoexecError | None = None
    except CoexecError as error:
        answer = error
    except OSError as error:
        answer = ExecutionError(f"planning in the background failed: {error}")
    parent.send(answer)
    os._exit(0)  # does not wait for threads of engines


def _step_back() -> None:
    """Give this process the lowest scheduling priority."""
    with contextlib.suppress(OSError, AttributeError):
        os.nice(19)
    with contextlib.suppress(OSError, AttributeError):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
