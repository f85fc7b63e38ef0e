"""The OpenCL engine: for GPUs with a driver."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from coexec.cache.source import source_digest
from coexec.engines.base import Engine, OpenEngine, Processor
from coexec.engines.opencl.options import Options
from coexec.engines.opencl.platforms import DeviceHandle, devices
from coexec.errors import DeviceError
from coexec.extras import install
from coexec.hardware.hardware import Device, EngineInfo
from coexec.keys import digest
from coexec.precision import FLOAT32

_VARIABLES = ("OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH")
"""Environment variables with which users select drivers."""


class OpenCl(Engine):
    """The engine that runs kernels generated for the processor."""

    name = "opencl"
    kinds = ("gpu",)
    rank = 10
    builds_kernels = True
    options = Options
    distributions = ("coexec", "pyopencl")
    advice = (
        f"on CPU cores the engine cpp runs the same kernels (cpu:0/cpp), with the C++ compiler of "
        f"the machine or of {install('cpp')}"
    )

    @property
    def installed(self) -> str:
        return f"{super().installed}, {_drivers()}"

    def processors(self, kind: str) -> Sequence[Processor]:
        try:
            gpus = devices()
        except DeviceError:  # coexec doctor lists what is not installed
            return []
        return [
            Processor(
                "gpu",
                gpu.name,
                gpu.identity,
                gpu.driver,
                facts=gpu.facts(),
                precisions=(FLOAT32, "fp16"),
            )
            for gpu in gpus
        ]

    def describe(self, device: Device, options: Options) -> EngineInfo:
        gpu = _gpu_of(device)
        folder = Path(__file__).parent
        # Profiles depend on the text of the kernels and on how they are launched.
        digests = source_digest(folder.parent / "kernels"), source_digest(folder)
        version = f"{super().installed}-{'-'.join(digests)}, {gpu.driver}"
        info = EngineInfo(self.name, version, "", gpu.memory_bytes, options.precision)
        return replace(info, memory=f"{info.label} on {device.name}")

    def open(
        self, device: Device, info: EngineInfo, options: Options, folder: Path | None
    ) -> OpenEngine:
        from coexec.engines.opencl.device import OpenClDevice

        return OpenClDevice(device, info, _gpu_of(device), options, folder)


def _gpu_of(device: Device) -> DeviceHandle:
    for gpu in devices():
        if gpu.identity == device.identity:
            return gpu
    raise DeviceError(
        f"device {device.name!r} cannot be used through OpenCL: there is no OpenCL driver for it"
    )


def _drivers() -> str:
    """Digest of what decides which drivers exist, computed without loading them."""
    facts: list[object] = [os.environ.get(name) for name in _VARIABLES]
    folder = Path(os.environ.get("OPENCL_VENDOR_PATH") or "/etc/OpenCL/vendors")
    for file in sorted(folder.glob("*.icd")):
        with suppress(OSError):
            facts.append((str(file), file.stat().st_mtime_ns))
    return digest(*facts)
