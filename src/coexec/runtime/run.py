"""One inference under way."""

import threading
import time
from collections.abc import Mapping
from queue import SimpleQueue

from coexec.errors import CoexecError, ExecutionError
from coexec.frontend.module import Array
from coexec.runtime.buffers import Buffers
from coexec.runtime.forks import COMPUTING
from coexec.runtime.installation import Installation
from coexec.runtime.recorder import Recorder
from coexec.runtime.workers import LOOK_S, Worker
from coexec.schedule import Progress, Segment

__all__ = ["Job", "Run"]

Job = int | str | None
"""A segment to run, or a value to bring over. None only tells those who wait actively to begin."""

_LONGEST_HOLD_S = 10.0
"""Of the lock of a run. It is held for microseconds; beyond, its holder was killed."""


class Run:
    """The jobs of one inference: what may start, who does it, and how it ends.

    A run ends in one of three ways: all segments have ended, one has failed, or its caller was
    thrown out of it. ``stopped`` is set then and never taken back, and what a thread does for a
    stopped run counts for nothing.
    """

    def __init__(
        self,
        installed: Installation,
        buffers: Buffers,
        progress: Progress,
        feeds: Mapping[str, Array],
        recorder: Recorder,
        workers: Mapping[str, Worker],
    ) -> None:
        """``workers``: of all devices but the one that the caller's own thread serves."""
        self.installed = installed
        self.buffers = buffers
        self.values = buffers.values(feeds)
        self.recorder = recorder
        self.workers = workers
        self.inbox: SimpleQueue[Job] = SimpleQueue()
        """Jobs for the caller's thread; None when the run has stopped."""
        self.stopped = False
        self.error: BaseException | None = None
        self._progress = progress
        self._under_way = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        """Give out what may start."""
        ready = self._progress.ready()
        self._under_way = len(ready)
        for node in ready:
            self._give(self.installed.compiled.segments[node].device, node)

    def fail(self, error: BaseException) -> None:
        """Stop with an error, which the caller gets; the first one counts."""
        if self.error is None:
            self.error = error
        self.stop()

    def advance(self, job: Job, name: str) -> None:
        """Do a job on the device ``name``, and what follows from it on the same device."""
        with COMPUTING:
            if isinstance(job, str):
                self._prefetch(job, name)
                return
            following = job
            while following is not None:
                following = self._step(following, name)

    def output(self) -> dict[str, Array]:
        """The outputs of a run that has ended well, in memory of the caller's own."""
        outputs = self.installed.compiled.outputs
        return {t.name: self.buffers.output(t, self.values) for t in outputs}

    def _prefetch(self, value: str, name: str) -> None:
        """Bring a value over while the device has nothing else to do: its reader waits less.

        It comes before its reader in the queue, so the run cannot have ended by now.
        """
        try:
            if not self.stopped:
                self.buffers.input(value, self.installed.devices[name], self.values)
        except Exception as error:
            if self._is_callers(error, name):
                raise
            self.fail(ExecutionError(f"{name} failed while it fetched {value!r}: {error}; the run "
                                     f"was stopped, no result is returned"))  # fmt: skip

    def _step(self, node: int, name: str) -> int | None:
        """Run one segment and wake those that waited for it; the next one of this device."""
        if self.stopped:
            return None
        segment = self.installed.compiled.segments[node]
        self.recorder.begin(node)
        try:
            bound = self.buffers.bound(segment, self.values)
            if bound is not None:
                bound.run()
        except Exception as error:
            if self._is_callers(error, name):
                raise
            self.fail(_explained(error, segment))
            return None
        self.recorder.end(node)
        for value, device in self.installed.crossing.get(node, ()):
            self._give(device, value)
        following = None
        for freed in self._finish(node):
            device = self.installed.compiled.segments[freed].device
            if device == name:
                following = freed
            else:
                self._give(device, freed)
        return following

    def _is_callers(self, error: Exception, name: str) -> bool:
        """Whether an error in the caller's thread was raised by a signal handler of the caller.

        Engines raise errors of ours only, and in the thread of a device all errors are its own.
        """
        return name not in self.workers and not isinstance(error, CoexecError)

    def _give(self, name: str, job: Job) -> None:
        worker = self.workers.get(name)
        if worker is None:
            self.inbox.put(job)
        else:
            worker.give(self, job)

    def _finish(self, node: int) -> list[int]:
        """Note that ``node`` has ended; what may start now. Stops the run after the last one."""
        end_s = time.monotonic() + _LONGEST_HOLD_S
        while not self._lock.acquire(timeout=LOOK_S):
            if self.stopped:
                return []
            if time.monotonic() > end_s:
                raise ExecutionError("a thread was killed while it handed on a result; run again")
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
        """Let nothing of this run count any more, and wake its caller."""
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
