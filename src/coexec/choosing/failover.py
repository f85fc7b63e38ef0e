"""A session's executor, and the CPU in its place: when a device fails, and until kernels exist."""

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from coexec.choosing.prepare import Preparation
from coexec.errors import ClosedError, DegradedWarning, DeviceError, ExecutionError
from coexec.frontend.module import Array
from coexec.runtime import forks
from coexec.runtime.recorder import RealRecorder
from coexec.runtime.runner import Runner
from coexec.workbench import Prepared

__all__ = ["Failover", "Recorded", "Running"]

_T = TypeVar("_T")

_LONGEST_BUILD_S = 60.0
"""For kernels that compile in the background when a session is closed."""


@dataclass(frozen=True, eq=False)
class Running:
    """A plan with what runs it."""

    runner: Runner
    prepared: Prepared


@dataclass(frozen=True, eq=False)
class Recorded:
    """What a run gave, with what ran when, and by which plan."""

    outputs: dict[str, Array]
    by: Running
    recorder: RealRecorder


class Failover:
    """Runs a plan. If a device with a driver of its own fails, all CPU cores take over for good.

    The run in which it failed is repeated, so nobody gets an unfinished result. Plans that use CPU
    devices only have nothing to fall back to: their errors are the caller's.
    """

    def __init__(
        self,
        prepare: Preparation,
        prepare_cpu: Preparation | None,
        background: bool = False,
    ) -> None:
        """Prepare the plan, or start with the CPU and prepare the plan in the background.

        Args:
            prepare: makes the plan that was asked for.
            prepare_cpu: makes one for the CPU alone; None if the plan uses nothing else.
            background: answer from the CPU until the plan is ready.

        Raises:
            CoexecError: the plan cannot be prepared, and there is nothing to fall back to.
        """
        self._prepare = prepare
        self._prepare_cpu = prepare_cpu
        self._lock = threading.Lock()
        self._closed = False
        self._standby: Running | None = None
        self._main: Running | None = None
        self._builder: threading.Thread | None = None
        self.reason: str | None = None
        """Why the CPU runs the model in place of the plan; None while it does not."""
        if background and prepare_cpu is not None:
            self.reason = "its kernels are still being compiled"
            self._standby = _start(prepare_cpu)
            self._builder = threading.Thread(target=self._build, name="coexec compile", daemon=True)
            self._builder.start()
        else:
            self._build()
        forks.watch(self)

    @property
    def prepared(self) -> Prepared:
        """The plan that runs now."""
        return self._current.prepared

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """As `Executor.run`, by the plan that runs now."""
        return self._by_what_runs(lambda running: running.runner.run(feeds))

    def run_recorded(self, feeds: Mapping[str, Array]) -> Recorded:
        """As `run`, with what ran when."""

        def attempt(running: Running) -> Recorded:
            plan = running.prepared
            recorder = RealRecorder(plan.compiled, plan.work.names)
            return Recorded(running.runner.run(feeds, recorder), running, recorder)

        return self._by_what_runs(attempt)

    def _by_what_runs(self, attempt: Callable[[Running], _T]) -> _T:
        while True:
            running = self._current
            try:
                return attempt(running)
            except ClosedError:
                if self._closed or running is self._current:
                    raise
                # another thread has replaced the plan meanwhile
            except (DeviceError, ExecutionError) as error:
                if running is not self._main or self._prepare_cpu is None or self._closed:
                    raise
                self._give_up(error)

    def replace(self, old: Running, prepared: Prepared) -> None:
        """Run another plan on the same devices from now on, in place of ``old``."""
        new = _start(lambda: prepared)
        with self._lock:
            if self._main is old and not self._closed:
                self._main, new = new, old
        new.runner.close()

    def wait(self, timeout_s: float | None = None) -> None:
        """Until nothing is compiled in the background any more."""
        if self._builder is not None:
            self._builder.join(timeout_s)

    def close(self) -> None:
        """Close what runs. May be called by signal handlers and by the garbage collector."""
        self._closed = True
        self.wait(_LONGEST_BUILD_S)
        for running in (self._main, self._standby):
            if running is not None:
                running.runner.close()

    def after_fork(self) -> None:
        """In a forked child: no other thread is there to give a lock back."""
        self._lock = threading.Lock()

    @property
    def _current(self) -> Running:
        running = self._main if self._main is not None and self.reason is None else self._standby
        if running is None:
            raise ClosedError("the session is closed; make a new one")
        return running

    def _build(self) -> None:
        try:
            self._main = _start(self._prepare)
            self.reason = None
            if self._closed:  # while it was compiled in the background
                self._main.runner.close()
        except (DeviceError, ExecutionError) as error:
            if self._prepare_cpu is None:
                raise
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        with self._lock:
            if self._standby is None and self._prepare_cpu is not None:
                self._standby = _start(self._prepare_cpu)
            self.reason = str(error)
        names = ", ".join(self._current.prepared.work.names)
        warnings.warn(
            f"{error}. The session carries on with {names}", DegradedWarning, stacklevel=4
        )


def _start(prepare: Preparation) -> Running:
    prepared = prepare()
    return Running(prepared.work.start(prepared), prepared)
