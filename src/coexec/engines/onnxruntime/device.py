"""CPU clusters through ONNX Runtime: `cpu:0-3` is four pinned threads of one session."""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort

from coexec.engines.base import Bound, Held, OpenEngine
from coexec.errors import DeviceError, ExecutionError, first_line
from coexec.frontend.module import Array, LayoutOps, Module
from coexec.frontend.values import ort_value, run_session
from coexec.system.hardware import Device, EngineInfo

__all__ = ["CpuCluster", "OrtProgram", "session_options"]

_ORT_FOLDER = os.path.dirname(ort.__file__) + os.sep


class CpuCluster(OpenEngine):
    """ONNX Runtime on the cores of one device: one thread a core, bound to it."""

    layout_ops: LayoutOps = frozenset(
        {
            ("", "Identity"),
            ("com.microsoft.nchwc", "ReorderInput"),
            ("com.microsoft.nchwc", "ReorderOutput"),
        }
    )

    runs_opaque = True

    def __init__(self, device: Device, info: EngineInfo) -> None:
        super().__init__(device, info)
        # The other threads of a session are bound to one core each. A caller that may use any of
        # the cores can stay on one of theirs, where it was last, and the run takes twice as long.
        self.thread_cores = device.cores[:1]
        self.after_fork = "works" if len(device.cores) == 1 else "again"

    def lower(self, model: Any, borders: Sequence[str], folder: Path) -> Path | None:
        from coexec.engines.onnxruntime.lowering import lower

        return lower(model, borders, folder)

    def compile(self, module: Module) -> "OrtProgram":
        options = session_options(len(self.device.cores), self.device.cores)
        # The module is cut from a lowered model: everything was optimised there.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return OrtProgram(module, options, self.device.name)


class OrtProgram:
    """One ONNX Runtime session that reads and writes tensors of the caller."""

    def __init__(self, module: Module, options: ort.SessionOptions, device: str) -> None:
        self._device = device
        self._module = module
        values = {n: ort_value(w) for n, w in module.weights.items()}
        if values:
            options.add_external_initializers(list(values), list(values.values()))
        try:
            self._session = ort.InferenceSession(
                module.proto, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:
            names = ", ".join(t.name for t in module.outputs)
            raise DeviceError(f"{device} cannot compile what makes {names}: {first_line(error)}; "
                              f"run that part elsewhere with another plan") from error  # fmt: skip
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


class _BoundSession:
    """ONNX Runtime's IO binding on memory of the caller: nothing is copied."""

    def __init__(self, session: ort.InferenceSession, device: str) -> None:
        self._session = session
        self._device = device
        self._binding = session.io_binding()
        self._held: dict[str, tuple[Array, ort.OrtValue]] = {}

    def set_input(self, name: str, tensor: Array) -> None:
        held = self._held.get(name)
        if held is not None and held[0] is tensor:
            return  # a caller that fills one array again and again
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
            if not _raised_by_engine(error):
                raise  # by a signal handler, in the middle of the call
            raise ExecutionError(f"{self._device}: {first_line(error)}") from error


class _CalledSession:
    """A session that is called as its users call it: opaque values have no memory to be bound."""

    def __init__(
        self,
        session: ort.InferenceSession,
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
            if not _raised_by_engine(error):
                raise  # by a signal handler, in the middle of the call
            raise ExecutionError(f"{self._device}: {first_line(error)}") from error
        for (name, tensor), result in zip(self._outputs.items(), results, strict=True):
            if isinstance(tensor, Held):
                tensor.value = result
            elif tensor.shape == result.shape:
                tensor[...] = result
            else:  # assigning would repeat it along the axes
                raise ExecutionError(
                    f"{self._device}: {name!r} has the shape {list(result.shape)} where the "
                    f"operators say {list(tensor.shape)}"
                )


def _raised_by_engine(error: Exception) -> bool:
    """Whether ONNX Runtime raised it: by its type, or because its own code is where it arose."""
    if type(error).__module__.startswith("onnxruntime."):
        return True
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None or not isinstance(error, RuntimeError | MemoryError):
        return False
    return traceback.tb_frame.f_code.co_filename.startswith(_ORT_FOLDER)


def session_options(threads: int, cores: Sequence[int] = ()) -> ort.SessionOptions:
    """Options for ``threads`` threads, bound to ``cores`` if these are given.

    Threads spin for work inside a run and stop with it, so that a waiting cluster leaves its cores
    to others. All sessions share one arena: each would otherwise keep its own peak.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4  # every error is raised too
    options.add_session_config_entry("session.force_spinning_stop", "1")
    if _share_allocator():
        options.add_session_config_entry("session.use_env_allocators", "1")
    if len(cores) > 1:
        # The first core is the calling thread's. ONNX Runtime counts cores from 1.
        others = ";".join(str(core + 1) for core in cores[1:])
        options.add_session_config_entry("session.intra_op_thread_affinities", others)
    return options


_shared: list[bool] = []


def _share_allocator() -> bool:
    """Register the process-wide arena, the first time; whether there is one."""
    if not _shared:
        info = ort.OrtMemoryInfo(
            "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
        )
        with contextlib.suppress(Exception):  # another user of ONNX Runtime may have done it
            ort.create_and_register_allocator(info, None)
        _shared.append(True)
    return _shared[0]
