"""Answers requests with the plan in use, or with ONNX Runtime's own session."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from onnxruntime import RunOptions
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from coexec.arrays import Array
from coexec.errors import (
    ClosedError,
    CoexecError,
    DeviceError,
    ExecutionError,
    InputError,
    TerminatedError,
    UnfinishedError,
)
from coexec.ort import as_ours, both
from coexec.runtime.recorder import RealRecorder
from coexec.runtime.runner import Cancelled
from coexec.selection.background import TRAFFIC
from coexec.selection.plan_selector import PlanSelector, Running, Shapes
from coexec.selection.replan import Replanner
from coexec.session.feeds import shape_of
from coexec.session.ort_metadata import DescribedSession
from coexec.session.request_check import asked_of, fit, is_dynamic, why_not
from coexec.session.runs import RecordedRuns
from coexec.session.signature import Signature
from coexec.settings import AUTO, Settings
from coexec.timing.trace import Trace

__all__ = ["AnsweringSession", "Unanswered", "of_direct_run"]

_T = TypeVar("_T")
_log = logging.getLogger("coexec")
_ACCOUNTED_S = 0.05
"""Seconds of requests in ONNX Runtime's session after which their shapes are reported to the
serving."""


@dataclass(frozen=True)
class Unanswered:
    """A request that no plan has answered, so that ONNX Runtime's own session has to."""

    shapes: Shapes
    """Shapes of the inputs that the model leaves dynamic."""
    because: InputError | None = None
    """Why the plan refuses the request. ONNX Runtime may accept it."""
    failed: tuple[Running, CoexecError] | None = None
    """The plan that has failed, and its error."""


class AnsweringSession(DescribedSession):
    """A session with plans. `InferenceSession` checks its arguments."""

    _settings: Settings
    _serving: PlanSelector | None = None
    _latest: Shapes = ()
    """Shapes of the latest request that no plan for fixed shapes has answered."""
    _dynamic: tuple[str, ...] | None = None
    _replanner: tuple[Running, Replanner] | None = None
    _recorded: RecordedRuns | None = None
    """The recorded runs of plans; None if profiling is off."""
    _closed = False
    _direct = False
    """Whether requests go to ONNX Runtime's session directly, because there is no plan."""
    _unaccounted_s = 0.0
    """Seconds of direct requests that were not yet reported to the serving."""

    def _run_directly(self, output_names: Sequence[str] | None, feeds: Any) -> list[Any]:
        """The answer of ONNX Runtime's own session, with less overhead than in its `run`."""
        start_s = time.monotonic()
        TRAFFIC.begin()
        names = output_names or [output.name for output in self._outputs_meta]
        outputs: list[Any] = self._sess.run(names, feeds, None)
        TRAFFIC.end()
        if self._serving is not None and self._serving.watches:
            self._observe(self._shapes_of(feeds), names, feeds, outputs)
        self._unaccounted_s += time.monotonic() - start_s
        if self._unaccounted_s > _ACCOUNTED_S:
            seconds, self._unaccounted_s = self._unaccounted_s, 0.0
            if self._serving is not None and (shapes := self._shapes_of(feeds)):
                self._latest = shapes
                self._serving.answered(shapes, seconds)
        return outputs

    def _pick_backend(self) -> None:
        """Set whether requests go to ONNX Runtime's session directly: they do if no plan may
        answer."""
        planned = self._serving is not None and self._serving.any_running
        self._direct = not (planned or self._closed)

    @property
    def _running(self) -> Running | None:
        """The plan for the shapes that model and settings fix."""
        if self._serving is None or self._unplanned is not None:
            return None
        return self._serving.running(())

    def _named_devices(self) -> Sequence[str] | None:
        return self._settings.devices

    def _signature_kept(self) -> Signature | None:
        running, serving = self._running, self._serving
        if running is None or serving is None:
            return None
        return Signature.find(serving.cache, running.prepared.work.given.digest)

    def _by_plan(
        self, output_names: Sequence[str] | None, feeds: Any, run_options: Any = None
    ) -> list[Array] | Unanswered:
        """The answer of a plan, if there is one for this request.

        A plan may find an invalid request while it runs, for example an index out of range. Then
        the plan stays in use.

        Raises:
            ClosedError: the session is closed.
            TerminatedError: ``run_options`` ended the run. The error is also of ONNX Runtime's own
                class.
        """
        shapes, running = self._plan_for(feeds)
        if running is None or not self._follows(run_options):
            return Unanswered(shapes)
        try:
            names, arrays = asked_of(running, output_names, feeds)
        except InputError as error:
            return Unanswered(shapes, because=error)
        TRAFFIC.begin()
        try:
            outputs = self._run_plan(running, arrays, _cancelled(run_options))
        except InputError as error:
            return Unanswered(shapes, because=error)
        except TerminatedError as error:
            raise both(TerminatedError, Fail)(str(error)) from None
        except ClosedError:
            if self._closed or running is self._plan_for(feeds)[1]:
                raise
            return self._by_plan(output_names, feeds, run_options)  # it was replaced meanwhile
        except UnfinishedError as error:
            _log.info("%s (ONNX Runtime's own session answers in its place)", error)
            return Unanswered(shapes)
        except (DeviceError, ExecutionError) as error:
            return Unanswered(shapes, failed=(running, error))
        finally:
            TRAFFIC.end()
        return [outputs[name] for name in names]

    def _by_ort(
        self, why: Unanswered, call: Callable[[], _T], asked: tuple[Any, Any] | None = None
    ) -> _T:
        """The answer of ONNX Runtime's own session.

        Args:
            why: why no plan has answered.
            call: runs the request in ONNX Runtime's own session.
            asked: output names and feeds, to describe an invalid request in coexec's words.

        Raises:
            CoexecError: it refuses the request. The error is also of ONNX Runtime's own class.
        """
        if self._closed:
            raise ClosedError("the session is closed; make a new one")
        start_s = time.perf_counter()
        TRAFFIC.begin()
        try:
            engines = ExecutionError if why.because is None else InputError
            with as_ours(InputError, engines, lambda: why.because or self._why_not(asked)):
                answer = call()
        finally:
            TRAFFIC.end()
        if asked is not None and isinstance(answer, list):
            self._observe(why.shapes, *asked, answer)
        if self._serving is not None and why.shapes:
            self._serving.answered(why.shapes, time.perf_counter() - start_s)
        if self._serving is not None and why.failed is not None:
            self._serving.failed(why.shapes, *why.failed)
        return answer

    def _observe(
        self, shapes: Shapes, names: Sequence[str] | None, feeds: Any, outputs: Sequence[Any]
    ) -> None:
        """Report an answer of ONNX Runtime's own session, with which plans are compared."""
        if self._serving is not None and self._serving.watches:
            names = names or [output.name for output in self._signature.outputs]
            self._serving.observe(shapes, feeds, names, outputs)

    def _why_not(self, asked: tuple[Any, Any] | None) -> InputError | None:
        return None if asked is None else why_not(self._signature, *asked)

    def _plan_for(self, feeds: Any) -> tuple[Shapes, Running | None]:
        """The dynamic shapes of a request, and the plan that answers it; None: ONNX Runtime's own
        session answers it."""
        serving = self._serving
        if serving is None or self._unplanned is not None:
            return (), None
        running = serving.running(())
        if running is not None and fit(running, feeds):
            return (), running
        self._latest = shapes = self._shapes_of(feeds)
        return shapes, serving.running(shapes) if shapes else None

    def _shapes_of(self, feeds: Any) -> Shapes:
        """Shapes of the inputs that the model leaves dynamic; empty if there are no such inputs, or
        if their feeds have no shapes."""
        if self._dynamic is None:
            names = [arg.name for arg in self._signature.inputs if is_dynamic(arg, {})]
            self._dynamic = tuple(sorted(names))
        try:
            return tuple((name, shape_of(feeds[name])) for name in self._dynamic)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
            return ()

    def _follows(self, run_options: Any) -> bool:
        """Whether a plan can follow these options.

        The options may hold adapters, but do not list them. Adapters replace overridable weights,
        so a plan follows no options if the model has such weights.
        """
        if run_options is None:
            return True
        return isinstance(run_options, RunOptions) and not self._signature.overridable

    def _run_plan(
        self, running: Running, feeds: Mapping[str, Array], cancelled: Cancelled | None
    ) -> Mapping[str, Array]:
        if self._settings.replan is None and self._recorded is None:
            return running.runner.run(feeds, cancelled=cancelled)
        return self._run_recorded(running, feeds, cancelled)[0]

    def _run_recorded(
        self, running: Running, feeds: Mapping[str, Array], cancelled: Cancelled | None = None
    ) -> tuple[Mapping[str, Array], Trace]:
        """The outputs and the trace of a run. The trace is passed to the replanner and to the
        profile."""
        plan = running.prepared
        recorder = RealRecorder(plan.compiled, plan.work.names)
        outputs = running.runner.run(feeds, recorder, cancelled)
        trace = recorder.trace()
        if self._recorded is not None:
            self._recorded.add(trace)
        if self._settings.replan is not None:
            better = self._watching(running).observe(trace, plan)
            if better is not None and self._serving is not None:
                self._serving.replace(running, better)
        return outputs, trace

    def _watching(self, running: Running) -> Replanner:
        """The replanner that observes the plan in use. Devices that "auto" has chosen stay; heft
        plans for them."""
        watched = self._replanner
        if watched is None or watched[0].prepared.work is not running.prepared.work:
            planner, options = self._settings.planner, self._settings.planner_options
            if planner == AUTO:
                planner, options = "heft", {}
            watcher = Replanner(running.prepared, planner, options, self._settings.replan or 0.0)
            self._replanner = watched = running, watcher
        return watched[1]


def _cancelled(run_options: Any) -> Cancelled | None:
    """A function that returns whether another thread has ended the run through its options."""
    return None if run_options is None else lambda: bool(run_options.terminate)


def of_direct_run(error: Exception) -> bool:
    """Whether ONNX Runtime raised the error in a direct run, and not the program's signal
    handler."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    direct_run = AnsweringSession._run_directly.__code__
    return traceback is not None and traceback.tb_frame.f_code is direct_run
