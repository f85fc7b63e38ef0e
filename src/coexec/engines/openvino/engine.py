"""OpenVINO as an engine: CPU cores of all makers, Intel's GPUs and NPUs."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from coexec.engines import detect
from coexec.engines.base import Engine, OpenEngine, Processor
from coexec.engines.openvino.library import core, installed_version, load_tbb
from coexec.engines.openvino.options import OpenVinoOptions
from coexec.engines.openvino.processors import OpenVinoProcessor, processors
from coexec.errors import DeviceError
from coexec.extras import install
from coexec.hardware.hardware import Device, EngineInfo
from coexec.model.main_memory import main_memory_bytes
from coexec.precision import FLOAT32, Precision
from coexec.units import format_bytes

_MISSING = f"OpenVINO is not installed; {install('openvino')}"


class OpenVino(Engine):
    """Intel's runtime."""

    name = "openvino"
    kinds = ("cpu", "gpu", "npu")
    rank = 20
    options = OpenVinoOptions
    distributions = ("openvino",)
    needs_trial = True

    def preload(self) -> None:
        if installed_version() is not None:
            load_tbb()

    def processors(self, kind: str) -> Sequence[Processor]:
        if installed_version() is None:
            return [Processor("cpu", "", unusable=_MISSING)] if kind == "cpu" else []
        if kind == "cpu":  # known without loading the library, which takes a quarter of a second
            name, precisions = detect.processor_name(), _of_cores(detect.features())
            return [Processor("cpu", name, driver=self.version, precisions=precisions)]
        return [
            Processor(
                kind,
                p.name,
                p.uuid or p.pci or p.plugin,
                p.driver,
                precisions=p.precisions,
                facts={"memory": format_bytes(p.memory_bytes)} if p.memory_bytes else {},
            )
            for p in processors()
            if p.plugin.partition(".")[0].lower() == kind
        ]

    def describe(self, device: Device, options: OpenVinoOptions) -> EngineInfo:
        if installed_version() is None:
            raise DeviceError(f"device {device.name!r} cannot be used through OpenVINO: {_MISSING}")
        driver, memory_bytes = "", main_memory_bytes()
        if device.kind != "cpu":
            processor = _found(device)
            driver, memory_bytes = f", {processor.driver}", processor.memory_bytes
        version = f"{self.version}{driver}"
        return EngineInfo(
            self.name,
            version,
            memory_bytes=memory_bytes,
            precision=options.precision,
            pool="OpenVINO" if len(device.cores) > 1 else "",
        )

    def open(
        self, device: Device, info: EngineInfo, options: OpenVinoOptions, folder: Path | None
    ) -> OpenEngine:
        from coexec.engines.openvino.device import OpenVinoDevice

        core()  # raises an error with the cause if the library cannot be loaded
        plugin = "CPU" if device.kind == "cpu" else _found(device).plugin
        return OpenVinoDevice(device, info, options, folder, plugin)


_INSTRUCTIONS: Mapping[str, Precision] = {
    "AVX512BF16": "bf16",
    "AVX512FP16": "fp16",
    "ASIMDHP": "fp16",
}
"""By instruction set of CPU cores, the precision in which OpenVINO computes with it. A processor
with AMX has the first of them, too. Without AVX512-BF16, OpenVINO computes bf16 by other
instructions, which gains nothing."""


def _of_cores(features: Collection[str]) -> tuple[Precision, ...]:
    """Precisions of CPU cores with these instruction sets."""
    further = (precision for name, precision in _INSTRUCTIONS.items() if name in features)
    return (FLOAT32, *further)


def _found(device: Device) -> OpenVinoProcessor:
    """The processor that OpenVINO lists for a GPU or NPU."""
    for processor in processors():
        if device.identity and device.identity in (processor.uuid, processor.pci, processor.plugin):
            return processor
    raise DeviceError(
        f"device {device.name!r} cannot be used through OpenVINO: it finds no "
        f"{device.processor}; update its driver, or use another engine"
    )
