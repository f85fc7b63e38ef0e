"""`InferenceSession`: ONNX Runtime's class of that name, on all processors at once."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxruntime import OrtValue

from coexec import arguments
from coexec.cache import Cache
from coexec.errors import ClosedError, InputError
from coexec.ort import OrtSession
from coexec.precision import FLOAT32, Precision
from coexec.research_loader import zoo_name
from coexec.selection.plan_files import plan_of
from coexec.session.binding import IOBinding
from coexec.session.model_source import portable
from coexec.session.options import ORT_KEYWORDS, portable_options, recreated_options
from coexec.session.ort_backend import ORT_VALUES
from coexec.session.router import Router
from coexec.session.starting import model_and_settings, new_router, start
from coexec.settings import AUTO, MODE, WAITING, Mode, Waiting, check_values, is_off

if TYPE_CHECKING:
    from coexec.plan.plan import Plan
    from coexec.plan.plan_file import PlanFile
    from coexec.selection.decision import Decision
    from coexec.timing.trace import Trace


@dataclass(frozen=True)
class _ConstructorCall:
    """The arguments of a session's constructor, which are the pickled state of a session."""

    model: Any
    options: Any
    providers: tuple[Any, Any]
    """``providers`` and ``provider_options``."""
    keywords: Mapping[str, Any]

    def portable(self) -> "_ConstructorCall":
        """The call in a form that can be pickled, and repeated in another working directory."""
        model = portable(self.model)
        if isinstance(model, str) and zoo_name(model) is None:
            model = os.path.abspath(model)
        keywords = dict(self.keywords)
        if isinstance(keywords["cache"], Cache):
            keywords["cache"] = keywords["cache"].root
        return replace(self, model=model, options=portable_options(self.options), keywords=keywords)

    def repeat(self, session: "InferenceSession") -> None:
        """Call the constructor of ``session``."""
        InferenceSession.__init__(
            session, self.model, recreated_options(self.options), *self.providers, **self.keywords
        )


class InferenceSession(OrtSession):  # type: ignore[misc]
    """Runs one model on several devices in parallel.

    Replaces ``onnxruntime.InferenceSession`` and is a subclass of it: ONNX Runtime's own session
    answers all requests that no plan answers. With planner "auto", these are all requests until the
    planning in the background has found a plan that is clearly faster than that session.

    May be used by several threads, and may be copied and pickled: a copy opens the model again.

    This class has the methods of ONNX Runtime's class; its `Router` answers the requests. The
    router's `OrtBackend` holds ONNX Runtime's own session, which is another object.
    """

    __slots__ = ("_coexec_call", "coexec_router")
    # All state lies in these slots. So ``vars(session)`` has the attributes of a subclass only.

    _coexec_call: _ConstructorCall
    coexec_router: Router
    """Which backend answers a request, and the backends. For tests and tools."""

    def __init__(
        self,
        path_or_bytes: Any,
        sess_options: Any = None,
        providers: Sequence[Any] | None = None,
        provider_options: Sequence[Any] | None = None,
        *,
        devices: Sequence[str] | str | None = None,
        planner: str = AUTO,
        plan: "PlanFile | Plan | Path | str | None" = None,
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
        memory_limit: int | str | None = None,
        strict: bool = False,
        precision: Precision = FLOAT32,
        tolerance: float | None = None,
        **ort_keywords: Any,
    ) -> None:
        """Open ``path_or_bytes``, and start its stored plan or plan in the background.

        Args:
            path_or_bytes: path, "zoo:NAME", serialized bytes, ``onnx.ModelProto`` or
                ``onnx_ir.Model``.
            sess_options: ``onnxruntime.SessionOptions``. With fewer threads than cores, or with
                less than all optimisations, nothing is planned and ONNX Runtime's own session
                answers.
            providers: as ONNX Runtime takes them. If one of them is not for the CPU, "auto"
                compares plans with ONNX Runtime's own session of these providers. With several of
                them, or another planner, nothing is planned unless ``devices`` are named.
            provider_options: of the providers.
            devices: such as ``["cpu:0-3", "cpu:4-7"]`` or ``["cpu:0", "cpu:1/cpp"]``; by default
                what this machine has.
            planner: a name in `coexec.PLANNERS`, or "auto": several configurations of the devices
                and several planners are tried, the fastest is kept and remembered. "none" plans,
                measures and stores nothing: the session is ONNX Runtime's own, as it is with
                ``COEXEC=off`` in the environment, whatever the other keywords are.
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
            engine_options: by engine, its own options: ``{"opencl": {"waiting": "active",
                "tuning": "exhaustive"}}``; an engine's page in the docs lists them.
            background: plan while ONNX Runtime's own session answers; False: plan first. By default
                only "auto", and shapes that come with a request, are planned in the background.
            pins: devices by names of tasks, patterns such as "conv*" allowed.
            replan: watch the runs, and make a new plan when a device has been slower or faster than
                in its profile for some time, by more than this share (0.25 is a quarter).
            mode: "latency": all devices work on one request, for the shortest time of a request.
                "throughput": many requests of several threads at the same time, each on devices of
                its own if this answers more requests per second.
            waiting: a device that waits for another one during a run keeps its core busy for up to
                a millisecond ("active"), so that it goes on sooner, or soon lets it halt
                ("passive"), which saves energy.
            memory_limit: bytes, or a text such as "2GiB", that planning may use; candidates that
                need more are not tried. By default half of main memory.
            strict: raise an error if ``plan``, or the plan of an export, does not answer: this
                machine lacks a device or an engine of it, or its outputs differ. By default ONNX
                Runtime's own session answers, `degraded` has the reason, and there is a
                `DegradedWarning`.
            precision: the least precise arithmetic that a plan of "auto" may use: "float32",
                "tf32", "bf16" or "fp16". It computes in what is fastest within, and its outputs
                are compared with ONNX Runtime's.
            tolerance: largest difference of these outputs, as a part of the largest value, in place
                of the default of the precision.
            ort_keywords: further keywords of ONNX Runtime's class.

        Raises:
            UsageError: a keyword does not exist, or a value has no meaning.
            CoexecError: its subclass names the cause, and its message the remedy. If ONNX Runtime
                refuses the model, the error is also of ONNX Runtime's own class.
        """
        arguments.check_keywords(ort_keywords, InferenceSession.__init__, ORT_KEYWORDS)
        coexec_arguments: dict[str, Any] = {
            "devices": devices,
            "planner": planner,
            "plan": None if is_off() else plan_of(plan),
            "planner_options": planner_options,
            "shapes": shapes,
            "cache": cache,
            "engine_options": engine_options,
            "background": background,
            "pins": pins,
            "replan": replan,
            "mode": mode,
            "waiting": waiting,
            "memory_limit": memory_limit,
            "strict": strict,
            "precision": precision,
            "tolerance": tolerance,
        }
        keywords = {**coexec_arguments, "values": values, **ort_keywords}
        self._coexec_call = _ConstructorCall(
            path_or_bytes, sess_options, (providers, provider_options), keywords
        )
        arguments.check_providers(providers)
        constants = check_values(values)
        source, settings, off = model_and_settings(path_or_bytes, coexec_arguments, constants)
        self.coexec_router = new_router(
            source,
            settings,
            constants,
            sess_options,
            providers,
            provider_options,
            ort_keywords,
            off,
        )
        start(self.coexec_router)

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
        outputs: list[Any] = self.coexec_router.run(output_names, input_feed, run_options)
        return outputs

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: Any = None,
    ) -> list[OrtValue]:
        """As `run`, with ``OrtValue`` feeds and outputs. Values in main memory are not copied."""
        values: list[OrtValue] = self.coexec_router.run(
            output_names, input_dict_ort_values, run_options, ORT_VALUES
        )
        return values

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
            self.coexec_router.ort.run_bound(iobinding, run_options)
            return
        if iobinding.owner is not self:
            raise InputError(
                "the IOBinding belongs to another session; make one with this "
                "session's io_binding()"
            )
        names, feeds = iobinding.output_names, iobinding.feeds()
        self.coexec_router.run(names, feeds, run_options, iobinding)

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
        required = self.coexec_router.metadata.required_inputs
        if missing := [name for name in required if name not in input_feed]:
            raise InputError(
                f"input {missing[0]!r} is missing; the model takes {', '.join(map(repr, required))}"
            )
        if self.coexec_router.is_closed:
            raise ClosedError("the session is closed; make a new one")
        run = partial(self.run, output_names, input_feed, run_options)
        self.coexec_router.callbacks.submit(run, callback, user_data)

    def run_with_trace(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]
    ) -> "tuple[list[Any], Trace]":
        """As `run`. Also returns a trace of what ran where and when."""
        return self.coexec_router.run_with_trace(output_names, input_feed)

    def end_profiling(self) -> str:
        """End the profiling of ``SessionOptions.enable_profiling``. Returns the name of its file.

        The file has the runs that plans have answered, as a Chrome trace. If there are none, it is
        ONNX Runtime's profile. The name is "" if nothing was profiled.

        Raises:
            OSError: the file cannot be written.
        """
        return self.coexec_router.end_profiling()

    def get_profiling_start_time_ns(self) -> int:
        """Start of profiling, in nanoseconds of ``time.monotonic_ns``; 0 if nothing is profiled."""
        return self.coexec_router.profiling_start_ns

    def get_inputs(self) -> Sequence[Any]:
        """The model's inputs, in order, with their dimensions as the model names them, and with the
        sizes that ``shapes`` fixes."""
        return self.coexec_router.metadata.inputs

    def get_outputs(self) -> Sequence[Any]:
        """The model's outputs, in order, with their dimensions as the model names them."""
        return self.coexec_router.metadata.signature.outputs

    def get_overridable_initializers(self) -> Sequence[Any]:
        """The weights that a feed may replace."""
        return self.coexec_router.metadata.signature.overridable

    def get_modelmeta(self) -> Any:
        """The model's metadata."""
        return self.coexec_router.metadata.signature.metadata

    def get_session_options(self) -> Any:
        """The options with which ONNX Runtime's own session is or will be opened."""
        return self.coexec_router.ort.options

    def get_providers(self) -> list[str]:
        """ONNX Runtime's execution providers, and the devices of the plan in use."""
        return list(dict.fromkeys((*self.coexec_router.ort.providers, *self.devices)))

    def get_provider_options(self) -> Mapping[str, Any]:
        """The options of ONNX Runtime's execution providers, by name."""
        return self.coexec_router.ort.provider_options

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Reopen ONNX Runtime's own session with these execution providers.

        No plan answers while one of them is not for the CPU, unless devices were named.
        """
        arguments.check_providers(providers)
        self.coexec_router.set_providers(providers, provider_options)

    def disable_fallback(self) -> None:
        """Do not fall back to other execution providers when one fails."""
        self.coexec_router.ort.set_fallback(False)

    def enable_fallback(self) -> None:
        """Fall back to other execution providers when one fails."""
        self.coexec_router.ort.set_fallback(True)

    def create_ortvalue_from_shape_and_type(self, *positional: Any, **keywords: Any) -> Any:
        """As in ONNX Runtime. The value belongs to its own session, which stays open."""
        session = self.coexec_router.ort.pin()
        return session.create_ortvalue_from_shape_and_type(*positional, **keywords)

    def set_ep_dynamic_options(self, options: dict[str, str]) -> None:
        """As in ONNX Runtime, for its own session, which stays open."""
        self.coexec_router.ort.pin().set_ep_dynamic_options(options)

    def set_tuning_results(self, results: Any, *, error_on_invalid: bool = False) -> None:
        """As in ONNX Runtime, for its own session, which stays open."""
        session = self.coexec_router.ort.pin()
        session.set_tuning_results(results, error_on_invalid=error_on_invalid)

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices of the plan for the latest request; empty: ONNX Runtime's own session answers
        it."""
        running = self.coexec_router.running
        if running is None:
            return ()
        plans = running.prepared, *running.prepared.beside
        return tuple(name for plan in plans for name in plan.plan.used)

    @property
    def decision(self) -> "Decision | None":
        """What planner "auto" considered for the latest request, with figures and reasons; None
        while nothing is decided, and for other planners and plan files."""
        return self.coexec_router.decision

    def wait(self) -> None:
        """Wait until the planning in the background has ended."""
        if (plans := self.coexec_router.plans) is not None:
            plans.selector.wait()

    @property
    def degraded(self) -> str | None:
        """Why ONNX Runtime's own session answers requests of the latest request's shapes instead of
        a plan; None if all works as requested.

        Before the first request: of the shapes that model and ``shapes`` fix. While there is no
        plan for any shapes, new shapes are seen after a twentieth of a second of requests.

        Reasons: nothing is planned for these settings, the plan is not ready, it was made for other
        shapes, a device failed."""
        return self.coexec_router.degraded

    @property
    def ort_is_open(self) -> bool:
        """Whether ONNX Runtime's own session holds the model in memory."""
        return self.coexec_router.ort.is_open

    def open_ort(self) -> None:
        """Open ONNX Runtime's own session now.

        Raises:
            ModelError: ONNX Runtime refuses the model. The error is also an instance of ONNX
                Runtime's own class.
        """
        self.coexec_router.ort.open()

    def give_back_ort(self) -> None:
        """Free the memory of ONNX Runtime's own session, after the running requests have left it.
        It is opened again when it is needed."""
        self.coexec_router.ort.give_back()

    def close(self) -> None:
        """Release all resources. Called automatically when the session is no longer used.

        A run of another thread is allowed to end. If a signal handler closes the session that its
        own thread runs, that run stops and raises `coexec.errors.ClosedError`.
        """
        self.coexec_router.close()

    def __enter__(self) -> "InferenceSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getattr__(self, name: str) -> Any:
        """An attribute of ONNX Runtime's own session, which is opened if necessary: programs and
        ONNX Runtime's methods read ``_sess`` and others."""
        is_ours = name in InferenceSession.__slots__  # before the constructor has set it
        if name.startswith("_") and not name.startswith("__") and not is_ours:
            session = self.coexec_router.ort.open()
            if hasattr(session, name):
                return getattr(session, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __getstate__(self) -> dict[str, Any]:
        """The constructor's arguments in a form that can be pickled, and the attributes that a
        subclass has added. A subclass may override this and `__setstate__`."""
        return {"call": self._coexec_call.portable(), "added": dict(vars(self))}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state["added"])
        state["call"].repeat(self)
