"""Several plans that run at the same time: each of them answers one request."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from queue import Empty, SimpleQueue

from coexec.arrays import Array
from coexec.errors import ClosedError
from coexec.runtime import process_fork
from coexec.runtime.recorder import Recorder
from coexec.runtime.runner import Cancelled, Runner

_LOOK_S = 0.5


class Pool:
    """A `Runner` that shares requests among runners. A request takes an idle runner, or waits for
    one.

    The thread of the request computes. So as many threads with requests as runners are needed to
    keep all runners busy.
    """

    def __init__(self, runners: Sequence[Runner]) -> None:
        """``runners``: at least one; they are closed with the pool."""
        self._runners = tuple(runners)
        self._closed = False
        self._fill()
        process_fork.watch(self)

    def _fill(self) -> None:
        self._idle: SimpleQueue[Runner] = SimpleQueue()
        for runner in self._runners:
            self._idle.put(runner)

    def run(
        self,
        feeds: Mapping[str, Array],
        recorder: Recorder | None = None,
        cancelled: Cancelled | None = None,
    ) -> dict[str, Array]:
        """As `Runner.run`. A recorded run uses the first runner: the recorder belongs to its
        plan."""
        if recorder is not None:
            return self._runners[0].run(feeds, recorder, cancelled)
        runner = self._take()
        idle = self._idle
        try:
            return runner.run(feeds, cancelled=cancelled)
        finally:
            idle.put(runner)

    def _take(self) -> Runner:
        while not self._closed:
            try:
                return self._idle.get(timeout=_LOOK_S)
            except Empty:
                continue
        raise ClosedError("the session is closed; make a new one")

    def close(self) -> None:
        self._closed = True
        with ExitStack() as stack:
            for runner in self._runners:
                stack.callback(runner.close)

    def after_fork(self) -> None:
        """Make all runners idle, in a forked child: the requests of other threads do not exist
        there."""
        self._fill()

    def __enter__(self) -> "Pool":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
