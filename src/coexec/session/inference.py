"""`InferenceSession`: ONNX Runtime's class of that name, on all processors at once."""

import os
import re
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from onnxruntime import GraphOptimizationLevel, SessionOptions, get_available_providers

from coexec import arguments
from coexec.arguments import check_feeds, check_names
from coexec.cache import Cache
from coexec.choosing.background import TRAFFIC
from coexec.choosing.replan import Replanner
from coexec.choosing.serving import Running, Serving, Shapes
from coexec.engines.detect import usable_cores
from coexec.engines.names import cores_of, parse, split_names, whole_cpu
from coexec.errors import ClosedError, DeviceError, ExecutionError, InputError
from coexec.frontend.digest import serialized
from coexec.frontend.module import Array
from coexec.ir.graph import Tensor
from coexec.ort import LazyOrtSession, OrtSession, as_ours
from coexec.runtime.executor import Waiting
from coexec.runtime.recorder import RealRecorder
from coexec.timing.trace import Span, Trace
from coexec.workbench import AUTO, Mode, Settings
from coexec.workbench.given import ZOO

__all__ = ["InferenceSession", "NodeArg"]

_TYPES = {"float32": "float", "float64": "double"}
_NUMPY = {theirs: ours for ours, theirs in _TYPES.items()}


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model, as ONNX Runtime describes it."""

    name: str
    shape: list[int | str | None]
    """A text names a dimension that the model leaves dynamic."""
    type: str
    """For example "tensor(float)"."""


class InferenceSession(LazyOrtSession):
    """Runs one model on several devices in parallel.

    Takes the place of ``onnxruntime.InferenceSession`` and is one: whatever no plan answers, ONNX
    Runtime's own session does. With planner "auto", that is every request until a plan has been
    found, in the background, that is clearly faster than it.

    May be used by several threads.
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
        planner_options: Mapping[str, Any] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        cache: Cache | Path | str | None = None,
        engine_options: Mapping[str, Mapping[str, str]] | None = None,
        background: bool | None = None,
        pins: Mapping[str, str] | None = None,
        replan: float | None = None,
        mode: Mode = "latency",
        waiting: Waiting = "passive",
        **ort_keywords: Any,
    ) -> None:
        """Open ``path_or_bytes``, and start what was planned for it or plan in the background.

        Args:
            path_or_bytes: path, "zoo:NAME", serialized bytes, ``onnx.ModelProto`` or
                ``onnx_ir.Model``.
            sess_options: ``onnxruntime.SessionOptions``. Fewer threads than cores, or less than
                all optimisations, are the own session's matter: then nothing is planned.
            providers: as ONNX Runtime takes them. If one of them is no CPU, nothing is planned,
                unless ``devices`` are named.
            provider_options: of the providers.
            devices: such as ``["cpu:0-3", "cpu:4-7"]`` or ``["cpu:0", "cpu:1/opencl"]``; by default
                what this machine has.
            planner: a name in `coexec.PLANNERS`, or "auto": several configurations of the devices
                and several planners are tried, the fastest is kept and remembered.
            planner_options: keyword options of the planner.
            shapes: of inputs that the model leaves dynamic: planned for before a request comes.
                Requests of other shapes are answered too.
            cache: folder for profiles and plans, or a `coexec.Cache` with a size limit of its own;
                by default the user's cache folder.
            engine_options: by engine, its own options: ``{"opencl": {"precision": "fp16",
                "tuning": "exhaustive"}}``; an engine's page in the docs lists them.
            background: plan while ONNX Runtime's own session answers; False: plan first. By default
                only "auto", and shapes that come with a request, are planned in the background.
            pins: devices by names of tasks, patterns such as "conv*" allowed.
            replan: watch the runs, and plan anew when a device has for some time been slower or
                faster than its profile says by more than this share (0.25 is a quarter).
            mode: "latency": all devices work on one request, which ends soon. "throughput": many
                requests at once, of several threads, each on devices of its own if that answers
                more of them a second.
            waiting: what threads do that wait for another device during a run: "passive" ones
                sleep, "active" ones keep their core and go on sooner.
            ort_keywords: what ONNX Runtime's class takes besides.

        Raises:
            CoexecError: the subclass says whose fault it is, the message what to do. What ONNX
                Runtime refuses is also of ONNX Runtime's own class.
        """
        source = arguments.check_model(path_or_bytes)
        arguments.check_providers(providers)
        given: dict[str, Any] = {
            "devices": split_names(devices) if isinstance(devices, str) else devices,
            "planner": planner, "planner_options": planner_options, "shapes": shapes,
            "cache": cache, "engine_options": engine_options, "pins": pins, "waiting": waiting,
            "background": background, "replan": replan, "mode": mode,
        }  # fmt: skip
        self._settings = settings = Settings(**{k: v for k, v in given.items() if v is not None})
        self._latest: Shapes = ()
        self._dynamic: tuple[str, ...] | None = None
        self._bound = False
        self._replanner: tuple[Running, Replanner] | None = None
        self._closed = False
        unplanned = why_unplanned(sess_options, providers, settings.devices)
        self._serving = None if unplanned else Serving(_portable(source), settings)
        self._unplanned = unplanned
        if sess_options is None and settings.devices is not None:
            sess_options = _own_options(settings.devices)
        super().__init__(
            partial(_for_ort, source), sess_options, providers, provider_options, **ort_keywords
        )
        self._begin(_writes_a_model(sess_options))

    def _begin(self, own_is_wanted: bool) -> None:
        """Start what was planned before, or the own session and the planning."""
        serving = self._serving
        if serving is None:
            self.open_ort()
            return
        serving.changed = partial(_give_back, weakref.ref(self))
        asked = serving.check()
        if asked.is_told_quickly and serving.start_known((), asked) and not own_is_wanted:
            return
        self.open_ort()
        if any(_is_dynamic(arg, self._settings.shapes) for arg in self._inputs_meta):
            return  # planned for as shapes come
        later = self._settings.background
        if later is None:
            later = self._settings.planner == AUTO and self._settings.replan is None
        if later:
            serving.start_later(())
        else:
            serving.start_now(())

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Any]:  # fmt: skip
        """The outputs named, or all of them, in that order.

        Args:
            output_names: None or no name: all.
            input_feed: for each input an array, or what ONNX Runtime takes in its place.
            run_options: ``onnxruntime.RunOptions``; any that change what is computed, or let
                another thread end it, are the own session's matter.

        Raises:
            InputError: a name, shape or dtype that the model does not have.
            ExecutionError: a device failed, and ONNX Runtime's own session too.
        """
        shapes, running = self._plan_for(input_feed)
        if running is None or run_options is not None:
            return self._run_own(shapes, output_names, input_feed, run_options)
        try:
            wanted, feeds = _asked(running, output_names, input_feed)
        except InputError as error:  # ONNX Runtime takes lists and scalars, say
            return self._run_own(shapes, output_names, input_feed, None, error)
        TRAFFIC.begin()
        try:
            outputs = self._run_plan(running, feeds)
        except ClosedError:
            if self._closed or running is self._plan_for(input_feed)[1]:
                raise
            return self.run(output_names, input_feed)  # the plan was replaced meanwhile
        except (DeviceError, ExecutionError) as error:
            answer = self._run_own(shapes, output_names, input_feed, None)
            assert self._serving is not None
            self._serving.failed(shapes, running, error)
            return answer
        finally:
            TRAFFIC.end()
        return [outputs[name] for name in wanted]

    def _plan_for(self, feeds: Any) -> tuple[Shapes, Running | None]:
        """The dynamic shapes of a request, and the plan that answers it; None: the own session."""
        serving = self._serving
        if serving is None:
            return (), None
        running = serving.running(())
        if running is not None and _fit(running, feeds):
            return (), running
        self._latest = shapes = self._shapes_of(feeds)
        return shapes, serving.running(shapes) if shapes else None

    def _shapes_of(self, feeds: Any) -> Shapes:
        """Of the inputs that the model leaves dynamic; empty if there are none, or no arrays."""
        if self._dynamic is None:
            names = [a.name for a in self._inputs_meta if _is_dynamic(a, {})]
            self._dynamic = tuple(sorted(names))
        try:
            return tuple((name, tuple(feeds[name].shape)) for name in self._dynamic)
        except (KeyError, AttributeError, TypeError):
            return ()

    def _run_own(
        self, shapes: Shapes, output_names: Any, feeds: Any, run_options: Any,
        because: InputError | None = None,
    ) -> list[Any]:  # fmt: skip
        """The answer of ONNX Runtime's own session.

        ``because``: why no plan takes these feeds, for the case that ONNX Runtime does not either.
        """
        if self._closed:
            raise ClosedError("the session is closed; make a new one")
        start_s = time.perf_counter()
        TRAFFIC.begin()
        try:
            with as_ours(because=lambda: because or self._why_not(output_names, feeds)):
                outputs: list[Any] = OrtSession.run(self, output_names, feeds, run_options)
        finally:
            TRAFFIC.end()
        if shapes and self._serving is not None:
            self._serving.answered(shapes, time.perf_counter() - start_s)
        return outputs

    def _why_not(self, output_names: Any, feeds: Any) -> InputError | None:
        """What is wrong with a request that ONNX Runtime has refused, in our words."""
        tensors = [_tensor(arg) for arg in self._inputs_meta]
        outputs = [arg.name for arg in self._outputs_meta]
        try:
            check_names(outputs, output_names)
            check_feeds({t.name: t for t in tensors if t is not None}, feeds)
        except InputError as error:
            return error
        return None

    def _run_plan(self, running: Running, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        if self._settings.replan is None:
            return running.runner.run(feeds)
        return self._run_recorded(running, feeds)[0]

    def run_with_trace(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]
    ) -> tuple[list[Any], Trace]:
        """As `run`, with what ran where and when."""
        shapes, running = self._plan_for(input_feed)
        if running is None:
            start_s = time.perf_counter()
            found = self._run_own(shapes, output_names, input_feed, None)
            took_s = time.perf_counter() - start_s
            whole = Span("the whole model", whole_cpu(), 0.0, took_s, engine="onnxruntime")
            return found, Trace((whole.device,), (whole,))
        wanted, feeds = _asked(running, output_names, input_feed)
        outputs, trace = self._run_recorded(running, feeds)
        return [outputs[name] for name in wanted], trace

    def _run_recorded(
        self, running: Running, feeds: Mapping[str, Array]
    ) -> tuple[Mapping[str, Array], Trace]:
        """A run with what ran when, of which the replanner is told."""
        plan = running.prepared
        recorder = RealRecorder(plan.compiled, plan.work.names)
        outputs = running.runner.run(feeds, recorder)
        trace = recorder.trace()
        if self._settings.replan is not None:
            better = self._watching(running).observe(trace, plan)
            if better is not None and self._serving is not None:
                self._serving.replace(running, better)
        return outputs, trace

    def _watching(self, running: Running) -> Replanner:
        """Watches the plan in use. Devices that "auto" has chosen stay; heft plans for them."""
        known = self._replanner
        if known is None or known[0].prepared.work is not running.prepared.work:
            planner, options = self._settings.planner, self._settings.planner_options
            if planner == AUTO:
                planner, options = "heft", {}
            watcher = Replanner(running.prepared, planner, options, self._settings.replan or 0.0)
            self._replanner = known = running, watcher
        return known[1]

    def get_inputs(self) -> Sequence[Any]:
        """The model's inputs, in order; those that ``shapes`` fixes have these shapes."""
        if not self.ort_is_open and (running := self._running) is not None:
            return [_node_arg(t) for t in running.prepared.compiled.inputs]
        fixed = self._settings.shapes
        return [_fixed(arg, fixed) for arg in super().get_inputs()]

    def get_outputs(self) -> Sequence[Any]:
        """The model's outputs, in order."""
        if (running := self._running) is not None:
            return [_node_arg(t) for t in running.prepared.compiled.outputs]
        found: Sequence[Any] = super().get_outputs()
        return found

    @property
    def _running(self) -> Running | None:
        """The plan of the shapes that are known without a request."""
        return None if self._serving is None else self._serving.running(())

    def get_providers(self) -> list[str]:
        """ONNX Runtime's execution providers, and the devices that the plan in use has."""
        own = super().get_providers() if self.ort_is_open else ["CPUExecutionProvider"]
        return [*own, *(name for name in self.devices if name not in own)]

    @property
    def devices(self) -> tuple[str, ...]:
        """The devices that the plan of the latest request uses; none: ONNX Runtime's session."""
        serving = self._serving
        running = None if serving is None else serving.running(self._latest) or self._running
        if running is None:
            return ()
        plans = running.prepared, *running.prepared.beside
        return tuple(name for plan in plans for name in plan.plan.used)

    def io_binding(self) -> Any:
        """ONNX Runtime's own, for its own session."""
        self._bound = True
        return super().io_binding()

    def wait(self) -> None:
        """Until nothing is planned in the background."""
        if self._serving is not None:
            self._serving.wait()

    @property
    def degraded(self) -> str | None:
        """Why ONNX Runtime's own session answers in place of a plan: none is made for these
        settings, it is still being made, or a device failed. None if all is as it was asked for."""
        if self._serving is None:
            return self._unplanned
        return self._serving.reason(self._latest)

    def close(self) -> None:
        """Give everything back. Called by itself when the session is no longer used.

        A run of another thread may end before. A signal handler that closes the session which its
        own thread runs stops that run: it raises `coexec.errors.ClosedError`.
        """
        self._closed = True
        if self._serving is not None:
            self._serving.close()
        self.give_back_ort()

    def __enter__(self) -> "InferenceSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if "_serving" in vars(self) and self._serving is not None:
            self._serving.close()


def why_unplanned(
    options: Any, providers: Sequence[Any] | None, devices: Sequence[str] | None
) -> str | None:
    """Why ONNX Runtime's own session answers alone; None if a plan may be faster."""
    names = [p[0] if isinstance(p, tuple) and p else p for p in providers or ()]
    others = [name for name in names if name != "CPUExecutionProvider"]
    others = [name for name in others if name in get_available_providers()]
    if others and devices is None:
        return f"ONNX Runtime runs it with {others[0]}; name devices=[...] to have it planned"
    if options is None:
        return None
    if options.graph_optimization_level != GraphOptimizationLevel.ORT_ENABLE_ALL:
        return "less than all optimisations are asked for, and plans need them"
    threads = options.intra_op_num_threads
    if devices is None and 0 < threads < len(usable_cores()):
        return (f"intra_op_num_threads={threads} leaves cores to others; name devices=[...] to "
                f"have it planned for cores of its own")  # fmt: skip
    return None


def _own_options(devices: Sequence[str]) -> SessionOptions:
    """As many threads as the CPU devices have cores."""
    options = SessionOptions()
    asked = [parse(name) for name in devices]
    options.intra_op_num_threads = sum(len(cores_of(r)) for r in asked if r.kind == "cpu")
    return options


def _writes_a_model(options: Any) -> bool:
    return options is not None and bool(options.optimized_model_filepath)


def _for_ort(source: Any) -> str | bytes:
    """The model as ONNX Runtime's constructor takes it, its structure checked."""
    if isinstance(source, str) and source.startswith(ZOO):
        from coexec.zoo import build

        source = build(source.removeprefix(ZOO))
    if isinstance(source, bytes):
        return source
    if isinstance(source, str | os.PathLike):
        return os.fspath(source)
    return serialized(source)


def _portable(source: Any) -> Any:
    """The model as another process can be told of it."""
    if isinstance(source, bytes | str):
        return source
    return os.fspath(source) if isinstance(source, os.PathLike) else serialized(source)


def _give_back(session: "weakref.ref[InferenceSession]") -> None:
    """A plan answers from now on: free what ONNX Runtime holds, if nobody needs it."""
    alive = session()
    if alive is not None and not alive._bound and alive._running is not None:
        alive.give_back_ort()


def _asked(
    running: Running, output_names: Sequence[str] | None, feeds: Mapping[str, Any]
) -> tuple[list[str], dict[str, Array]]:
    """The outputs that are wanted, and the feeds, both checked."""
    compiled = running.prepared.compiled
    wanted = check_names([t.name for t in compiled.outputs], output_names)
    return wanted, check_feeds({t.name: t for t in compiled.inputs}, feeds)


def _fit(running: Running, feeds: Any) -> bool:
    """Whether a plan's shapes are those of the feeds, as far as these are arrays."""
    try:
        return all(
            getattr(feeds[t.name], "shape", t.shape) == t.shape
            for t in running.prepared.compiled.inputs
        )
    except (KeyError, TypeError):
        return True  # the check says what is missing


def _is_dynamic(arg: Any, shapes: Mapping[str, Any]) -> bool:
    """Whether an input's shape is not known before a request comes."""
    return arg.name not in shapes and any(
        not isinstance(d, int) and d not in shapes for d in arg.shape
    )


def _fixed(arg: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    """An input as ONNX Runtime describes it, with the shape that was given for it."""
    return NodeArg(arg.name, list(shapes[arg.name]), arg.type) if arg.name in shapes else arg


def _tensor(arg: Any) -> Tensor | None:
    """An input as ONNX Runtime describes it; None unless it is a tensor that numpy has."""
    found = re.fullmatch(r"tensor\((\w+)\)", arg.type)
    if found is None or found[1] in ("string", "bfloat16"):
        return None
    shape = tuple(d if isinstance(d, int) else -1 for d in arg.shape)
    return Tensor(arg.name, shape, _NUMPY.get(found[1], found[1]))


def _node_arg(tensor: Tensor) -> NodeArg:
    kind = _TYPES.get(tensor.dtype, tensor.dtype)
    return NodeArg(tensor.name, list(tensor.shape), f"tensor({kind})")
