"""A session's executor, and the CPU in its place: when a device fails, and until kernels exist."""

import threading
import warnings
from collections.abc import Callable, Mapping

from coexec.compiled import CompiledPlan
from coexec.devices.registry import whole_cpu
from coexec.errors import DegradedWarning, DeviceError, ExecutionError
from coexec.execute import Executor
from coexec.frontend.module import Array
from coexec.pipeline import Pipeline
from coexec.record import Recorder

__all__ = ["Failover"]


class Failover:
    """Runs a plan. If a device with a driver of its own fails, all CPU cores take over for good.

    The run in which it failed is repeated, so nobody gets an unfinished result. Plans that use CPU
    devices only have nothing to fall back to: their errors are the caller's.
    """

    def __init__(
        self, work: Pipeline, compile_plan: Callable[[], CompiledPlan], background: bool = False
    ) -> None:
        """Compile the plan, or start with the CPU and compile in the background.

        Raises:
            CoexecError: the plan cannot be made, or cannot be compiled and uses CPU devices only.
        """
        self._work = work
        self._compile_plan = compile_plan
        self._may_fail_over = any(d.spec.kind == "gpu" for d in work.devices)
        self._lock = threading.Lock()
        self._closed = False
        self._standby: tuple[Executor, CompiledPlan] | None = None
        self._main: tuple[Executor, CompiledPlan] | None = None
        self._builder: threading.Thread | None = None
        self.reason: str | None = None
        """Why the CPU runs the model in place of the plan; None while it does not."""
        if background and self._may_fail_over:
            self.reason = "its kernels are still being compiled"
            self._standby = self._cpu()
            self._builder = threading.Thread(target=self._build, name="coexec compile", daemon=True)
            self._builder.start()
        else:
            self._build()

    @property
    def compiled(self) -> CompiledPlan:
        """The plan that runs now."""
        return self._current[1]

    def run(self, feeds: Mapping[str, Array], recorder: Recorder | None) -> dict[str, Array]:
        """As `Executor.run`."""
        current = self._current
        try:
            return current[0].run(feeds, recorder)
        except (DeviceError, ExecutionError) as error:
            if current is not self._main or not self._may_fail_over or self._closed:
                raise
            self._give_up(error)
            return self._current[0].run(feeds, recorder)

    def wait(self) -> None:
        """Until nothing is compiled in the background any more."""
        if self._builder is not None:
            self._builder.join()

    def close(self) -> None:
        self._closed = True
        self.wait()
        for pair in (self._main, self._standby):
            if pair is not None:
                pair[0].close()

    @property
    def _current(self) -> tuple[Executor, CompiledPlan]:
        pair = self._main if self._main is not None and self.reason is None else self._standby
        if pair is None:
            raise ExecutionError("the session is closed; make a new one")
        return pair

    def _build(self) -> None:
        try:
            compiled = self._compile_plan()
            self._main = (Executor(compiled, self._work.devices), compiled)
            self.reason = None
        except (DeviceError, ExecutionError) as error:
            if not self._may_fail_over:
                raise
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        with self._lock:
            self._standby = self._standby or self._cpu()
            self.reason = str(error)
        warnings.warn(
            f"{error}. The session carries on with {whole_cpu()}", DegradedWarning, stacklevel=4
        )

    def _cpu(self) -> tuple[Executor, CompiledPlan]:
        work = Pipeline(
            self._work.source, [whole_cpu()], shapes=self._work.shapes, cache=self._work.cache
        )
        compiled = work.compiled_for("single", {})
        return Executor(compiled, work.devices), compiled
