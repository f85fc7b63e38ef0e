"""CPU clusters through ONNX Runtime: `cpu:0-3` is four pinned threads of one session."""

import contextlib
import json
import os
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort

from coexec.engines.base import OpenEngine
from coexec.engines.detect import is_whole_machine
from coexec.engines.onnxruntime.c_api import OrtApiError
from coexec.engines.onnxruntime.native_session import NativeSession, native_api
from coexec.engines.onnxruntime.program import (
    OrtProgram,
    bind_threads,
    session_entries,
    session_options,
)
from coexec.errors import ExecutionError, ModelError, first_line
from coexec.hardware.hardware import Device, EngineInfo
from coexec.lowering.dialect import Dialect
from coexec.lowering.module import Module
from coexec.model.values import has_foreign, run_session
from coexec.ort import OpenSession, OrtSession, as_ours, on_cpu, raised_by_ort
from coexec.timing.trace import Detail

_KERNEL = "_kernel_time"
"""End of the names of the events that are operators."""


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

    def compile(self, module: Module) -> OrtProgram | NativeSession:
        tensors = (*module.inputs, *module.outputs)
        dtypes = [*(t.dtype for t in tensors), *(w.dtype.name for w in module.weights.values())]
        api = None if any(t.opaque for t in tensors) else native_api()
        if api is not None and api.takes(dtypes):
            cores = self.device.cores
            with contextlib.suppress(OrtApiError):  # of the module: the other session explains it
                return NativeSession(
                    api, module, len(cores), session_entries(cores), self.device.name
                )
        return OrtProgram(module, self.options(), self.device.name)

    def options(self) -> ort.SessionOptions:
        """ONNX Runtime's options for the session of one module."""
        options = session_options(len(self.device.cores), self.device.cores)
        # The module is cut from a lowered model: everything was optimised there.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        return options

    def timed(self) -> "ProfiledCluster":
        return ProfiledCluster(self.device, self.info)

    def own_session(self, model: Any) -> "OrtOwnSession":
        options = ort.SessionOptions()
        options.log_severity_level = 4  # every error is raised too
        if not is_whole_machine(self.device.cores):  # with all cores, ONNX Runtime's defaults hold
            options.intra_op_num_threads = len(self.device.cores)
            bind_threads(options, self.device.cores)
        return OrtOwnSession(whole_session(model, options), self.device.name)


class ProfiledCluster(CpuCluster):
    """ONNX Runtime with its profiler on.

    It reports the first run after `start_timing`, with the times of each operator that ONNX Runtime
    has measured.

    A session is profiled from its creation until its profile is read, which is possible only once.
    So these programs are separate from those of ordinary runs, and one run of them is reported. The
    profiler adds some microseconds to each operator (7 for pnasnet_mobile on one core). It reports
    whole microseconds.
    """

    def __init__(self, device: Device, info: EngineInfo) -> None:
        super().__init__(device, info)
        self._folder = tempfile.mkdtemp(prefix="coexec-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._programs: list[tuple[OrtProgram, Module]] = []
        self._from_s = 0.0

    def options(self) -> ort.SessionOptions:
        options = super().options()
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(self._folder) / str(len(self._programs)))
        return options

    def compile(self, module: Module) -> OrtProgram:
        program = OrtProgram(module, self.options(), self.device.name)
        self._programs.append((program, module))
        return program

    def start_timing(self) -> None:
        self._from_s = time.perf_counter()

    def stop_timing(self) -> Sequence[Detail]:
        # The profiler's start time is a time of the system's clock, not of the monotonic one.
        offset_s = time.perf_counter() - time.time()
        programs, self._programs = self._programs, []
        return [
            detail
            for program, module in programs
            for detail in self._details(*program.end_profiling(), module, offset_s)
            if detail.start_s >= self._from_s
        ]

    def _details(
        self, path: str, origin_s: float, module: Module, offset_s: float
    ) -> Iterator[Detail]:
        for event in json.loads(Path(path).read_text(errors="replace")):
            if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
                start_s = origin_s + offset_s + 1e-6 * event["ts"]
                yield self._detail(event, start_s, module)

    def _detail(self, event: dict[str, Any], start_s: float, module: Module) -> Detail:
        """The detail of one event. Programs are not optimised further, so the index of an operator
        is its index in the module."""
        index, name, result = int(event["args"]["node_index"]), event["args"]["op_name"], ""
        rows = [*zip(module.operators, module.results, strict=False)][index : index + 1]
        if rows and rows[0][0].rpartition(".")[2] == name:
            name, result = rows[0]
        end_s = start_s + 1e-6 * event["dur"]
        return Detail(name, self.device.name, "kernel", start_s, start_s, start_s, end_s, result)


def whole_session(
    model: Any, options: ort.SessionOptions, open_session: OpenSession = on_cpu
) -> OrtSession:
    """A session of a model, read by ONNX Runtime or, if that fails, by coexec.

    coexec also finds weights behind symbolic links, and the weights of models in memory.

    Raises:
        ModelError: neither of them can read the model.
    """
    try:
        with as_ours(ModelError, ModelError):
            if not isinstance(model, bytes | str | os.PathLike):
                model_bytes: bytes = model.SerializeToString()
                return open_session(model_bytes, options)
            return open_session(model, options)
    except (ModelError, AttributeError, ValueError) as error:  # no ModelProto, or beyond 2 GiB
        from coexec.model.read import read
        from coexec.model.reference_session import (
            own_session,  # it imports ONNX, which takes a while
        )

        with contextlib.suppress(ModelError):
            return own_session(read(model), options, open_session)
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
