"""OpenCL as an engine: GPUs with a driver, and CPU cores where a runtime for them is installed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from coexec.cache.source import source_digest
from coexec.engines.base import Engine, OpenEngine, Processor
from coexec.engines.opencl.architecture import BlockWidth
from coexec.errors import DeviceError
from coexec.system.hardware import MAIN, Device, EngineInfo

if TYPE_CHECKING:
    from coexec.engines.opencl.platforms import DeviceHandle

__all__ = ["OpenCl", "Options"]


@dataclass(frozen=True, slots=True)
class Options:
    """The choices that the engine leaves."""

    precision: Literal["fp32", "fp16"] = "fp32"
    """"fp16" stores tensors and weights in 16 bits and computes in 32."""
    waiting: Literal["passive", "active"] = "passive"
    """A thread that waits for kernels sleeps ("passive"), or looks again and again ("active")."""
    tuning: Literal["fast", "none", "exhaustive"] = "fast"
    """Of work groups: "none", "fast" (by rule) or "exhaustive" (measured and remembered)."""
    storage: Literal["auto", "buffer", "image"] = "auto"
    """Of tensors inside of a program: "buffer", "image", or what suits the processor ("auto")."""
    memory: Literal["auto", "own"] = "auto"
    """On CPU cores kernels compute on the host's arrays, if those are 32-bit ("auto"); "own" keeps
    tensors in memory of the device's own, to which they are copied."""
    block: BlockWidth = "auto"
    """On CPU cores: channels that lie side by side, "4", "8", "16", or what a vector register of
    the processor holds ("auto")."""
    runtime: str = ""
    """On CPU cores: a part of the name of the runtime to take. Empty: the first that works."""


class OpenCl(Engine):
    """Kernels generated for the processor."""

    name = "opencl"
    kinds = ("cpu", "gpu")
    rank = 10
    needs_trial = False
    options = Options
    distributions = ("coexec",)

    @property
    def installed(self) -> str:
        from coexec.engines.opencl.vendors import installed_runtimes

        return f"{super().installed}, {installed_runtimes()}"

    def processors(self, kind: str) -> Sequence[Processor]:
        from coexec.engines.opencl.platforms import devices
        from coexec.engines.opencl.trial import unusable

        try:
            found = devices()
        except DeviceError as error:
            return [Processor("cpu", "", unusable=str(error))] if kind == "cpu" else []
        if kind == "cpu":
            return [_cores([cpu for cpu in found if cpu.on_cpu])]
        return [
            Processor("gpu", gpu.name, gpu.identity, gpu.driver, unusable(gpu), gpu.facts())
            for gpu in found
            if not gpu.on_cpu
        ]

    def describe(self, device: Device, options: Options) -> EngineInfo:
        from coexec.engines.opencl.platforms import find

        found = find(device, options.runtime)
        on_arrays = found.on_cpu and options.memory == "auto" and options.precision == "fp32"
        memory = MAIN if on_arrays else f"{self.name} on {device.name}"
        kernels = source_digest(Path(__file__).parent)  # profiles are of these
        version = f"{super().installed}-{kernels}, {found.driver}"
        if found.on_cpu:
            version += f", blocks of {found.architecture(block=options.block).block}"
        return EngineInfo(self.name, version, memory, found.memory_bytes, options.precision)

    def open(
        self, device: Device, info: EngineInfo, options: Options, folder: Path | None
    ) -> OpenEngine:
        from coexec.engines.opencl.device import OpenClCores, OpenClDevice
        from coexec.engines.opencl.platforms import find

        kind = OpenClCores if info.memory == MAIN else OpenClDevice
        return kind(device, info, find(device, options.runtime), options, folder)


def _cores(runtimes: "Sequence[DeviceHandle]") -> Processor:
    """CPU cores with the first runtime that works, and the reasons of those that do not."""
    from coexec.engines.opencl.platforms import INSTALL, absent
    from coexec.engines.opencl.trial import unusable

    tried = [(found, unusable(found)) for found in runtimes]
    reasons = (*absent(), *(reason for _, reason in tried if reason is not None))
    working = [found for found, reason in tried if reason is None]
    if not working:
        why = "; ".join(reasons) or f"there is no OpenCL runtime for CPU cores; {INSTALL}"
        return Processor("cpu", "", unusable=why)
    first, *others = working
    further = {"further runtimes": ", ".join(other.platform for other in others)} if others else {}
    return Processor("cpu", first.name, "", first.driver, None, first.facts() | further, reasons)
