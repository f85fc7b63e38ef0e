"""The CUDA engine: for NVIDIA's GPUs."""

from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from coexec.cache.source import source_digest
from coexec.engines.base import Engine, OpenEngine, Processor
from coexec.engines.cuda.driver import gpus, loss, refuse_forked
from coexec.engines.cuda.failures import translated
from coexec.engines.cuda.listing import ListedGpu, listing
from coexec.engines.cuda.options import CudaOptions
from coexec.errors import DeviceError
from coexec.hardware.hardware import Device, EngineInfo
from coexec.precision import FLOAT32, Precision
from coexec.units import format_bytes

_REMEDY = (
    "update NVIDIA's driver or reinstall cuda-bindings, after which coexec devices --fresh lists "
    "the GPUs again"
)


class Cuda(Engine):
    """The engine that runs generated kernels as one CUDA graph."""

    name = "cuda"
    kinds = ("gpu",)
    rank = 5
    builds_kernels = True
    replaces = ("opencl",)
    options = CudaOptions
    distributions = ("coexec", "cuda-bindings")

    def processors(self, kind: str) -> Sequence[Processor]:
        if kind != "gpu" or find_spec("cuda") is None:
            return []
        found = listing(self.installed)
        if found.failure:
            raise DeviceError(f"CUDA cannot be used: {found.failure}; {_REMEDY}")
        return [
            Processor(
                "gpu",
                gpu.name,
                gpu.identity,
                f"CUDA {gpu.version}",
                gpu.unusable or loss(gpu.identity),
                facts={
                    "units": str(gpu.compute_units),
                    "memory": format_bytes(gpu.memory_bytes),
                    "compute capability": gpu.capability,
                },
                precisions=_precisions(gpu),
            )
            for gpu in found.gpus
        ]

    def describe(self, device: Device, options: CudaOptions) -> EngineInfo:
        found = listing(self.installed)
        gpu = next((gpu for gpu in found.gpus if gpu.identity == device.identity), None)
        if gpu is None or gpu.unusable is not None:
            unknown = f"CUDA does not find it ({device.processor})"
            if found.failure:
                unknown = f"{found.failure}; {_REMEDY}"
            why = gpu.unusable if gpu else unknown
            raise DeviceError(f"device {device.name!r} cannot be used through CUDA: {why}")
        if options.precision not in _precisions(gpu):
            raise DeviceError(
                f"{gpu.name} has no matrix units for {options.precision}: they came with compute "
                f"capability 8.0, and it has {gpu.capability}; use it in {FLOAT32}"
            )
        if options.precision != FLOAT32 and options.compiler == "opencl":
            raise DeviceError(
                f"{self.name} in {options.precision} needs NVRTC: the compiler in NVIDIA's OpenCL "
                f"driver knows no matrix units; leave cuda.compiler=opencl or the precision out"
            )
        folder = Path(__file__).parent
        # Profiles depend on the text of the kernels and on how they are launched.
        digests = source_digest(folder.parent / "kernels"), source_digest(folder)
        version = f"{self.installed}-{'-'.join(digests)}, CUDA {gpu.version}"
        info = EngineInfo(self.name, version, "", gpu.memory_bytes, options.precision)
        return replace(info, memory=f"{info.label} on {device.name}")

    def open(
        self, device: Device, info: EngineInfo, options: CudaOptions, folder: Path | None
    ) -> OpenEngine:
        from coexec.engines.cuda.device import CudaDevice

        refuse_forked()
        if lost := loss(device.identity):
            raise DeviceError(f"{device.name} cannot be used through CUDA: {lost}")
        with translated(device.name, "starting CUDA"):
            for gpu in gpus():
                if gpu.identity == device.identity:
                    return CudaDevice(device, info, gpu, options, folder)
        raise DeviceError(
            f"CUDA does not find {device.name} ({device.processor}) any more; coexec devices "
            f"--fresh lists what is there"
        )


def _precisions(gpu: ListedGpu) -> tuple[Precision, ...]:
    """Precisions of a GPU: the others than float32 need its matrix units."""
    return (FLOAT32, "tf32", "fp16") if float(gpu.capability) >= 8.0 else (FLOAT32,)
