"""The CUDA engine: for NVIDIA's GPUs."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from coexec.cache.source import source_digest
from coexec.engines.base import Engine, OpenEngine, Processor
from coexec.engines.cuda.options import CudaOptions
from coexec.errors import DeviceError
from coexec.hardware.hardware import Device, EngineInfo
from coexec.units import format_bytes


class Cuda(Engine):
    """The engine that runs generated kernels as one CUDA graph."""

    name = "cuda"
    kinds = ("gpu",)
    rank = 5
    builds_kernels = True
    options = CudaOptions
    distributions = ("coexec", "cuda-bindings")

    def processors(self, kind: str) -> Sequence[Processor]:
        if kind != "gpu" or find_spec("cuda") is None:
            return []
        from coexec.engines.cuda.driver import gpus

        return [
            Processor(
                "gpu",
                gpu.name,
                gpu.identity,
                f"CUDA {gpu.version}",
                gpu.unusable,
                facts={
                    "units": str(gpu.compute_units),
                    "memory": format_bytes(gpu.memory_bytes),
                    "compute capability": ".".join(map(str, gpu.capability)),
                },
            )
            for gpu in gpus()
        ]

    def describe(self, device: Device, options: CudaOptions) -> EngineInfo:
        from coexec.engines.cuda.driver import gpus

        gpu = next((gpu for gpu in gpus() if gpu.identity == device.identity), None)
        if gpu is None or gpu.unusable:
            why = gpu.unusable if gpu else f"CUDA does not find it ({device.processor})"
            raise DeviceError(f"device {device.name!r} cannot be used through CUDA: {why}")
        if options.precision != "fp32" and gpu.capability < (8, 0):
            raise DeviceError(
                f"{gpu.name} has no matrix units for cuda.precision={options.precision}: they came "
                f"with compute capability 8.0, and it has {'.'.join(map(str, gpu.capability))}; "
                f"leave the option out"
            )
        folder = Path(__file__).parent
        # Profiles depend on the text of the kernels and on how they are launched.
        digests = source_digest(folder.parent / "kernels"), source_digest(folder)
        version = f"{self.installed}-{'-'.join(digests)}, CUDA {gpu.version}"
        return EngineInfo(
            self.name, version, f"cuda on {device.name}", gpu.memory_bytes, options.precision
        )

    def open(
        self, device: Device, info: EngineInfo, options: CudaOptions, folder: Path | None
    ) -> OpenEngine:
        from coexec.engines.cuda.device import CudaDevice
        from coexec.engines.cuda.driver import gpus

        gpu = next(gpu for gpu in gpus() if gpu.identity == device.identity)
        return CudaDevice(device, info, gpu, options, folder)
