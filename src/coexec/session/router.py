"""`Router`: decides for each request which of two backends answers it."""

import logging
import os
import time
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from onnxruntime import RunOptions
from onnxruntime.capi.onnxruntime_pybind11_state import Fail

from coexec.arrays import Array
from coexec.engines.detect import usable_cores
from coexec.errors import (
    ClosedError,
    CoexecError,
    DeviceError,
    ExecutionError,
    InputError,
    TerminatedError,
    UnfinishedError,
)
from coexec.ort import both, in_our_words
from coexec.profiling.activity import TRAFFIC
from coexec.session.feeds import shape_of
from coexec.session.metadata import Metadata
from coexec.session.options import why_unplanned
from coexec.session.ort_backend import ARRAYS, OrtBackend, OutputForm, providers_of_ort
from coexec.session.request_check import fits, why_refused
from coexec.settings import Settings

if TYPE_CHECKING:  # a session that plans nothing starts sooner
    from coexec.selection.decision import Decision
    from coexec.selection.plan_selector import PlanSelector, Shapes
    from coexec.selection.plan_states import Running
    from coexec.session.plan_backend import PlanBackend
    from coexec.timing.trace import Trace

_log = logging.getLogger("coexec")


@dataclass(frozen=True)
class Unanswered:
    """A request that no plan has answered, so that ONNX Runtime's own session has to."""

    shapes: "Shapes"
    """Shapes of the inputs that the model leaves dynamic."""
    because: InputError | None = None
    """Why the plan refuses the request. ONNX Runtime may accept it."""
    failed: "tuple[Running, CoexecError] | None" = None
    """The plan that has failed, and its error."""


_NO_PLAN: Final = Unanswered(())
"""No plan answers requests of any shapes, so that the shapes of this one were not looked at."""


class Router:
    """Decides for each request which backend answers it.

    A request that a plan answers passes five functions in four files:

    1. `InferenceSession.run` in inference.py.
    2. `Router.run` decides, and `Router._by_plan` chooses the plan for the shapes of the feeds.
    3. `PlanBackend.run` in plan_backend.py checks the feeds, and takes the outputs from
    4. `Runner.run`, the run loop, in runtime/.

    Any other request passes four functions: the first two, then `Router._by_ort` and, in
    ort_backend.py, `OrtBackend.run`, which calls ONNX Runtime.
    """

    account_every_s = 0.05
    """Seconds of requests, without any plan, after which their shapes are reported to the planning:
    to compute the shapes of each request takes time."""

    def __init__(
        self,
        settings: Settings,
        constants: Collection[str],
        ort: OrtBackend,
        plans: "PlanBackend | None",
        unplanned: str | None,
    ) -> None:
        """
        Args:
            constants: names of inputs that have become constants; feeds for them are ignored.
            plans: None: nothing is planned.
            unplanned: why nothing is planned and ONNX Runtime's own session answers.
        """
        self.settings, self._constants = settings, constants
        self.ort, self.plans = ort, plans
        self.unplanned, self._never = unplanned, False
        self.metadata = Metadata(ort, plans, settings.shapes)
        self.callbacks = CallbackThreads()
        self.is_closed = False
        self._has_plans = False
        """Whether a plan answers requests of any shapes."""
        self._latest: Shapes = ()
        """Dynamic shapes of the latest request; () if the plan for fixed shapes has answered."""
        self._unaccounted_s = 0.0
        """Seconds of requests that were not yet reported to the planning."""
        self._subscribe()

    def use(self, settings: Settings) -> None:
        """Plan with these settings from now on."""
        assert self.plans is not None
        self.settings, self.metadata.shapes = settings, settings.shapes
        self.plans.use(settings)
        self._subscribe()

    def _subscribe(self) -> None:
        """Set the callbacks of the planning. They keep no session alive that the program has
        dropped."""
        if self.plans is not None:
            changed = partial(_plans_changed, weakref.ref(self))
            self.plans.subscribe(changed, weakref.ref(self.ort))

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Any,
        run_options: Any = None,
        form: OutputForm = ARRAYS,
    ) -> Any:
        """The outputs of a request: of the plan for its shapes, or else of ONNX Runtime's own
        session.

        Raises:
            ClosedError: the session is closed.
            TerminatedError: ``run_options`` ended the run. The error is also of ONNX Runtime's own
                class.
            CoexecError: ONNX Runtime refuses the request. The error is also of ONNX Runtime's own
                class.
        """
        if self._constants:
            feeds = self._without_constants(feeds)
        why = _NO_PLAN
        if self._has_plans and feeds is not None:
            answer = self._by_plan(output_names, feeds, run_options)
            if isinstance(answer, Unanswered):
                why = answer
            elif (outputs := form.of_plan(answer)) is not None:
                return outputs
            else:
                why = Unanswered(())
        outputs = self._by_ort(why, output_names, feeds, run_options, form)
        if why.failed is not None and self.plans is not None:
            self.plans.selector.failed(why.shapes, *why.failed)
        return outputs

    def _by_plan(
        self, output_names: Sequence[str] | None, feeds: Any, run_options: Any
    ) -> list[Array] | Unanswered:
        """The outputs of the plan for the shapes of the request, or why there are none.

        A plan may find an invalid request while it runs, for example an index out of range. Then
        the plan stays in use.
        """
        shapes, running = self._plan_for(feeds)
        if running is None or self.plans is None or not self._follows(run_options):
            return Unanswered(shapes)
        try:
            answer = self.plans.run(running, output_names, feeds, _cancelled(run_options))
            return Unanswered(shapes) if answer is None else answer
        except InputError as error:
            return Unanswered(shapes, because=error)
        except TerminatedError as error:
            raise both(TerminatedError, Fail)(str(error)) from None
        except ClosedError:
            if self.is_closed or running is self._plan_for(feeds)[1]:
                raise
            return self._by_plan(output_names, feeds, run_options)  # it was replaced meanwhile
        except UnfinishedError as error:
            _log.info("%s (ONNX Runtime's own session answers in its place)", error)
            return Unanswered(shapes)
        except (DeviceError, ExecutionError) as error:
            return Unanswered(shapes, failed=(running, error))

    def _by_ort(
        self,
        why: Unanswered,
        output_names: Sequence[str] | None,
        feeds: Any,
        run_options: Any,
        form: OutputForm,
    ) -> Any:
        """The outputs of ONNX Runtime's own session."""
        if self.is_closed:
            raise ClosedError("the session is closed; make a new one")
        start_s = time.monotonic()
        TRAFFIC.begin()
        try:
            outputs = form.of_ort(self.ort, output_names, feeds, run_options)
        except Exception as error:
            refusal = self._refusal(error, why, (output_names, feeds) if form.has_feeds else None)
            if refusal is None:
                raise
            raise refusal from error
        finally:
            TRAFFIC.end()
        if self.plans is not None:
            self._unaccounted_s += time.monotonic() - start_s
            is_due = self._unaccounted_s > self.account_every_s or self.plans.selector.watches
            if is_due or why is not _NO_PLAN:
                self._account(why, output_names, feeds, outputs if form.has_feeds else None)
        return outputs

    def _without_constants(self, feeds: Any) -> Any:
        if not isinstance(feeds, Mapping):
            return feeds
        return {name: fed for name, fed in feeds.items() if name not in self._constants}

    def _plan_for(self, feeds: Any) -> "tuple[Shapes, Running | None]":
        """The dynamic shapes of a request, and the plan that answers it; None: ONNX Runtime's own
        session answers it."""
        if self.plans is None or self.unplanned is not None:
            return (), None
        running = self.plans.selector.running(())
        if running is not None and fits(running, feeds):
            self._latest = ()
            return (), running
        self._latest = shapes = self._shapes_of(feeds)
        return shapes, self.plans.selector.running(shapes) if shapes else None

    def _shapes_of(self, feeds: Any) -> "Shapes":
        """Shapes of the inputs that the model leaves dynamic; empty if there are no such inputs, if
        their feeds have no shapes, or if they are those that the settings fix."""
        try:
            shapes = tuple((name, shape_of(feeds[name])) for name in self.metadata.dynamic_inputs)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError):
            return ()
        return () if shapes == self.metadata.fixed_shapes else shapes

    def _follows(self, run_options: Any) -> bool:
        """Whether a plan can follow these options.

        The options may hold adapters, but do not list them. Adapters replace overridable weights,
        so a plan follows no options if the model has such weights.
        """
        if run_options is None:
            return True
        has_weights = bool(self.metadata.signature.overridable)
        return isinstance(run_options, RunOptions) and not has_weights

    def _refusal(
        self, error: Exception, why: Unanswered, request: tuple[Any, Any] | None
    ) -> CoexecError | None:
        """An error of ONNX Runtime's own session in coexec's words; None for other errors.

        Args:
            request: output names and feeds; None if they are bound.
        """

        def because() -> InputError | None:
            if request is None:
                return why.because
            metadata = self.metadata
            return why_refused(
                metadata.signature,
                metadata.declared_shapes,
                *request,
                self.settings,
                why.because,
            )

        engines = ExecutionError if why.because is None else InputError
        return in_our_words(error, InputError, engines, because)

    def _account(
        self,
        why: Unanswered,
        output_names: Sequence[str] | None,
        feeds: Any,
        outputs: list[Any] | None,
    ) -> None:
        """Report an answer of ONNX Runtime's own session to the planning: its seconds, and the
        outputs, if plans are compared with them.

        Args:
            outputs: None if they are bound.
        """
        assert self.plans is not None
        selector = self.plans.selector
        seconds, self._unaccounted_s = self._unaccounted_s, 0.0
        shapes = why.shapes
        if why is _NO_PLAN:
            self._latest = shapes = self._shapes_of(feeds)
        if selector.watches and outputs is not None:
            names = output_names or [output.name for output in self.metadata.signature.outputs]
            selector.observe(shapes, feeds, names, outputs)
        if shapes:
            selector.answered(shapes, seconds)

    def run_with_trace(
        self, output_names: Sequence[str] | None, feeds: Any
    ) -> "tuple[list[Any], Trace]":
        """As `run`. Also returns a trace of what ran where and when."""
        from coexec.session.plan_backend import whole_run

        feeds = self._without_constants(feeds)
        shapes, running = self._plan_for(feeds)
        if running is not None and self.plans is not None:
            answer = self.plans.run_with_trace(running, output_names, feeds)
            if answer is not None:
                return answer
        start_s = time.perf_counter()
        outputs = self._by_ort(Unanswered(shapes), output_names, feeds, None, ARRAYS)
        return outputs, whole_run(time.perf_counter() - start_s)

    @property
    def _selector(self) -> "PlanSelector | None":
        """The planning; None while nothing is planned."""
        return None if self.plans is None or self.unplanned is not None else self.plans.selector

    @property
    def running(self) -> "Running | None":
        """The plan that answers requests of the shapes of the latest request; before the first one,
        of the shapes that model and settings fix. None: ONNX Runtime's own session answers."""
        return None if self._selector is None else self._selector.running(self._latest)

    @property
    def decision(self) -> "Decision | None":
        """How planner "auto" chose for the latest request; None while nothing is decided."""
        selector = self._selector
        if selector is None:
            return None
        return selector.state(self._latest).decision or selector.state(()).decision

    @property
    def degraded(self) -> str | None:
        """Why ONNX Runtime's own session answers these requests; None if all works as requested."""
        selector = self._selector
        return self.unplanned if selector is None else selector.state(self._latest).reason

    def set_providers(self, providers: Sequence[Any] | None, provider_options: Any) -> None:
        """Reopen ONNX Runtime's own session with these execution providers, and plan nothing if
        plans cannot replace one of them."""
        providers = providers_of_ort(providers)
        self.ort.set_providers(providers, provider_options)
        if self._never:
            return
        arguments = self.ort.arguments
        disabled = arguments.keywords.get("disabled_optimizers")
        self.unplanned = why_unplanned(
            arguments.options, providers, self.settings.devices, disabled
        )
        if self.unplanned is None and self.settings.reference:
            self.unplanned = (
                "plans are compared with a session of the providers before; open a new session to "
                "have it planned"
            )

    def plan_nothing(self, reason: str) -> None:
        """Let ONNX Runtime's own session answer all requests, for ``reason``."""
        self.unplanned, self._never = reason, True

    def end_profiling(self) -> str:
        """End the profiling. Returns the name of its file, see `InferenceSession.end_profiling`."""
        recorded = None
        if self.plans is not None:
            recorded, self.plans.recorded = self.plans.recorded, None
        if recorded:
            return recorded.write(self.ort.arguments.options.profile_file_prefix)
        is_profiled = self.ort.is_open or recorded is not None
        return str(self.ort.open().end_profiling()) if is_profiled else ""

    @property
    def profiling_start_ns(self) -> int:
        """Start of profiling, in nanoseconds of ``time.monotonic_ns``; 0 if nothing is profiled."""
        if self.plans is not None and self.plans.recorded is not None and not self.ort.is_open:
            return self.plans.recorded.start_ns
        return int(self.ort.open().get_profiling_start_time_ns())

    def plans_changed(self) -> None:
        """Send requests to the plans, if there are any. If one of them answers requests of the
        fixed shapes, ONNX Runtime's own session is closed, unless its state would be lost."""
        plans = self.plans
        self._has_plans = plans is not None and plans.selector.any_running
        if plans is None or self.unplanned is not None or plans.selector.running(()) is None:
            return
        if self.ort.is_open:
            plans.store_signature(self.metadata.signature)
        if not self.ort.is_pinned:
            self.ort.give_back()

    def close(self) -> None:
        """Release all resources."""
        self.is_closed = True
        self.callbacks.close()
        if self.plans is not None:
            self.plans.selector.close()
        self.ort.give_back()

    def __del__(self) -> None:
        if self.plans is not None:
            self.plans.selector.close()


def _plans_changed(router: "weakref.ref[Router]") -> None:
    alive = router()
    if alive is not None:
        alive.plans_changed()


def _cancelled(run_options: Any) -> Callable[[], bool] | None:
    """A function that returns whether another thread has ended the run through its options."""
    return None if run_options is None else lambda: bool(run_options.terminate)


class CallbackThreads:
    """Runs requests in threads of its own. The threads start with the first request, and again in a
    forked child."""

    def __init__(self) -> None:
        self._pool: tuple[int, ThreadPoolExecutor] | None = None

    def submit(
        self,
        run: Callable[[], list[Any]],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
    ) -> None:
        """Begin a request. Its thread calls ``callback(outputs, user_data, error)`` at the end."""
        if self._pool is None or self._pool[0] != os.getpid():
            self._pool = os.getpid(), ThreadPoolExecutor(len(usable_cores()), "coexec run_async")
        self._pool[1].submit(_call_back, run, callback, user_data)

    def close(self) -> None:
        """Accept no more requests. Running requests go on to their end."""
        if self._pool is not None:
            self._pool[1].shutdown(wait=False)


def _call_back(
    run: Callable[[], list[Any]], callback: Callable[[list[Any], Any, str], None], user_data: Any
) -> None:
    """Run a request of `InferenceSession.run_async`, and call its callback."""
    try:
        outputs, error = run(), ""
    except CoexecError as failed:
        outputs, error = [], str(failed)
    try:
        callback(outputs, user_data, error)
    except Exception:
        _log.exception("the callback of run_async has failed")
