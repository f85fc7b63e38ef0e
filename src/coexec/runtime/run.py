"""One inference under way."""

import threading
import time
from collections.abc import Mapping
from queue import SimpleQueue
from typing import Any

from coexec.errors import CoexecError, ExecutionError, TerminatedError, UnfinishedError
from coexec.plans.schedule import Progress, Segment
from coexec.runtime.buffers import Buffers
from coexec.runtime.forks import COMPUTING
from coexec.runtime.installation import Installation
from coexec.runtime.recorder import Recorder
from coexec.runtime.runner import Cancelled
from coexec.runtime.workers import LOOK_S, Worker

__all__ = ["Job", "Run"]

Job = int | tuple[str, int]
"""A segment to run, or a value to move for the segment that reads it."""

_LONGEST_HOLD_S = 10.0
"""Longest time to wait for the lock of a run. It is held for microseconds; beyond, the thread that
holds it was killed."""


class Run:
    """The jobs of one inference: which may start, which thread does them, how the run ends.

    A run ends when all segments have ended, when one has failed, or when an exception leaves the
    caller's thread. ``stopped`` is set then and never reset. Results of a stopped run are not used.
    """

    def __init__(
        self,
        installed: Installation,
        buffers: Buffers,
        progress: Progress,
        feeds: Mapping[str, Any],
        recorder: Recorder,
        workers: Mapping[str, Worker],
        cancelled: Cancelled | None = None,
    ) -> None:
        """
        Args:
            workers: of all devices except the one that the caller's thread serves.
            cancelled: asked before each segment.
        """
        self.installed = installed
        self.buffers = buffers
        self.transfers = buffers.transfers(feeds, recorder)
        self.recorder = recorder
        self.workers = workers
        self.inbox: SimpleQueue[Job | None] = SimpleQueue()
        """Jobs for the caller's thread; None when the run has stopped."""
        self.stopped = False
        self.error: BaseException | None = None
        self._progress = progress
        self._cancelled = cancelled
        self._under_way = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Hand out the segments that wait for nothing."""
        ready = self._progress.ready()
        self._under_way = len(ready)
        for node in ready:
            self._give(self.installed.compiled.segments[node].device, node)

    def fail(self, error: BaseException) -> None:
        """Stop with an error that the caller gets. The first one counts."""
        if self.error is None:
            self.error = error
        self.stop()

    def advance(self, job: Job, name: str) -> None:
        """Do a job on the device ``name``, then the segments that it makes ready there."""
        with COMPUTING:
            if isinstance(job, tuple):
                self._prefetch(*job)
                return
            following: int | None = job
            while following is not None:
                following = self._step(following, name)

    def output(self) -> dict[str, Any]:
        """The model's outputs by name, in memory that belongs to the caller."""
        outputs = self.installed.compiled.outputs
        return {t.name: self.transfers.output(t) for t in outputs}

    def _prefetch(self, value: str, reader: int) -> None:
        """Move a value to where it is read, before the reader is ready.

        The job stands before its reader in the queue, so the run cannot have ended yet.
        """
        place = self.installed.compiled.segments[reader].place
        try:
            if not self.stopped:
                self.transfers.input(value, self.installed.engines[place], reader)
        except Exception as error:
            if self._is_callers(error, place.device):
                raise
            self.fail(ExecutionError(f"{place} failed while it fetched {value!r}: {error}; the run "
                                     f"was stopped, no result is returned"))  # fmt: skip

    def _step(self, node: int, name: str) -> int | None:
        """Run one segment and hand out what it makes ready.

        Returns:
            The next segment of the same device, if it is ready.
        """
        if self.stopped:
            return None
        if self._cancelled is not None and self._cancelled():
            self.fail(TerminatedError("the run was ended by its RunOptions; no result is returned"))
            return None
        segment = self.installed.compiled.segments[node]
        self.recorder.begin(node)
        try:
            bound = self.buffers.bound(segment, self.transfers)
            if bound is not None:
                bound.run()
        except Exception as error:
            if self._is_callers(error, name):
                raise
            self.fail(_explained(error, segment))
            return None
        self.recorder.end(node)
        segments = self.installed.compiled.segments
        for value, reader in self.installed.crossing.get(node, ()):
            if segments[reader].device != name:  # this thread moves it when it gets there
                self._give(segments[reader].device, (value, reader))
        following = None
        for freed in self._finish(node):
            device = segments[freed].device
            if device == name:
                following = freed
            else:
                self._give(device, freed)
        return following

    def _is_callers(self, error: Exception, name: str) -> bool:
        """Whether the error was raised by a signal handler of the caller.

        Signal handlers run in the caller's thread only, and engines raise only errors of coexec.
        """
        return name not in self.workers and not isinstance(error, CoexecError)

    def _give(self, name: str, job: Job) -> None:
        worker = self.workers.get(name)
        if worker is None:
            self.inbox.put(job)
        else:
            worker.give(self, job)

    def _finish(self, node: int) -> list[int]:
        """The segments that may start after ``node`` has ended. The last one stops the run."""
        end_s = time.monotonic() + _LONGEST_HOLD_S
        while not self._lock.acquire(timeout=LOOK_S):
            if self.stopped:
                return []
            if time.monotonic() > end_s:
                raise UnfinishedError("a thread was killed while it handed on a result; run again")
        try:
            if self.stopped:
                return []
            freed = self._progress.finish(node)
            self._under_way += len(freed) - 1
            if self._under_way == 0:
                self.stop()
            return freed
        finally:
            self._lock.release()

    def stop(self) -> None:
        """End the run and wake the caller's thread."""
        self.stopped = True
        self.inbox.put(None)


def _explained(error: Exception, segment: Segment) -> Exception:
    tasks = ", ".join(piece.task for piece in segment.pieces[:3])
    more = len(segment.pieces) - 3
    where = tasks + (f" and {more} more" if more > 0 else "")
    wrapped = ExecutionError(f"{segment.device} failed in segment {segment.index} ({where}): "
                             f"{error}; the run was stopped, no result is returned")  # fmt: skip
    wrapped.__cause__ = error if not isinstance(error, CoexecError) else error.__cause__
    return wrapped
