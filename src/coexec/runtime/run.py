"""One inference while it runs."""

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from queue import SimpleQueue
from typing import Any, cast

from coexec.engines.base import InFlight, Launchable
from coexec.errors import CoexecError, ExecutionError, InputError, TerminatedError, UnfinishedError
from coexec.plan.schedule import Progress, Segment
from coexec.runtime.buffers import Buffers
from coexec.runtime.loaded_plan import LoadedPlan
from coexec.runtime.process_fork import COMPUTING
from coexec.runtime.recorder import Recorder
from coexec.runtime.runner import Cancelled
from coexec.runtime.workers import LOOK_S, Job, Worker

__all__ = ["OngoingRun"]

_LONGEST_HOLD_S = 10.0
"""Longest time to wait for the lock of a run. Threads hold it for microseconds. If the wait takes
longer, the thread that holds it was killed."""


class OngoingRun:
    """The jobs of one inference: which may start, which thread does them, how the run ends.

    A run ends when all segments have ended, when one has failed, or when an exception leaves the
    caller's thread. ``stopped`` is set then and never reset. Results of a stopped run are not used.
    """

    def __init__(
        self,
        installed: LoadedPlan,
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
            cancelled: called before each segment; the run ends when it returns True.
        """
        self.installed = installed
        self.buffers = buffers
        self.transfers = buffers.transfers(feeds, recorder)
        self._in_flight = buffers.in_flight()
        self.recorder = recorder
        self.workers = workers
        self.inbox: SimpleQueue[Job | None] = SimpleQueue()
        """Jobs for the caller's thread; None when the run has stopped."""
        self.stopped = False
        self.error: BaseException | None = None
        self._segments = installed.compiled.segments
        self._progress = progress
        self._cancelled = cancelled
        self._under_way = 0
        self._lock = threading.Lock()

    def start(self, callers: str) -> None:
        """Start the segments that wait for nothing.

        Args:
            callers: the device that the caller's thread serves.
        """
        ready = self._progress.ready()
        self._under_way = len(ready)
        with COMPUTING:
            following = self._hand_out(ready, callers)
        if following is not None:
            self._give(callers, following)

    def fail(self, error: BaseException) -> None:
        """Stop the run with an error, which the caller's thread raises. The first error counts."""
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

    def wait(self, name: str) -> None:
        """Wait for all launched segments, in the thread of the device ``name``."""
        for node, work in self._in_flight.works.items():
            if self.error is not None or self._is_cancelled():
                return
            self._wait_for({node: work}, name)

    def output(self) -> dict[str, Any]:
        """The model's outputs by name, in memory that belongs to the caller."""
        outputs = self.installed.compiled.outputs
        return {t.name: self.transfers.output(t) for t in outputs}

    def _prefetch(self, value: str, reader: int) -> None:
        """Move a value into the memory of its reader, before the reader is ready.

        The job lies in front of its reader in the queue, so the run cannot have ended yet.
        """
        place = self._segments[reader].place
        try:
            if not self.stopped:
                self.transfers.input(value, self.installed.engines[place], reader)
        except Exception as error:
            if self._is_callers(error, place.device):
                raise
            self.fail(
                ExecutionError(
                    f"{place} failed while it fetched {value!r}: {error}; the run "
                    f"was stopped, no result is returned"
                )
            )

    def _step(self, node: int, name: str) -> int | None:
        """Run or launch one segment, and pass on the segments that it makes ready.

        Returns:
            The next segment of the device ``name``, whose thread this is, if it is ready.
        """
        return self._hand_out(self._run_or_launch(node, name), name)

    def _hand_out(self, nodes: Iterable[int], name: str) -> int | None:
        """Launch the segments that this thread may launch, and queue the others for the threads of
        their devices.

        Returns:
            The segment of the device ``name``, whose thread this is, if one is among them.
        """
        following, ready = None, deque(nodes)
        while ready:
            node = ready.popleft()
            device = self._segments[node].device
            if device == name:
                following = node
            elif self._may_launch(node, name):
                ready.extend(self._run_or_launch(node, name))
            else:
                self._give(device, node)
        return following

    def _run_or_launch(self, node: int, name: str) -> list[int]:
        """Run or launch one segment in the thread of the device ``name``.

        Returns:
            The segments that may start now.
        """
        if self.stopped or self._is_cancelled():
            return []
        segment, work = self._segments[node], None
        before = self._in_flight.before(node)
        if before and not self._wait_for(before, name):
            return []
        self.recorder.begin(node)
        try:
            bound = self.buffers.bound(segment, self.transfers)
            if node in self.installed.ahead:
                work = self._in_flight.works[node] = cast(Launchable, bound).launch()
            elif bound is not None:
                bound.run()
        except Exception as error:
            self._failed(error, segment, name)
            return []
        self.recorder.end(node, work)
        for value, reader in self.installed.crossing.get(node, ()):
            device = self._segments[reader].device
            if device != name:  # on its own device, this thread moves it before the reader starts
                self._give(device, (value, reader))
        return self._finish(node)

    def _may_launch(self, node: int, name: str) -> bool:
        """Whether the thread of the device ``name`` may launch a segment of another device."""
        try:
            return self._in_flight.may_launch(node)
        except Exception as error:
            self._failed(error, self._segments[node], name)
            return False

    def _wait_for(self, works: Mapping[int, InFlight], name: str) -> bool:
        """Wait for launched segments; False if one of them failed, which ends the run."""
        for node, work in works.items():
            try:
                work.wait()
            except Exception as error:
                self._failed(error, self._segments[node], name)
                return False
        return True

    def _failed(self, error: Exception, segment: Segment, name: str) -> None:
        """End the run with the error of a segment, in the thread of the device ``name``."""
        if self._is_callers(error, name):
            raise error
        self.fail(_explained(error, segment))

    def _is_cancelled(self) -> bool:
        """Whether the caller has cancelled the run. If so, the run ends."""
        if self._cancelled is None or not self._cancelled():
            return False
        self.fail(TerminatedError("the run was ended by its RunOptions; no result is returned"))
        return True

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
        if not self._lock.acquire(blocking=False) and not self._locked():
            return []
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

    def _locked(self) -> bool:
        """Wait for the lock; False if the run was stopped."""
        end_s = time.monotonic() + _LONGEST_HOLD_S
        while not self._lock.acquire(timeout=LOOK_S):
            if self.stopped:
                return False
            if time.monotonic() > end_s:
                raise UnfinishedError("a thread was killed while it handed on a result; run again")
        return True

    def stop(self) -> None:
        """End the run and wake the caller's thread."""
        self.stopped = True
        self.inbox.put(None)


def _explained(error: Exception, segment: Segment) -> Exception:
    if isinstance(error, InputError):  # the request is at fault, not the device
        return error
    tasks = ", ".join(piece.task for piece in segment.pieces[:3])
    more = len(segment.pieces) - 3
    where = tasks + (f" and {more} more" if more > 0 else "")
    wrapped = ExecutionError(
        f"{segment.device} failed in segment {segment.index} ({where}): "
        f"{error}; the run was stopped, no result is returned"
    )
    wrapped.__cause__ = error if not isinstance(error, CoexecError) else error.__cause__
    return wrapped
