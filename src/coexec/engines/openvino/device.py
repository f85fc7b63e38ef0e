"""OpenVINO on the cores of a device, or on a GPU or NPU that it has a plug-in for."""

import hashlib
from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from coexec.engines.base import AfterFork
from coexec.engines.detect import usable_cores
from coexec.engines.openvino.cores import CoreGroup, check_cores
from coexec.engines.openvino.failures import translated
from coexec.engines.openvino.library import core, installed_version
from coexec.engines.openvino.program import OpenVinoProgram
from coexec.engines.openvino.reading import read
from coexec.engines.openvino.support import why_not
from coexec.errors import DeviceError
from coexec.frontend.module import Array, LayoutOps, Module
from coexec.ir.graph import Task, Tensor
from coexec.system import hardware

__all__ = ["PRECISIONS", "OpenVinoDevice", "OpenVinoOptions"]

PRECISIONS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
"""Precisions of computing, with OpenVINO's names."""

_ALIGNMENT = 64
"""Bytes: a cache line and an AVX-512 register."""


@dataclass(frozen=True, slots=True)
class OpenVinoOptions:
    """How OpenVINO computes."""

    precision: str = "fp32"
    """In which numbers: "fp32", "bf16" or "fp16". Tensors between segments keep their types."""
    binaries: Path | None = None
    """Folder of the cache, for the kernels that GPUs and NPUs compile; None: nothing is kept."""


class OpenVinoDevice:
    """CPU cores, a GPU or an NPU, as OpenVINO drives it. Its tensors lie in host memory."""

    layout_ops: LayoutOps = frozenset()

    def __init__(
        self,
        spec: hardware.Device,
        options: OpenVinoOptions | None = None,
        plugin: str = "CPU",
    ) -> None:
        """Open a processor.

        Args:
            spec: names its cores; all usable ones if it names none.
            options: how to compute.
            plugin: OpenVINO's name of the processor: "CPU", "GPU.0", "NPU".

        Raises:
            DeviceError: OpenVINO is missing, the processor does not compute in that precision, or
                its threads cannot be kept on these cores.
        """
        self.spec = spec
        self._plugin = plugin
        self._options = options or OpenVinoOptions()
        with translated(spec.name, f"opening {plugin}", "coexec devices lists what there is"):
            capabilities = core().get_property(plugin, "OPTIMIZATION_CAPABILITIES")
        _check_precision(spec.name, self._options.precision, capabilities)
        cores = (spec.cores or tuple(usable_cores())) if plugin == "CPU" else ()
        self.thread_cores: Collection[int] = cores[:1]
        self._threads = len(cores)
        # A forked child has none of TBB's workers, and no handle of a driver.
        self.after_fork: AfterFork = "works" if len(cores) == 1 else "lost"
        self._group: CoreGroup | None = None
        if len(cores) > 1:
            self._group = CoreGroup(spec.name, cores)
        if cores:
            with translated(spec.name, "running a small model", "reinstall OpenVINO"):
                check_cores(spec.name, cores, self._properties(), self._group)

    def why_not(self, task: Task, tensors: Mapping[str, Tensor]) -> str | None:
        for op in task.operators:
            reason = why_not(op, tensors)
            if reason is not None:
                return reason
        return None

    def lower(self, model: Any, borders: Sequence[str], folder: Path) -> Path | None:
        return None

    def compile(self, module: Module) -> OpenVinoProgram:
        name = self.spec.name
        names = ", ".join(tensor.name for tensor in module.outputs)
        remedy = "run that part elsewhere with another plan"
        starting = self._group.compiling() if self._group else nullcontext()
        with translated(name, f"compiling what makes {names}", remedy), starting:
            converted = read(module)
            compiled = core().compile_model(converted.model, self._plugin, self._properties())
        self._check_threads(compiled)
        _check_outputs(name, module, compiled)
        return OpenVinoProgram(module, compiled, converted.inputs, name, self._group)

    def _properties(self) -> dict[str, Any]:
        """What models are compiled with: the latency of one request at a time counts."""
        common = {
            "INFERENCE_PRECISION_HINT": PRECISIONS[self._options.precision],
            "PERFORMANCE_HINT": "LATENCY",
        }
        if self._plugin == "CPU":
            common |= _cpu_properties(self._threads)
        elif self._options.binaries is not None:
            # For the CPU there is little to keep: it compiles as fast as it would read.
            common["CACHE_DIR"] = str(_kernels(self._options.binaries, self._plugin))
        return common

    def _check_threads(self, compiled: Any) -> None:
        """Refuse fewer threads than cores: the process may have been confined to some of them."""
        if self._group is None:
            return
        found = int(compiled.get_property("INFERENCE_NUM_THREADS"))
        if found != self._threads:
            raise DeviceError(
                f"{self.spec.name} has {self._threads} cores, and OpenVINO takes {found} threads: "
                f"it was loaded while the process could use fewer cores; open it in a new process"
            )

    def allocate(self, tensor: Tensor, leaving: bool = False) -> Array:
        raw = np.empty(tensor.size_bytes + _ALIGNMENT, np.uint8)
        offset = -raw.__array_interface__["data"][0] % _ALIGNMENT
        flat = raw[offset : offset + tensor.size_bytes]
        return flat.view(tensor.dtype).reshape(tensor.shape)

    def upload(self, array: Array, into: Array | None = None) -> Array:
        return array

    def download(self, tensor: Any) -> Array:
        return np.asarray(tensor)

    def close(self) -> None:
        self._group = None  # its cores are free for another device


def _cpu_properties(threads: int) -> dict[str, Any]:
    """Why streams: `engines/openvino/cores.py`."""
    if threads == 1:
        return {"NUM_STREAMS": 0}
    return {
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,
        "ENABLE_HYPER_THREADING": True,  # the user has named the cores
        "SCHEDULING_CORE_TYPE": "ANY_CORE",
    }


def _kernels(binaries: Path, plugin: str) -> Path:
    """The folder for kernels of a GPU or NPU: one for each OpenVINO, processor and driver."""
    from coexec.engines.openvino.processors import processors

    facts = [installed_version(), *(found for found in processors() if found.plugin == plugin)]
    return binaries / f"openvino-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


def _check_precision(device: str, precision: str, capabilities: Sequence[str]) -> None:
    """Refuse what would silently be computed in another precision.

    Raises:
        DeviceError: ``precision`` is unknown, or not among the processor's ``capabilities``.
    """
    if precision not in PRECISIONS:
        raise DeviceError(f"{device}: precision {precision!r} is none of {', '.join(PRECISIONS)}")
    if precision.upper() not in capabilities:
        able = [name for name in PRECISIONS if name.upper() in capabilities]
        choose = f"choose {' or '.join(able)}" if able else "use another engine"
        raise DeviceError(f"{device} does not compute in {precision} with OpenVINO; {choose}")


def _check_outputs(device: str, module: Module, compiled: Any) -> None:
    """Refuse a model whose outputs OpenVINO gives another shape or type than ONNX.

    Raises:
        DeviceError: with both shapes.
    """
    for tensor, port in zip(module.outputs, compiled.outputs, strict=True):
        shape = tuple(port.partial_shape.to_shape()) if port.partial_shape.is_static else None
        dtype = np.dtype(port.element_type.to_dtype()).name
        if shape != tensor.shape or dtype != tensor.dtype:
            raise DeviceError(
                f"{device}: OpenVINO makes {tensor.name!r} {dtype} {shape}, and ONNX "
                f"{tensor.dtype} {tensor.shape}; run that part elsewhere with another plan"
            )
