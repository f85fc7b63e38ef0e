"""CPU clusters through ONNX Runtime: `cpu:0-3` is four pinned threads of one session."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort

from coexec.arrays import Array
from coexec.costs.base import Workload
from coexec.engines.base import Bound, OpaqueValue, OpenEngine
from coexec.engines.detect import is_whole_machine
from coexec.engines.onnxruntime.seeds import with_seeds
from coexec.errors import DeviceError, ExecutionError, ModelError, first_line
from coexec.graph.graph import Operator, Tensor
from coexec.hardware.hardware import Device, EngineInfo
from coexec.lowering.dialect import Dialect
from coexec.lowering.module import Module
from coexec.model.values import has_foreign, ort_value, run_session
from coexec.ort import OrtSession, as_ours, raised_by_ort

_CPU = ["CPUExecutionProvider"]

__all__ = ["CpuCluster", "OrtOwnSession", "OrtProgram", "session_options"]


class CpuCluster(OpenEngine):
    """ONNX Runtime on the cores of one device: one thread a core, bound to it."""

    has_own_session = True
    runs_opaque = True

    def __init__(self, device: Device, info: EngineInfo) -> None:
        super().__init__(device, info)
        # The other threads of a session are bound to one core each. A calling thread that may use
        # all cores can stay on the core of another thread. The run then takes twice as long.
        self.thread_cores = device.cores[:1]
        self.after_fork = "works" if len(device.cores) == 1 else "again"

    def lower(self, model: Any, borders: Sequence[str], folder: Path) -> Path | None:
        from coexec.engines.onnxruntime.lowering import lower

        return lower(model, borders, folder)

    @property
    def dialect(self) -> Dialect:
        from coexec.engines.onnxruntime.dialect import dialect

        return dialect()

    def workload(
        self, operators: Sequence[Operator], tensors: Mapping[str, Tensor], compiled: str
    ) -> Workload:
        from coexec.engines.onnxruntime.workloads import workload

        return workload(operators, tensors, compiled, self.dialect.block)

    def compile(self, module: Module) -> "OrtProgram":
        return OrtProgram(module, self.options(), self.device.name)

    def options(self) -> ort.SessionOptions:
        """ONNX Runtime's options for the session of one module."""
        options = session_options(len(self.device.cores), self.device.cores)
        # The module is cut from a lowered model: everything was optimised there.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return options

    def timed(self) -> OpenEngine:
        from coexec.engines.onnxruntime.profiled import ProfiledCluster

        return ProfiledCluster(self.device, self.info)

    def own_session(self, model: Any) -> "OrtOwnSession":
        options = ort.SessionOptions()
        options.log_severity_level = 4  # every error is raised too
        if not is_whole_machine(self.device.cores):  # with all cores, ONNX Runtime's defaults hold
            options.intra_op_num_threads = len(self.device.cores)
            _bind_threads(options, self.device.cores)
        return OrtOwnSession(_opened(model, options), self.device.name)


def _opened(model: Any, options: ort.SessionOptions) -> OrtSession:
    """A session of a model, read by ONNX Runtime or, if that fails, by coexec.

    coexec also finds weights behind symbolic links, and the weights of models in memory.

    Raises:
        ModelError: neither of them can read the model.
    """
    try:
        with as_ours(ModelError, ModelError):
            if not isinstance(model, bytes | str | os.PathLike):
                model_bytes: bytes = model.SerializeToString()
                return OrtSession(model_bytes, options, providers=_CPU)
            return OrtSession(model, options, providers=_CPU)
    except (ModelError, AttributeError, ValueError) as error:  # no ModelProto, or beyond 2 GiB
        from coexec.model.read import read
        from coexec.model.reference_session import (
            own_session,  # it imports ONNX, which takes a while
        )

        with contextlib.suppress(ModelError):
            return own_session(read(model), options)
        if isinstance(error, ModelError):
            raise
        raise ModelError(f"ONNX Runtime does not run the model: {first_line(error)}") from error


class OrtOwnSession:
    """ONNX Runtime's session of a whole model."""

    def __init__(self, session: OrtSession, device: str) -> None:
        self._session = session
        self._device = device
        self._names = [output.name for output in session.get_outputs()]
        # Checked once here, because `run_session` would check it at each call.
        self._run = run_session if has_foreign(session) else _run_plainly

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        try:
            outputs = self._run(self._session, self._names, feeds)
        except Exception as error:
            if not raised_by_ort(error):
                raise  # by a signal handler, in the middle of the call
            raise ExecutionError(f"{self._device}: {first_line(error)}") from error
        return dict(zip(self._names, outputs, strict=True))


def _run_plainly(
    session: OrtSession, names: Sequence[str], feeds: Mapping[str, Any]
) -> Sequence[Any]:
    outputs: Sequence[Any] = session.run(names, feeds)
    return outputs


class OrtProgram:
    """One ONNX Runtime session that reads and writes the caller's tensors."""

    def __init__(self, module: Module, options: ort.SessionOptions, device: str) -> None:
        self._device = device
        self._module = module
        values = {n: ort_value(w) for n, w in module.weights.items()}
        if values:
            options.add_external_initializers(list(values), list(values.values()))
        try:
            proto = with_seeds(module.proto)
            self._session = OrtSession(proto, options, providers=["CPUExecutionProvider"])
        except Exception as error:
            names = ", ".join(t.name for t in module.outputs)
            raise DeviceError(
                f"{device} cannot compile what makes {names}: {first_line(error)}; "
                f"run that part elsewhere with another plan"
            ) from error
        self._weights = values  # the session borrows their memory

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> Bound:
        if any(t.opaque for t in (*self._module.inputs, *self._module.outputs)):
            return _CalledSession(self._session, self._device, dict(inputs), dict(outputs))
        bound = _BoundSession(self._session, self._device)
        for tensor in self._module.inputs:
            bound.set_input(tensor.name, inputs[tensor.name])
        for tensor in self._module.outputs:
            bound.set_output(tensor.name, outputs[tensor.name])
        return bound

    def end_profiling(self) -> tuple[str, float]:
        """The file of the profile, and its start time in seconds since 1970."""
        return self._session.end_profiling(), 1e-9 * self._session.get_profiling_start_time_ns()


class _BoundSession:
    """ONNX Runtime's IO binding on the caller's memory: nothing is copied."""

    def __init__(self, session: OrtSession, device: str) -> None:
        self._session = session
        self._device = device
        self._binding = session.io_binding()
        self._held: dict[str, tuple[Array, ort.OrtValue]] = {}

    def set_input(self, name: str, tensor: Array) -> None:
        bound = self._held.get(name)
        if bound is not None and bound[0] is tensor:
            return  # the caller fills the same array again
        value = ort_value(tensor)
        self._held[name] = (tensor, value)
        self._binding.bind_ortvalue_input(name, value)

    def set_output(self, name: str, tensor: Array) -> None:
        value = ort_value(tensor)
        self._held[name] = (tensor, value)
        self._binding.bind_ortvalue_output(name, value)

    def run(self) -> None:
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:
            if not raised_by_ort(error):
                raise  # by a signal handler, in the middle of the call
            raise ExecutionError(f"{self._device}: {first_line(error)}") from error


class _CalledSession:
    """A session that is run without IO binding: opaque values have no memory to be bound."""

    def __init__(
        self,
        session: OrtSession,
        device: str,
        inputs: dict[str, Any],
        outputs: dict[str, Any],
    ) -> None:
        self._session, self._device = session, device
        self._inputs, self._outputs = inputs, outputs

    def set_input(self, name: str, tensor: Any) -> None:
        self._inputs[name] = tensor

    def set_output(self, name: str, tensor: Any) -> None:
        self._outputs[name] = tensor

    def run(self) -> None:
        try:
            results = run_session(self._session, list(self._outputs), self._inputs)
        except Exception as error:
            if not raised_by_ort(error):
                raise  # by a signal handler, in the middle of the call
            raise ExecutionError(f"{self._device}: {first_line(error)}") from error
        for (name, tensor), result in zip(self._outputs.items(), results, strict=True):
            if isinstance(tensor, OpaqueValue):
                tensor.value = result
            elif tensor.shape == result.shape:
                tensor[...] = result
            else:  # an assignment would broadcast the result
                raise ExecutionError(
                    f"{self._device}: {name!r} has the shape {list(result.shape)} where the "
                    f"operators say {list(tensor.shape)}"
                )


def session_options(threads: int, cores: Sequence[int] = ()) -> ort.SessionOptions:
    """Options for ``threads`` threads, bound to ``cores`` if these are given.

    Threads spin for work during a run and stop at its end, so that the cores of a waiting cluster
    are free for other threads. All sessions share one memory arena; otherwise each session would
    keep the memory of its own peak.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # every error is raised too
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if _share_allocator():
        options.add_session_config_entry("session.use_env_allocators", "1")
    _bind_threads(options, cores)
    return options


def _bind_threads(options: ort.SessionOptions, cores: Sequence[int]) -> None:
    """Bind each thread of a session, except the calling thread, to a core of its own."""
    if len(cores) > 1:
        # The first core is the calling thread's. ONNX Runtime counts cores from 1.
        affinities = ";".join(str(core + 1) for core in cores[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", affinities)


_shared: list[bool] = []


def _share_allocator() -> bool:
    """Register the process-wide arena at the first call. Returns whether there is one."""
    if not _shared:
        info = ort.OrtMemoryInfo(
            "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
        )
        with contextlib.suppress(Exception):  # another library may have registered one already
            ort.create_and_register_allocator(info, None)
        _shared.append(True)
    return _shared[0]
