"""Run a whole model in an engine's own session."""

import os
import threading
import time
from collections.abc import Callable, Mapping

from coexec.arrays import Array
from coexec.engines.base import OpenEngine, OwnSession
from coexec.engines.detect import usable_cores
from coexec.errors import ClosedError, TerminatedError
from coexec.runtime import process_fork
from coexec.runtime.device_threads import bind_thread
from coexec.runtime.recorder import Recorder
from coexec.runtime.runner import Cancelled

_NOTHING = Recorder()
_CAN_BIND = hasattr(os, "sched_setaffinity")


class WholeModel:
    """A `Runner` for a plan whose only segment is the unchanged model.

    Requests of several threads run at the same time, as in the engine's own session. If the device
    has only some of the machine's cores, the thread of a request is bound to them during the run;
    else it is not bound.
    """

    def __init__(self, engine: OpenEngine, make: Callable[[], OwnSession]) -> None:
        """
        Args:
            make: opens the engine's session. Called again in a forked child, if the engine's
                sessions do not work there.

        Raises:
            ModelError: the engine does not take the model.
        """
        self._engine = engine
        self._make = make
        part = set(engine.device.cores) != set(usable_cores())
        self._cores = set(engine.thread_cores) if part and _CAN_BIND else set()
        self._lock = threading.Lock()
        self._session: OwnSession | None = make()
        self._closed = False
        process_fork.watch(self)

    def run(
        self,
        feeds: Mapping[str, Array],
        recorder: Recorder | None = None,
        cancelled: Cancelled | None = None,
    ) -> dict[str, Array]:
        """As `Runner.run`. A running segment is not interrupted: ``cancelled`` is checked before
        and after it."""
        recorder = recorder or _NOTHING
        session = self._opened()
        recorder.start(self._engine.device.name)
        cores = self._cores
        before = os.sched_getaffinity(0) if cores else cores
        try:
            try:
                if before != cores:
                    bind_thread(cores)
                with process_fork.COMPUTING:
                    _refuse(cancelled)
                    begin_s = time.perf_counter()
                    outputs = session.run(feeds)
                    recorder.ran(0, begin_s, time.perf_counter())
                    _refuse(cancelled)
                    return outputs
            finally:
                if before != cores:
                    bind_thread(before)
                    before = cores
        finally:  # an exception may have interrupted the first one
            if before != cores:
                bind_thread(before)

    def _opened(self) -> OwnSession:
        if self._closed:
            raise ClosedError("the session is closed; make a new one")
        if self._session is None:
            with self._lock:
                self._session = self._session or self._make()
        return self._session

    def close(self) -> None:
        """Release the session as soon as no thread runs in it. May be called again."""
        self._closed = True
        self._session = None

    def after_fork(self) -> None:
        """Drop a session that does not work in a forked child, where its threads do not exist."""
        self._lock = threading.Lock()
        if self._session is not None and self._engine.after_fork != "works":
            process_fork.keep_for_ever(self._session)
            self._session = None

    def __enter__(self) -> "WholeModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refuse(cancelled: Cancelled | None) -> None:
    if cancelled is not None and cancelled():
        raise TerminatedError("the run was ended by its RunOptions; no result is returned")
