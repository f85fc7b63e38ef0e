"""A session's executor, and the CPU in its place: when a device fails, and until kernels exist."""

import threading
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coexec.compiled import CompiledPlan
from coexec.errors import DegradedWarning, DeviceError, ExecutionError
from coexec.execute import Executor
from coexec.frontend.module import Array
from coexec.pipeline import Pipeline
from coexec.record import Recorder

__all__ = ["Failover", "Ready"]

Ready = tuple[Pipeline, CompiledPlan]
"""A plan made ready to start, and the pipeline with the devices that it runs on."""


@dataclass(frozen=True, eq=False)
class _Running:
    executor: Executor
    work: Pipeline
    compiled: CompiledPlan


class Failover:
    """Runs a plan. If a device with a driver of its own fails, all CPU cores take over for good.

    The run in which it failed is repeated, so nobody gets an unfinished result. Plans that use CPU
    devices only have nothing to fall back to: their errors are the caller's.
    """

    def __init__(
        self,
        prepare: Callable[[], Ready],
        prepare_cpu: Callable[[], Ready] | None,
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
        self._standby: _Running | None = None
        self._main: _Running | None = None
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

    @property
    def compiled(self) -> CompiledPlan:
        """The plan that runs now."""
        return self._current.compiled

    @property
    def work(self) -> Pipeline:
        """The devices that run now."""
        return self._current.work

    def run(self, feeds: Mapping[str, Array], recorder: Recorder | None) -> dict[str, Array]:
        """As `Executor.run`."""
        current = self._current
        try:
            return current.executor.run(feeds, recorder)
        except (DeviceError, ExecutionError) as error:
            if current is not self._main or self._prepare_cpu is None or self._closed:
                raise
            self._give_up(error)
            return self._current.executor.run(feeds, recorder)

    def replace(self, compiled: CompiledPlan) -> None:
        """Run another plan on the same devices from now on."""
        old = self._current
        self._main = _Running(old.work.start(compiled), old.work, compiled)
        old.executor.close()

    def wait(self) -> None:
        """Until nothing is compiled in the background any more."""
        if self._builder is not None:
            self._builder.join()

    def close(self) -> None:
        self._closed = True
        self.wait()
        for running in (self._main, self._standby):
            if running is not None:
                running.executor.close()

    @property
    def _current(self) -> _Running:
        running = self._main if self._main is not None and self.reason is None else self._standby
        if running is None:
            raise ExecutionError("the session is closed; make a new one")
        return running

    def _build(self) -> None:
        try:
            self._main = _start(self._prepare)
            self.reason = None
        except (DeviceError, ExecutionError) as error:
            if self._prepare_cpu is None:
                raise
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        with self._lock:
            if self._standby is None and self._prepare_cpu is not None:
                self._standby = _start(self._prepare_cpu)
            self.reason = str(error)
        names = ", ".join(self._current.work.names)
        warnings.warn(
            f"{error}. The session carries on with {names}", DegradedWarning, stacklevel=4
        )


def _start(prepare: Callable[[], Ready]) -> _Running:
    work, compiled = prepare()
    return _Running(work.start(compiled), work, compiled)
