"""The OpenCL engine: for GPUs with a driver, and for CPU cores with an OpenCL runtime."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from coexec.cache.source import source_digest
from coexec.engines.base import Engine, OpenEngine, Processor
from coexec.engines.opencl.options import Options
from coexec.errors import DeviceError
from coexec.hardware.hardware import MAIN, Device, EngineInfo
from coexec.precision import FLOAT32

if TYPE_CHECKING:
    from coexec.engines.opencl.platforms import DeviceHandle


class OpenCl(Engine):
    """The engine that runs kernels generated for the processor."""

    name = "opencl"
    kinds = ("cpu", "gpu")
    rank = 10
    needs_trial = False
    builds_kernels = True
    options = Options
    distributions = ("coexec",)

    @property
    def installed(self) -> str:
        from coexec.engines.opencl.vendors import installed_runtimes

        return f"{super().installed}, {installed_runtimes()}"

    def processors(self, kind: str) -> Sequence[Processor]:
        from coexec.engines.opencl.platforms import devices
        from coexec.engines.opencl.tried import unusable

        try:
            handles = devices()
        except DeviceError as error:
            return [Processor("cpu", "", unusable=str(error))] if kind == "cpu" else []
        if kind == "cpu":
            return [_cores([cpu for cpu in handles if cpu.on_cpu])]
        return [
            Processor(
                "gpu",
                gpu.name,
                gpu.identity,
                gpu.driver,
                unusable(gpu),
                gpu.facts(),
                precisions=(FLOAT32, "fp16"),  # on CPU cores, stored halves gain nothing
            )
            for gpu in handles
            if not gpu.on_cpu
        ]

    def describe(self, device: Device, options: Options) -> EngineInfo:
        from coexec.engines.opencl.tried import find

        handle = find(device, options.runtime)
        on_arrays = handle.on_cpu and options.memory == "auto" and options.precision == FLOAT32
        label = EngineInfo(self.name, precision=options.precision).label
        memory = MAIN if on_arrays else f"{label} on {device.name}"
        driver = Path(__file__).parent
        digests = source_digest(driver.parent / "kernels"), source_digest(driver)
        # Profiles depend on the text of the kernels and on how they are launched.
        version, pool = f"{super().installed}-{'-'.join(digests)}, {handle.driver}", ""
        if handle.runtime is not None:
            version += f", blocks of {handle.architecture(block=options.block).block}"
            pool = handle.runtime.pool(device.cores)
        return EngineInfo(self.name, version, memory, handle.memory_bytes, options.precision, pool)

    def open(
        self, device: Device, info: EngineInfo, options: Options, folder: Path | None
    ) -> OpenEngine:
        from coexec.engines.opencl.device import OpenClCores, OpenClDevice
        from coexec.engines.opencl.tried import find

        kind = OpenClCores if info.memory == MAIN else OpenClDevice
        return kind(device, info, find(device, options.runtime), options, folder)


def _cores(runtimes: "Sequence[DeviceHandle]") -> Processor:
    """The CPU cores with the first runtime that works, and the reasons why others do not."""
    from coexec.engines.opencl.platforms import INSTALL, absent
    from coexec.engines.opencl.tried import unusable

    trials = [(handle, unusable(handle)) for handle in runtimes]
    reasons = (*absent(), *(reason for _, reason in trials if reason is not None))
    working = [handle for handle, reason in trials if reason is None]
    if not working:
        why = "; ".join(reasons) or f"there is no OpenCL runtime for CPU cores; {INSTALL}"
        return Processor("cpu", "", unusable=why)
    first, *spares = working
    further = {"further runtimes": ", ".join(spare.platform for spare in spares)} if spares else {}
    return Processor("cpu", first.name, "", first.driver, None, first.facts() | further, reasons)
