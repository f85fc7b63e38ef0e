"""`InferenceSession`: ONNX Runtime's class of that name, on all processors at once."""

import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from onnxruntime import OrtValue

from coexec import arguments
from coexec.cache import Cache
from coexec.engines.names import whole_cpu
from coexec.errors import ClosedError, InputError, ModelError
from coexec.ort import OrtSession, both
from coexec.plan.plan import Plan
from coexec.plan.plan_file import PlanFile
from coexec.research_loader import ZOO
from coexec.selection.background import TRAFFIC
from coexec.selection.decision import Decision
from coexec.selection.plan_files import plan_of
from coexec.selection.plan_selector import PlanSelector
from coexec.selection.prepare import devices_of_plan
from coexec.session.binding import IOBinding
from coexec.session.callbacks import CallbackThreads
from coexec.session.constructor_arguments import model_and_settings
from coexec.session.feeds import as_ortvalue, for_ort
from coexec.session.model_source import (
    for_ort_constructor,
    is_checked,
    open_inputs,
    portable,
)
from coexec.session.options import (
    ORT_KEYWORDS,
    may_give_weights,
    options_for,
    restore,
    told,
    warn_of,
    why_unplanned,
)
from coexec.session.ort_metadata import fixed, providers_of_ort
from coexec.session.output_comparison import why_other_weights
from coexec.session.request_check import asked_of, is_dynamic
from coexec.session.request_router import AnsweringSession, Unanswered, of_direct_run
from coexec.session.runs import RecordedRuns
from coexec.settings import AUTO, MODE, WAITING, Mode, Settings, Waiting, check_values
from coexec.timing.trace import Span, Trace

__all__ = ["InferenceSession"]

_log = logging.getLogger("coexec")


class InferenceSession(AnsweringSession):
    """Runs one model on several devices in parallel.

    Replaces ``onnxruntime.InferenceSession`` and is a subclass of it: ONNX Runtime's own session
    answers all requests that no plan answers. With planner "auto", these are all requests until the
    planning in the background has found a plan that is clearly faster than that session.

    May be used by several threads, and may be copied and pickled: a copy opens the model again.
    """

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        devices: Sequence[str] | str | None = None,
        planner: str = AUTO,
        plan: PlanFile | Plan | Path | str | None = None,
        planner_options: Mapping[str, Any] | None = None,
        shapes: Mapping[str, Sequence[int] | int] | None = None,
        values: Mapping[str, Any] | None = None,
        cache: Cache | Path | str | None = None,
        engine_options: Mapping[str, Mapping[str, str]] | None = None,
        background: bool | None = None,
        pins: Mapping[str, str] | None = None,
        replan: float | None = None,
        mode: Mode = MODE,
        waiting: Waiting = WAITING,
        **ort_keywords: Any,
    ) -> None:
        """Open ``path_or_bytes``, and start its stored plan or plan in the background.

        Args:
            path_or_bytes: path, "zoo:NAME", serialized bytes, ``onnx.ModelProto`` or
                ``onnx_ir.Model``.
            sess_options: ``onnxruntime.SessionOptions``. With fewer threads than cores, or with
                less than all optimisations, nothing is planned and ONNX Runtime's own session
                answers.
            providers: as ONNX Runtime takes them. If one of them is not for the CPU, nothing is
                planned, unless ``devices`` are named.
            provider_options: of the providers.
            devices: such as ``["cpu:0-3", "cpu:4-7"]`` or ``["cpu:0", "cpu:1/opencl"]``; by default
                what this machine has.
            planner: a name in `coexec.PLANNERS`, or "auto": several configurations of the devices
                and several planners are tried, the fastest is kept and remembered.
            plan: a file that ``coexec plan --output`` has written, or a `coexec.Plan`: it is
                compared with ONNX Runtime and used, on its devices and with its shapes; nothing is
                measured.
            planner_options: keyword options of the planner.
            shapes: of inputs that the model leaves dynamic, or sizes of dimensions by their names.
                They are planned for before the first request. Requests of other shapes are answered
                too.
            values: of inputs that become constants, so that everything that depends on them is
                fixed now: ``{"sr": 16000}``. Feeds for these inputs are ignored.
            cache: folder for profiles and plans, or a `coexec.Cache` with a size limit of its own;
                by default the user's cache folder.
            engine_options: by engine, its own options: ``{"opencl": {"precision": "fp16",
                "tuning": "exhaustive"}}``; an engine's page in the docs lists them.
            background: plan while ONNX Runtime's own session answers; False: plan first. By default
                only "auto", and shapes that come with a request, are planned in the background.
            pins: devices by names of tasks, patterns such as "conv*" allowed.
            replan: watch the runs, and make a new plan when a device has been slower or faster than
                in its profile for some time, by more than this share (0.25 is a quarter).
            mode: "latency": all devices work on one request, for the shortest time of a request.
                "throughput": many requests of several threads at the same time, each on devices of
                its own if this answers more requests per second.
            waiting: while a device waits for another one during a run, its cores stay awake
                ("active"), so that it goes on sooner, or may halt ("passive"), which saves energy.
            ort_keywords: further keywords of ONNX Runtime's class.

        Raises:
            UsageError: a keyword does not exist, or a value has no meaning.
            CoexecError: its subclass names the cause, and its message the remedy. If ONNX Runtime
                refuses the model, the error is also of ONNX Runtime's own class.
        """
        arguments.check_keywords(ort_keywords, InferenceSession.__init__, ORT_KEYWORDS)
        before = set(vars(self))
        self._given = path_or_bytes, sess_options, providers, provider_options
        coexec_arguments: dict[str, Any] = {
            "devices": devices,
            "planner": planner,
            "plan": plan_of(plan),
            "planner_options": planner_options,
            "shapes": shapes,
            "cache": cache,
            "engine_options": engine_options,
            "background": background,
            "pins": pins,
            "replan": replan,
            "mode": mode,
            "waiting": waiting,
        }
        self._words = {**coexec_arguments, "values": values, **ort_keywords}
        arguments.check_providers(providers)
        providers = providers_of_ort(providers)
        self._decided = check_values(values)
        source, settings = model_and_settings(path_or_bytes, coexec_arguments, self._decided)
        self._settings = settings
        self._unplanned = why_unplanned(
            sess_options, providers, settings.devices, ort_keywords.get("disabled_optimizers")
        )
        self._callbacks = CallbackThreads()
        if self._unplanned is None:
            self._serving = PlanSelector(portable(source), settings)
            warn_of(sess_options)
        if sess_options is None and settings.devices is not None:
            with devices_of_plan(settings):
                sess_options = options_for(settings.devices)
        if sess_options is not None and sess_options.enable_profiling:
            self._recorded = RecordedRuns()
        super().__init__(
            partial(for_ort_constructor, source, is_checked(source, sess_options)),
            sess_options,
            providers,
            provider_options,
            **ort_keywords,
        )
        self._begin(sess_options)
        self._pick_backend()
        later = {
            "_closed",
            "_direct",
            "_dynamic",
            "_latest",
            "_ours",
            "_pinned",
            "_recorded",
            "_replanner",
            "_serving",
            "_signature",
            "_unaccounted_s",
            "_unplanned",
        }
        self._ours = (set(vars(self)) | later) - before
        """Names of the attributes that do not belong to a subclass."""

    def _begin(self, options: Any) -> None:
        """Start the stored plan, or ONNX Runtime's own session and the planning."""
        serving = self._serving
        if serving is None:
            self.open_ort()
            return
        self._subscribe(serving)
        now = options is None or not (options.optimized_model_filepath or may_give_weights(options))
        try:
            quick = serving.has_cached_digest
            # The check takes some milliseconds. It is not needed for the default devices.
            request = serving.check() if quick or self._settings != self._by_default else None
            if request is not None and quick and now and serving.start_known((), request):
                return
        except ModelError as error:
            self._refuse(error)
            return
        self.open_ort()
        if options is not None and (sizes := self._overridden()):
            self._settings = replace(self._settings, shapes={**sizes, **self._settings.shapes})
            self._serving = serving = PlanSelector(serving.source, self._settings)
            self._subscribe(serving)
        left_open = [a for a in self._signature.inputs if is_dynamic(a, self._settings.shapes)]
        if left_open and self._settings.plan is None:
            serving.check_planner()
            return  # planned when the shapes of requests are known
        later = self._settings.background
        if later is None:
            settings = self._settings
            later = settings.planner == AUTO and settings.plan is None and settings.replan is None
        if later:
            serving.start_later(())
        else:
            serving.start_now(())

    def _subscribe(self, serving: PlanSelector) -> None:
        """Set the callbacks of ``serving``. The first is called when a plan has taken over. The
        second checks a plan before, if the options may change weights."""
        session = weakref.ref(self)
        serving.changed = partial(_give_back, session)
        if may_give_weights(self._given[1]):
            serving.doubt = partial(why_other_weights, session)

    @property
    def _by_default(self) -> Settings:
        """The settings with the default devices, planner and engines."""
        settings = self._settings
        return Settings(
            shapes=settings.shapes, values=settings.values, cache=settings.cache, mode=settings.mode
        )

    def _refuse(self, error: ModelError) -> None:
        """Raise ``error``, also with ONNX Runtime's own class, if ONNX Runtime refuses the model,
        too. Else plan nothing."""
        try:
            self.open_ort()
        except ModelError as refusal:
            cause = refusal.__cause__
            if not isinstance(cause, Exception):
                raise
            raise both(ModelError, type(cause))(str(error)) from cause
        self._unplanned = str(error)

    def _overridden(self) -> dict[str, tuple[int, ...]]:
        """Shapes of inputs that the model leaves dynamic and that the session options fix."""
        assert self._serving is not None
        left_open = open_inputs(self._serving.source)
        fixed_inputs = [arg for arg in self._signature.inputs if not is_dynamic(arg, {})]
        return {
            arg.name: tuple(d for d in arg.shape if isinstance(d, int))
            for arg in fixed_inputs
            if arg.name in left_open
        }

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:
        """Run one inference. Returns the named outputs in the order of the names, or all outputs.

        Args:
            output_names: None or no name: all.
            input_feed: for each input an array, an object that NumPy converts to an array without a
                copy (DLPack, ``__array__``), an ``OrtValue``, or lists and numbers.
            run_options: ``onnxruntime.RunOptions``. ``terminate``, set by another thread, ends the
                run before its next segment.

        Raises:
            InputError: a name, shape or dtype that the model does not have.
            ExecutionError: a device failed, and ONNX Runtime's own session too.
            TerminatedError: ``run_options.terminate`` was set.
        """
        if self._direct and run_options is None and not self._decided:
            try:
                return self._run_directly(output_names, input_feed)
            except Exception as error:
                TRAFFIC.end()
                if not of_direct_run(error):
                    raise
                # Below, the feeds are converted, or the error is raised with coexec's message.
        if self._decided and isinstance(input_feed, Mapping):
            decided = self._decided
            input_feed = {n: fed for n, fed in input_feed.items() if n not in decided}
        answer = self._by_plan(output_names, input_feed, run_options)
        if isinstance(answer, list):
            return answer
        feeds = for_ort(input_feed, self._signature.inputs)
        call = partial(OrtSession.run, self, output_names, feeds, run_options)
        return self._by_ort(answer, call, (output_names, feeds))

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: Any = None,
    ) -> list[OrtValue]:
        """As `run`, with ``OrtValue`` feeds and outputs. Values in main memory are not copied."""
        feeds = input_dict_ort_values
        answer = self._by_plan(output_names, feeds, run_options)
        if isinstance(answer, list):
            values = [value for array in answer if (value := as_ortvalue(array)) is not None]
            if len(values) == len(answer):
                return values
            answer = Unanswered(())
        call = partial(OrtSession.run_with_ort_values, self, output_names, feeds, run_options)
        return self._by_ort(answer, call, (output_names, feeds))

    def io_binding(self) -> IOBinding:
        """An object that binds inputs and outputs to the caller's memory, for
        `run_with_iobinding`."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        """As `run`, with the bound inputs and outputs.

        Raises:
            InputError: the binding belongs to another session. It is a ValueError, as in ONNX
                Runtime.
        """
        if not isinstance(iobinding, IOBinding):
            self._run_bound(iobinding, run_options)
            return
        if iobinding.owner is not self:
            raise InputError(
                "the IOBinding belongs to another session; make one with this "
                "session's io_binding()"
            )
        feeds = iobinding.feeds()
        why: list[Any] | Unanswered = Unanswered(())
        if feeds is not None:
            why = self._by_plan(iobinding.output_names, feeds, run_options)
            if isinstance(why, list) and iobinding.take(why):
                return
        if not isinstance(why, Unanswered):
            why = Unanswered(())  # the outputs do not fit the bound memory
        call = partial(self._run_bound, iobinding, run_options)
        self._by_ort(why, call)
        iobinding.answered_by_theirs()

    def _run_bound(self, iobinding: Any, run_options: Any) -> None:
        """Run ONNX Runtime's own session with a binding, even if the session of the binding was
        replaced meanwhile."""
        binding = iobinding.theirs() if isinstance(iobinding, IOBinding) else iobinding
        session: Any = self
        if self._serving is not None and binding._session in self._ort_handles:
            session = SimpleNamespace(_sess=binding._session, _captured_graph_bindings={})
        OrtSession.run_with_iobinding(session, binding, run_options)

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        callback: Callable[[list[Any], Any, str], None],
        user_data: Any,
        run_options: Any = None,
    ) -> None:
        """As `run`, in another thread, which calls ``callback(outputs, user_data, error)`` at the
        end.

        Args:
            callback: gets an empty list and the error's text if the run fails.

        Raises:
            InputError: an input is missing.
        """
        if not isinstance(input_feed, Mapping):
            raise InputError(
                f"the feeds are a {type(input_feed).__name__}; give a dict from input "
                f"names to arrays"
            )
        required = [a.name for a in self._signature.inputs if not a.type.startswith("optional")]
        if missing := [name for name in required if name not in input_feed]:
            raise InputError(
                f"input {missing[0]!r} is missing; the model takes {', '.join(map(repr, required))}"
            )
        run = partial(self.run, output_names, input_feed, run_options)
        if self._closed:
            raise ClosedError("the session is closed; make a new one")
        self._callbacks.submit(run, callback, user_data)

    def run_with_trace(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]
    ) -> tuple[list[Any], Trace]:
        """As `run`. Also returns a trace of what ran where and when."""
        shapes, running = self._plan_for(input_feed)
        if running is None:
            start_s = time.perf_counter()
            feeds = for_ort(input_feed, self._signature.inputs)
            call = partial(OrtSession.run, self, output_names, feeds)
            own_outputs = self._by_ort(Unanswered(shapes), call, (output_names, feeds))
            took_s = time.perf_counter() - start_s
            whole = Span("the whole model", whole_cpu(), 0.0, took_s, engine="onnxruntime")
            return own_outputs, Trace((whole.device,), (whole,))
        names, arrays = asked_of(running, output_names, input_feed)
        outputs, trace = self._run_recorded(running, arrays)
        return [outputs[name] for name in names], trace

    def end_profiling(self) -> str:
        """End the profiling of ``SessionOptions.enable_profiling``. Returns the name of its file.

        The file has the runs that plans have answered, as a Chrome trace. If there are none, it is
        ONNX Runtime's profile. The name is "" if nothing was profiled.

        Raises:
            OSError: the file cannot be written.
        """
        recorded, self._recorded = self._recorded, None
        if recorded:
            return recorded.write(self._ort_call[1][0].profile_file_prefix)
        profiled = self.ort_is_open or recorded is not None
        return str(OrtSession.end_profiling(self)) if profiled else ""

    def get_profiling_start_time_ns(self) -> int:
        """Start of profiling, in nanoseconds of ``time.monotonic_ns``; 0 if nothing is profiled."""
        if self._recorded is not None and not self.ort_is_open:
            return self._recorded.start_ns
        return int(OrtSession.get_profiling_start_time_ns(self))

    def get_inputs(self) -> Sequence[Any]:
        """The model's inputs, in order, with the shapes that ``shapes`` fixes."""
        return [fixed(arg, self._settings.shapes) for arg in super().get_inputs()]

    def get_providers(self) -> list[str]:
        """ONNX Runtime's execution providers, and the devices of the plan in use."""
        return list(dict.fromkeys((*self._ort_providers(), *self.devices)))

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the plan for the latest request; empty: ONNX Runtime's own session answers
        it."""
        serving = self._serving
        if serving is None or self._unplanned is not None:
            return ()
        running = serving.running(self._latest) or self._running
        if running is None:
            return ()
        plans = running.prepared, *running.prepared.beside
        return tuple(name for plan in plans for name in plan.plan.used)

    @property
    def decision(self) -> Decision | None:
        """What planner "auto" considered for the latest request, with figures and reasons; None
        while nothing is decided, and for other planners and plan files."""
        if self._serving is None or self._unplanned is not None:
            return None
        return self._serving.decision(self._latest) or self._serving.decision(())

    def wait(self) -> None:
        """Wait until the planning in the background has ended."""
        if self._serving is not None:
            self._serving.wait()

    @property
    def degraded(self) -> str | None:
        """Why ONNX Runtime's own session answers instead of a plan; None if all works as requested.

        Reasons: nothing is planned for these settings, the plan is not ready, a device failed."""
        if self._serving is None or self._unplanned is not None:
            return self._unplanned
        return self._serving.reason(self._latest)

    def close(self) -> None:
        """Release all resources. Called automatically when the session is no longer used.

        A run of another thread is allowed to end. If a signal handler closes the session that its
        own thread runs, that run stops and raises `coexec.errors.ClosedError`.
        """
        self._closed = True
        self._direct = False
        self._callbacks.close()
        if self._serving is not None:
            self._serving.close()
        self.give_back_ort()

    def __enter__(self) -> "InferenceSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if self._serving is not None:
            self._serving.close()

    def __getstate__(self) -> dict[str, Any]:
        """The constructor's arguments in a form that can be pickled, and the attributes that a
        subclass has added. A subclass may override this and `__setstate__`."""
        source, options, *providers = self._given
        source = portable(source)
        if isinstance(source, str) and not source.startswith(ZOO):
            source = os.path.abspath(source)
        words = dict(self._words)
        if isinstance(words["cache"], Cache):
            words["cache"] = words["cache"].root
        hidden = self._ours | self._ort_names
        added = {name: value for name, value in vars(self).items() if name not in hidden}
        return {"given": (source, told(options), *providers), "words": words, "added": added}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state["added"])
        source, options, *providers = state["given"]
        InferenceSession.__init__(self, source, restore(options), *providers, **state["words"])


def _give_back(session: "weakref.ref[InferenceSession]") -> None:
    """Close ONNX Runtime's own session, because a plan answers from now on. It stays open if it has
    a state that would be lost."""
    alive = session()
    if alive is None:
        return
    alive._pick_backend()
    if (running := alive._running) is None or alive._serving is None:
        return
    if alive.ort_is_open:
        alive._signature.keep(alive._serving.cache, running.prepared.work.given.digest)
    if not alive._pinned:
        alive.give_back_ort()
