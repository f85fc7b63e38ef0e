"""ONNX Runtime as an engine: CPU cores, every operator."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from coexec.engines import detect
from coexec.engines.base import Engine, OpenEngine, Processor
from coexec.engines.runtimes import onnx_runtimes
from coexec.errors import WITHOUT_ONNX_RUNTIME, DeviceError
from coexec.extras import has_onnx_runtime
from coexec.hardware.hardware import Device, EngineInfo
from coexec.keys import digest

_LOWERING = "lowered in form 4"
"""Version of the lowering. It is increased when ONNX Runtime gets other models than before, so that
stored lowered models and profiles are no longer used."""


class OnnxRuntime(Engine):
    """The engine that every machine has and that runs the most models."""

    name = "onnxruntime"
    rank = 0
    needs_trial = False

    @property
    def installed(self) -> str:
        # One of several packages that bring the same module: onnxruntime, onnxruntime-gpu.
        return ", ".join(f"{name} {version}" for name, version in onnx_runtimes().items())

    def processors(self, kind: str) -> Sequence[Processor]:
        absent = None if has_onnx_runtime() else WITHOUT_ONNX_RUNTIME
        return [Processor(kind, detect.processor_name(), unusable=absent)]

    @cached_property
    def version(self) -> str:
        if not has_onnx_runtime():
            raise DeviceError(WITHOUT_ONNX_RUNTIME)
        import onnxruntime

        # Builds with equal versions may have different kernels.
        build = digest(onnxruntime.get_build_info(), digits=8)
        return f"{onnxruntime.__version__}, build {build}, {_LOWERING}"

    def open(
        self, device: Device, info: EngineInfo, options: Any, folder: Path | None
    ) -> OpenEngine:
        from coexec.engines.onnxruntime.device import CpuCluster

        return CpuCluster(device, info)
