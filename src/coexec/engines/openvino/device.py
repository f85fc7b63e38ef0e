"""OpenVINO on the cores of a device, or on a GPU or NPU for which it has a plug-in."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from coexec.engines.base import OpenEngine
from coexec.engines.detect import usable_cores
from coexec.engines.openvino.c_api import native_model
from coexec.engines.openvino.cores import CoreGroup, check_cores
from coexec.engines.openvino.failures import translated
from coexec.engines.openvino.library import core, installed_version
from coexec.engines.openvino.options import CAPABILITIES, PRECISIONS, OpenVinoOptions
from coexec.engines.openvino.processors import processors
from coexec.engines.openvino.program import OpenVinoProgram
from coexec.engines.openvino.reading import read
from coexec.engines.openvino.support import why_not
from coexec.errors import DeviceError
from coexec.graph.graph import Operator, Tensor
from coexec.hardware.hardware import Device, EngineInfo
from coexec.keys import digest
from coexec.lowering.module import Module
from coexec.precision import Precision


class OpenVinoDevice(OpenEngine):
    """CPU cores, a GPU or an NPU, driven by OpenVINO. Its tensors lie in main memory."""

    def __init__(
        self,
        device: Device,
        info: EngineInfo,
        options: OpenVinoOptions,
        folder: Path | None = None,
        plugin: str = "CPU",
    ) -> None:
        """Open a processor.

        Args:
            device: with its cores; if it has none, all usable cores.
            options: how to compute.
            folder: the cache folder for compiled kernels of GPUs and NPUs; None: nothing is kept.
            plugin: OpenVINO's name of the processor: "CPU", "GPU.0", "NPU".

        Raises:
            DeviceError: OpenVINO is missing, the processor does not compute in that precision, or
                its threads cannot be bound to these cores.
        """
        super().__init__(device, info)
        self._plugin, self._options, self._folder = plugin, options, folder
        with translated(device.name, f"opening {plugin}", "coexec devices lists what there is"):
            capabilities = core().get_property(plugin, "OPTIMIZATION_CAPABILITIES")
        _check_precision(device.name, options.precision, capabilities)
        cores = (device.cores or tuple(usable_cores())) if plugin == "CPU" else ()
        self.thread_cores = cores[:1]
        self._threads = len(cores)
        # A forked child has none of TBB's workers, and no handle of a driver.
        self.after_fork = "works" if len(cores) == 1 else "lost"
        self._group: CoreGroup | None = None
        if len(cores) > 1:
            self._group = CoreGroup(device.name, cores)
        if cores:
            with translated(device.name, "running a small model", "reinstall OpenVINO"):
                check_cores(device.name, cores, self._properties(), self._group)

    def why_not_operator(self, op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
        return why_not(op, tensors)

    def compile(self, module: Module) -> OpenVinoProgram:
        name = self.device.name
        names = ", ".join(tensor.name for tensor in module.outputs)
        remedy = "run that part elsewhere with another plan"

        with translated(name, f"compiling what makes {names}", remedy), self._starting():
            converted = read(module)
            properties = self._properties() | self._of_integers(converted.quantized)
            model: Any = None
            if self._plugin == "CPU":
                size_bytes = sum(array.nbytes for array in module.weights.values())
                model = native_model(converted.model, size_bytes, self._plugin, properties)
            if model is None:
                model = core().compile_model(converted.model, self._plugin, properties)
        self._check_threads(model)
        _check_outputs(name, module, converted.model)
        return OpenVinoProgram(module, model, converted.inputs, device=name, group=self._group)

    def _starting(self) -> AbstractContextManager[None]:
        return self._group.compiling() if self._group else nullcontext()

    def _of_integers(self, quantized: bool) -> dict[str, Any]:
        """Properties that make a quantized model compute in floating-point numbers, if integers
        would saturate."""
        if self._plugin != "CPU" or not quantized:
            return {}
        from coexec.engines.openvino.trial import saturates

        return {"LP_TRANSFORMS_MODE": False} if saturates() else {}

    def _properties(self) -> dict[str, Any]:
        """The properties with which models are compiled, for a low latency of single requests."""
        common = {
            "INFERENCE_PRECISION_HINT": PRECISIONS[self._options.precision],
            "PERFORMANCE_HINT": "LATENCY",
        }
        if self._plugin == "CPU":
            common |= _cpu_properties(self._threads)
        elif self._folder is not None:
            # Not for the CPU, where compiling is as fast as reading from the cache.
            common["CACHE_DIR"] = str(_kernels(self._folder, self._plugin))
        return common

    def _check_threads(self, compiled: Any) -> None:
        """Refuse fewer threads than cores: the process may have had fewer cores when OpenVINO was
        loaded."""
        if self._group is None:
            return
        threads = int(compiled.get_property("INFERENCE_NUM_THREADS"))
        if threads != self._threads:
            raise DeviceError(
                f"{self.device.name} has {self._threads} cores, and OpenVINO takes {threads} "
                f"threads: it was loaded while the process could use fewer cores; open it in a new "
                f"process"
            )

    def close(self) -> None:
        self._group = None  # its cores are free for another device


def _cpu_properties(threads: int) -> dict[str, Any]:
    """Properties for this number of threads. `engines/openvino/cores.py` explains the streams."""
    if threads == 1:
        return {"NUM_STREAMS": 0}
    return {
        "NUM_STREAMS": 1,
        "INFERENCE_NUM_THREADS": threads,
        "ENABLE_CPU_PINNING": False,
        "ENABLE_HYPER_THREADING": True,  # the user has named the cores
        "SCHEDULING_CORE_TYPE": "ANY_CORE",
    }


def _kernels(folder: Path, plugin: str) -> Path:
    """The folder for kernels of a GPU or NPU. Each OpenVINO version, processor and driver has a
    folder of its own."""
    facts = [
        installed_version(),
        *(processor for processor in processors() if processor.plugin == plugin),
    ]
    return folder / f"openvino-{digest(*facts, digits=16)}"


def _check_precision(device: str, precision: Precision, capabilities: Sequence[str]) -> None:
    """Refuse a precision that OpenVINO would silently replace by another one.

    Raises:
        DeviceError: ``precision`` is unknown, or not among the processor's ``capabilities``.
    """
    if precision not in PRECISIONS:
        raise DeviceError(f"{device}: precision {precision!r} is none of {', '.join(PRECISIONS)}")
    if CAPABILITIES[precision] not in capabilities:
        able = [name for name, its_name in CAPABILITIES.items() if its_name in capabilities]
        choose = f"choose {' or '.join(able)}" if able else "use another engine"
        raise DeviceError(f"{device} does not compute in {precision} with OpenVINO; {choose}")


def _check_outputs(device: str, module: Module, model: Any) -> None:
    """Refuse a model if OpenVINO's outputs have another shape or type than ONNX's.

    Raises:
        DeviceError: with both shapes.
    """
    for tensor, port in zip(module.outputs, model.outputs, strict=True):
        shape = tuple(port.partial_shape.to_shape()) if port.partial_shape.is_static else None
        dtype = np.dtype(port.element_type.to_dtype()).name
        if shape != tensor.shape or dtype != tensor.dtype:
            raise DeviceError(
                f"{device}: OpenVINO makes {tensor.name!r} {dtype} {shape}, and ONNX "
                f"{tensor.dtype} {tensor.shape}; run that part elsewhere with another plan"
            )
