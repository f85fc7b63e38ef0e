"""`InferenceSession`: ONNX Runtime's class of that name, on all processors at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coexec import arguments
from coexec.arguments import check_feeds
from coexec.cache import Cache
from coexec.choosing.failover import Failover, Recorded
from coexec.choosing.prepare import on_cpu, preparation
from coexec.choosing.replan import Replanner
from coexec.compiling.compiled import CompiledPlan
from coexec.engines.names import split_names
from coexec.errors import InputError
from coexec.frontend.module import Array
from coexec.ir.graph import Tensor
from coexec.runtime.executor import Waiting
from coexec.timing.trace import Trace
from coexec.workbench import AUTO, Settings

__all__ = ["InferenceSession", "NodeArg"]

_TYPES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class NodeArg:
    """An input or output of a model, as ONNX Runtime describes it."""

    name: str
    shape: list[int]
    type: str
    """For example "tensor(float)"."""


class InferenceSession:
    """Runs one model on several devices in parallel.

    Takes the place of ``onnxruntime.InferenceSession``: same arguments, same methods. The first
    session of a model profiles its operators and plans, which takes seconds; later ones start from
    the cache. May be used by several threads; their requests take turns, as each uses all devices.
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
        background: bool = False,
        pins: Mapping[str, str] | None = None,
        replan: float | None = None,
        waiting: Waiting = "passive",
    ) -> None:
        """Load, profile, plan and compile ``path_or_bytes``, or start it from the cache.

        Args:
            path_or_bytes: path, "zoo:NAME", serialized bytes or ``onnx.ModelProto``.
            sess_options: accepted for compatibility; threads follow from ``devices``.
            providers: if given, must allow "CPUExecutionProvider".
            provider_options: accepted for compatibility.
            devices: such as ``["cpu:0-3", "cpu:4-7"]`` or ``["cpu:0", "cpu:1/opencl"]``; by default
                what this machine has.
            planner: a name in `coexec.PLANNERS`, or "auto": several configurations of the devices
                and several planners are tried, the fastest is kept and remembered.
            planner_options: keyword options of the planner.
            shapes: fixed shapes of inputs that the model leaves dynamic.
            cache: folder for profiles and plans, or a `coexec.Cache` with a size limit of its own;
                by default the user's cache folder.
            engine_options: by engine, its own options: ``{"opencl": {"precision": "fp16",
                "tuning": "exhaustive"}}``; an engine's page in the docs lists them.
            background: answer from the CPU while kernels for other engines still compile.
            pins: devices by names of tasks, patterns such as "conv*" allowed.
            replan: watch the runs, and plan anew when a device has for some time been slower or
                faster than its profile says by more than this share (0.25 is a quarter).
            waiting: what threads do that wait for another device during a run: "passive" ones
                sleep, "active" ones keep their core and go on sooner.

        Raises:
            CoexecError: the subclass says whose fault it is, the message what to do.
        """
        del sess_options, provider_options
        source = arguments.check_model(path_or_bytes)
        arguments.check_providers(providers)
        given: dict[str, Any] = {
            "devices": split_names(devices) if isinstance(devices, str) else devices,
            "planner": planner, "planner_options": planner_options, "shapes": shapes,
            "cache": cache, "engine_options": engine_options, "pins": pins, "waiting": waiting,
            "background": background, "replan": replan,
        }  # fmt: skip
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
        prepare, replaceable = preparation(source, settings)
        standby = partial(on_cpu, source, settings) if replaceable else None
        self._executor = Failover(prepare, standby, settings.background)
        self._inputs = {t.name: t for t in self._compiled.inputs}
        self._outputs = [t.name for t in self._compiled.outputs]
        self._replanner = None if replan is None else self._watch(replan, settings)

    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any],
        run_options: Any = None,
    ) -> list[Array]:  # fmt: skip
        """The outputs named, or all of them, in that order.

        Raises:
            InputError: a name, shape or dtype that the model does not have.
            ExecutionError: a device failed.
        """
        wanted, feeds = self._asked(output_names, input_feed)
        if self._replanner is None:
            outputs = self._executor.run(feeds)
        else:
            outputs = self._run_recorded(feeds).outputs
        return [outputs[name] for name in wanted]

    def run_with_trace(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]
    ) -> tuple[list[Array], Trace]:
        """As `run`, with what ran where and when."""
        wanted, feeds = self._asked(output_names, input_feed)
        done = self._run_recorded(feeds)
        return [done.outputs[name] for name in wanted], done.recorder.trace()

    def _asked(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]
    ) -> tuple[list[str], dict[str, Array]]:
        """The outputs that are wanted, and the feeds, both checked."""
        if isinstance(output_names, str):
            raise InputError(f"output_names is the string {output_names!r}; give a list of names")
        wanted = self._outputs if output_names is None else list(output_names)
        for name in wanted:
            if name not in self._outputs:
                raise InputError(f"the model has no output {name!r}; it has "
                                 f"{', '.join(map(repr, self._outputs))}")  # fmt: skip
        return wanted, check_feeds(self._inputs, input_feed)

    def _run_recorded(self, feeds: Mapping[str, Array]) -> Recorded:
        """A run with what ran when, of which the replanner is told."""
        done = self._executor.run_recorded(feeds)
        if self._replanner is not None and self.degraded is None:
            better = self._replanner.observe(done.recorder.trace(), done.by.prepared)
            if better is not None:
                self._executor.replace(done.by, better)
        return done

    def _watch(self, threshold: float, settings: Settings) -> Replanner:
        """Watches the plan in use. Devices that "auto" has chosen stay; heft plans for them."""
        planner, options = settings.planner, settings.planner_options
        if planner == AUTO:
            planner, options = "heft", {}
        return Replanner(self._executor.prepared, planner, options, threshold)

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs, in order."""
        return [_node_arg(t) for t in self._compiled.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs, in order."""
        return [_node_arg(t) for t in self._compiled.outputs]

    def dtype_of(self, name: str) -> str:
        """numpy's name of an input's dtype."""
        return self._inputs[name].dtype

    def wait(self) -> None:
        """Until kernels that compile in the background are ready."""
        self._executor.wait()

    @property
    def degraded(self) -> str | None:
        """Why the CPU runs the model in place of the plan: a device failed, or its kernels are
        still being compiled. None if all is as it was asked for."""
        return self._executor.reason

    @property
    def _compiled(self) -> CompiledPlan:
        return self._executor.prepared.compiled

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: weights are constants here."""
        return []

    def get_providers(self) -> list[str]:
        """The devices that the plan uses."""
        return list(dict.fromkeys(s.device for s in self._compiled.segments))

    def close(self) -> None:
        """End the threads. Called by itself when the session is no longer used.

        A run of another thread may end before. A signal handler that closes the session which its
        own thread runs stops that run: it raises `coexec.errors.ClosedError`.
        """
        self._executor.close()

    def __enter__(self) -> "InferenceSession":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_executor"):
            self.close()


def _node_arg(tensor: Tensor) -> NodeArg:
    kind = _TYPES.get(tensor.dtype, tensor.dtype)
    return NodeArg(tensor.name, list(tensor.shape), f"tensor({kind})")
