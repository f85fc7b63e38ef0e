"""An execution provider on one device."""

import contextlib
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import onnxruntime as ort

from coexec.arrays import Array, numpy_type
from coexec.engines.base import AfterFork, OpenEngine
from coexec.engines.onnxruntime.device import OrtOwnSession, whole_session
from coexec.engines.onnxruntime.program import OrtProgram, bind_threads
from coexec.errors import CoexecError, DeviceError, ExecutionError, ModelError, first_line
from coexec.graph.graph import Tensor
from coexec.hardware.hardware import Device, EngineInfo
from coexec.lowering.module import Module
from coexec.lowering.synthetic import products
from coexec.ort import OrtSession, raised_by_ort, reason_of

_CPU = "CPUExecutionProvider"
_ALONE = "session.disable_cpu_ep_fallback"
"""ONNX Runtime refuses a model of which the provider does not take all operators."""
_ASSIGNED = "session.record_ep_graph_assignment_info"
"""ONNX Runtime can then list which provider takes which operator."""


@dataclass(frozen=True)
class Provider:
    """A provider with the options of its sessions."""

    name: str
    """ONNX Runtime's name: "CUDAExecutionProvider"."""
    options: Mapping[str, str]
    devices: tuple[Any, ...] = ()
    """Of a plug-in, the ``OrtEpDevice``; empty for a built-in provider."""
    memory: str = ""
    """ONNX Runtime's name of the memory in which tensors stay; "": the host's."""
    number: int = 0
    """Number of the device there."""
    graphs: bool = False
    """Whether it can record a model as one CUDA graph."""

    def open(
        self,
        model: Any,
        options: ort.SessionOptions,
        further: Mapping[str, str] | None = None,
        *,
        alone: bool = False,
    ) -> OrtSession:
        """A session of a model with this provider, before the one for the CPU.

        Args:
            further: options of the provider.
            alone: without the one for the CPU. The provider has to take all operators.

        Raises:
            DeviceError: the provider does not start: ONNX Runtime would go on without it.
            Exception: any other error of ONNX Runtime.
        """
        own = {**self.options, **(further or {})}
        named = [(self.name, own), *([] if alone else [_CPU])]
        if alone:
            options.add_session_config_entry(_ALONE, "1")
        if self.devices:
            options.add_provider_for_devices(list(self.devices), own)
        providers = None if self.devices else named
        # With ONNX Runtime's fallback, a failing provider prints a text and is left out.
        try:
            session = OrtSession(model, options, providers=providers, enable_fallback=0)
        except Exception as error:
            if "fallback to CPU EP" not in str(error):
                raise
            raise DeviceError(f"{self.name} does not take all of its operators") from error
        if self.name not in session.get_providers():
            raise DeviceError(
                f"ONNX Runtime does not start {self.name}: a library or a driver that it needs is "
                f"missing (of CUDA, cuDNN and cuBLAS: pip install 'onnxruntime-gpu[cuda,cudnn]')"
            )
        return session


class ProviderDevice(OpenEngine):
    """A processor that an execution provider drives."""

    has_own_session = True
    after_fork: AfterFork = "lost"

    def __init__(self, device: Device, info: EngineInfo, provider: Provider) -> None:
        super().__init__(device, info)
        self._provider = provider
        self._notes: dict[str, str] = {}
        """By what is compiled, how it runs there."""
        if provider.memory == "cuda":
            # The libraries of CUDA and cuDNN, which may lie in packages; a text says what is not
            # found, and the session below says it again.
            with contextlib.redirect_stdout(io.StringIO()):
                ort.preload_dlls()
        with self._translated(DeviceError, "starting"):
            provider.open(products(range(1), 1).proto, self._session_options())

    def compile(self, module: Module) -> OrtProgram:
        provider = self._provider
        if provider.graphs:
            try:
                return self._program(module, {"enable_cuda_graph": "1"})
            except DeviceError as error:
                names = ", ".join(t.name for t in module.outputs)
                self._note(names, f"runs {names} without a CUDA graph: {first_line(error)}")
        return self._program(module, {})

    def _program(self, module: Module, further: Mapping[str, str]) -> OrtProgram:
        options = self._session_options()
        if not self.device.cores:  # no operator is computed on the CPU
            options.intra_op_num_threads = 1
        program = OrtProgram(
            module,
            options,
            str(self.place),
            partial(self._provider.open, further=further, alone=True),
            graphs=bool(further),
        )
        self._try(program, module)
        return program

    def _try(self, program: OrtProgram, module: Module) -> None:
        """Run a program once: a provider may take an operator, and fail when it computes it.

        Raises:
            DeviceError: it fails.
        """
        inputs = {
            t.name: self.upload(np.zeros(t.shape, numpy_type(t.dtype))) for t in module.inputs
        }
        outputs = {t.name: self.allocate(t) for t in module.outputs}
        try:
            program.bind(inputs, outputs).run()
        except ExecutionError as error:
            raise DeviceError(f"{error}; run that part elsewhere with another plan") from error

    def own_session(self, model: Any) -> OrtOwnSession:
        options = self._session_options()
        options.add_session_config_entry(_ASSIGNED, "1")
        try:
            session = whole_session(model, options, self._provider.open)
        except DeviceError as error:
            raise ModelError(str(error)) from error
        taken, left = _assigned(session, self._provider.name)
        if not taken:
            raise ModelError(
                f"{self._provider.name} takes none of the model's operators; ONNX Runtime would "
                f"run them on the CPU"
            )
        if left:
            listed = ", ".join(f"{kind} {count}" for kind, count in sorted(left.items()))
            self._note(
                "",
                f"runs {taken} operators of the whole model with {self._provider.name}, and ONNX "
                f"Runtime runs {left.total()} on the CPU ({listed})",
            )
        return OrtOwnSession(session, self.device.name)

    def _session_options(self) -> ort.SessionOptions:
        options = ort.SessionOptions()
        options.log_severity_level = 4  # every error is raised too
        if self.device.cores:
            options.intra_op_num_threads = len(self.device.cores)
            bind_threads(options, self.device.cores)
        return options

    def _note(self, what: str, text: str) -> None:
        self._notes[what] = f"{self.place} {text}."
        self.decisions = tuple(self._notes.values())

    def allocate(self, tensor: Tensor, leaving: bool = False) -> Any:
        provider = self._provider
        if not provider.memory:
            return super().allocate(tensor, leaving)
        with self._translated(DeviceError, f"taking {tensor.size_bytes} bytes"):
            return ort.OrtValue.ortvalue_from_shape_and_type(
                tensor.shape, numpy_type(tensor.dtype), provider.memory, provider.number
            )

    def upload(self, array: Array, into: Any = None) -> Any:
        if not self._provider.memory:
            return array
        target = self.allocate(Tensor("", array.shape, array.dtype.name)) if into is None else into
        with self._translated(ExecutionError, "receiving a tensor"):
            target.update_inplace(np.ascontiguousarray(array))
        return target

    def download(self, tensor: Any) -> Array:
        if not isinstance(tensor, ort.OrtValue):
            return np.asarray(tensor)
        with self._translated(ExecutionError, "sending a tensor"):
            array: Array = tensor.numpy()
            return array

    @contextlib.contextmanager
    def _translated(
        self, kind: type[DeviceError] | type[ExecutionError], doing: str
    ) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if isinstance(error, CoexecError) or not raised_by_ort(error):
                raise
            raise kind(
                f"{self.place} failed while {doing} ({reason_of(error)}); let another device do a "
                f"part, or leave {self.info.name} out"
            ) from error


def _assigned(session: OrtSession, provider: str) -> tuple[int, Counter[str]]:
    """The number of operators that a provider takes, and the types of those that others take."""
    taken, left = 0, Counter[str]()
    for part in session.get_provider_graph_assignment_info():
        nodes: Sequence[Any] = part.get_nodes()
        if part.ep_name == provider:
            taken += len(nodes)
        else:
            left.update(node.op_type for node in nodes)
    return taken, left
