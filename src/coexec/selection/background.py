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
from coexec.profiling.activity import Quiet, Traffic
from coexec.selection.opened_model import opened_cache
from coexec.settings import Settings

__all__ = ["TRAFFIC", "Job", "cancel", "submit"]

TRAFFIC = Traffic()
"""Times of the requests of all sessions of this process."""
_PATIENCE_S = 20.0
"""Seconds to wait for gaps between requests. If there are none, requests and measurements run at
the same time."""
_END_S = 10.0
"""Seconds that the end of the program waits for a plan that is being loaded."""

_log = logging.getLogger("coexec")


@dataclass(eq=False)
class Job:
    """A plan to make."""

    source: Any
    """A path, "zoo:NAME", or the model's bytes."""
    settings: Settings
    needed: Callable[[], bool]
    """Returns whether the job has to be done. A worker thread calls it when the job's turn comes.
    """
    done: Callable[[CoexecError | None], None]
    """Called by that thread with None when the plan is in the cache, or with the error."""
    after_s: float = 0.0
    """Seconds to wait before the job begins, so that a short program does not pay for it."""
    again: bool = False
    """Whether to race again because the earlier choice is in doubt."""
    cancelled: threading.Event = field(default_factory=threading.Event)


class _Jobs:
    """A thread that does jobs one after the other, and ends when there are none."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Job]] = []
        """Jobs by the time at which they may begin, and by the order in which they came."""
        self._changed = threading.Condition()
        self._job: Job | None = None
        """The job at which the thread works."""
        self._numbers = itertools.count()
        self._thread: threading.Thread | None = None
        self._current: tuple[Job, Child] | None = None
        self._is_stopped = False

    def submit(self, job: Job) -> None:
        with self._changed:
            due_s = time.monotonic() + job.after_s
            heapq.heappush(self._waiting, (due_s, next(self._numbers), job))
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="coexec plan", daemon=True)
                self._thread.start()

    def cancel(self, job: Job) -> None:
        job.cancelled.set()
        # A session that is deleted while the interpreter ends must not wait for a thread.
        if self._changed.acquire(blocking=False):
            self._changed.notify()
            self._changed.release()
        if self._current is not None and self._current[0] is job:
            self._current[1].kill()

    def _work(self) -> None:
        while (job := self._next()) is not None:
            self._job = job
            try:
                if self._is_stopped or not job.needed():
                    continue
                error = self._outcome(job)
            except Exception as failure:  # of a driver, or a warning that is raised
                _log.exception("planning in the background failed")
                error = ExecutionError(f"planning in the background failed: {failure}")
            if not job.cancelled.is_set() and not self._is_stopped:
                job.done(error)

    def _next(self) -> Job | None:
        """The next job, when its time has come; None if there is none."""
        with self._changed:
            while True:
                self._waiting = [row for row in self._waiting if not row[2].cancelled.is_set()]
                heapq.heapify(self._waiting)
                if not self._waiting or self._is_stopped:
                    self._thread = None
                    return None
                wait_s = self._waiting[0][0] - time.monotonic()
                if wait_s <= 0:
                    return heapq.heappop(self._waiting)[2]
                self._changed.wait(wait_s)

    def _outcome(self, job: Job) -> CoexecError | None:
        """Do a job in another process and return the error, None if it succeeded."""
        root = opened_cache(job.settings.cache).root
        settings = replace(job.settings, cache=root, progress=None, quiet=None, background=False)
        try:
            child = Child("coexec.selection.background:serve", "plans in the background")
        except ExecutionError as error:
            return ExecutionError(f"{error}; make the session with background=False")
        self._current = job, child
        try:
            if job.cancelled.is_set():  # before there was a process to kill
                child.kill()
            child.ask((job.source, settings, TRAFFIC.publish(), job.again))
        except EndedError as error:
            limit_bytes = settings.memory_limit
            return error if limit_bytes is None else too_little_memory(limit_bytes)
        except CoexecError as error:
            return error
        finally:
            # The process may be ended at any time: its cache entries are always complete.
            self._current = None
            child.close()
        return None

    def stop(self) -> None:
        """Cancel the running job without calling its callback, and wait for the thread: a driver
        that loads a plan may abort the process if it ends meanwhile."""
        self._is_stopped = True
        with self._changed:
            self._changed.notify()
            thread = self._thread
        if self._job is not None:
            self._job.cancelled.set()
        current = self._current
        if current is not None:
            self.cancel(current[0])
            current[1].close()
        if thread is not None:
            thread.join(_END_S)


_jobs = _Jobs()


def submit(job: Job) -> None:
    """Do ``job`` after the jobs that were submitted before."""
    _jobs.submit(job)


def cancel(job: Job) -> None:
    """Cancel ``job`` without calling its callback."""
    _jobs.cancel(job)


def _end() -> None:
    _jobs.stop()
    TRAFFIC.withdraw()


def _forget() -> None:
    """Start with no jobs in a forked child: thread and process belong to the parent."""
    global _jobs
    _jobs = _Jobs()
    TRAFFIC.leave()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def serve(parent: Parent) -> None:
    """Make the requested plan and send None or the error. Ends when its parent ends."""
    from coexec.selection.prepare import PlanRequest

    source, settings, traffic, again = parent.receive()
    _step_back()
    try:
        settings = replace(settings, quiet=Quiet(traffic, _PATIENCE_S))
        with bounded_memory(settings.memory_limit):
            PlanRequest(source, settings).prepare(again)
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
