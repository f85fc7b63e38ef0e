"""ONNX Runtime with its profiler on: times of each operator, measured by ONNX Runtime itself.

A session is profiled from its creation until its profile is read, which is possible only once. So
these programs are separate from those of ordinary runs, and one run of them is reported. The
profiler adds some microseconds to each operator (7 for pnasnet_mobile on one core). It reports
whole microseconds.
"""

import json
import shutil
import tempfile
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import onnxruntime as ort

from coexec.engines.onnxruntime.device import CpuCluster, OrtProgram
from coexec.hardware.hardware import Device, EngineInfo
from coexec.lowering.module import Module
from coexec.timing.trace import Detail

__all__ = ["ProfiledCluster"]

_KERNEL = "_kernel_time"
"""End of the names of the events that are operators."""


class ProfiledCluster(CpuCluster):
    """A `coexec.engines.base.Timed` engine. It reports the first run after `start_timing`."""

    def __init__(self, device: Device, info: EngineInfo) -> None:
        super().__init__(device, info)
        self._folder = tempfile.mkdtemp(prefix="coexec-")
        weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        self._programs: list[tuple[OrtProgram, Module]] = []
        self._from_s = 0.0

    def options(self) -> ort.SessionOptions:
        options = super().options()
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(self._folder) / str(len(self._programs)))
        return options

    def compile(self, module: Module) -> OrtProgram:
        program = super().compile(module)
        self._programs.append((program, module))
        return program

    def start_timing(self) -> None:
        self._from_s = time.perf_counter()

    def stop_timing(self) -> Sequence[Detail]:
        # The profiler's start time is a time of the system's clock, not of the monotonic one.
        offset_s = time.perf_counter() - time.time()
        programs, self._programs = self._programs, []
        return [
            detail
            for program, module in programs
            for detail in self._details(*program.end_profiling(), module, offset_s)
            if detail.start_s >= self._from_s
        ]

    def _details(
        self, path: str, origin_s: float, module: Module, offset_s: float
    ) -> Iterator[Detail]:
        for event in json.loads(Path(path).read_text(errors="replace")):
            if event.get("cat") == "Node" and event["name"].endswith(_KERNEL):
                start_s = origin_s + offset_s + 1e-6 * event["ts"]
                yield self._detail(event, start_s, module)

    def _detail(self, event: dict[str, Any], start_s: float, module: Module) -> Detail:
        """The detail of one event. Programs are not optimised further, so the index of an operator
        is its index in the module."""
        index, name, result = int(event["args"]["node_index"]), event["args"]["op_name"], ""
        rows = [*zip(module.operators, module.results, strict=False)][index : index + 1]
        if rows and rows[0][0].rpartition(".")[2] == name:
            name, result = rows[0]
        end_s = start_s + 1e-6 * event["dur"]
        return Detail(name, self.device.name, "kernel", start_s, start_s, start_s, end_s, result)
