"""CUDA on one GPU."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from coexec.arrays import Array
from coexec.engines.base import AfterFork, OpenEngine
from coexec.engines.cuda.branches import Order, faster_order
from coexec.engines.cuda.compilers import Images
from coexec.engines.cuda.driver import CudaContext, CudaError, Gpu, refuse_forked
from coexec.engines.cuda.failures import translated
from coexec.engines.cuda.kernels import LoadedKernels
from coexec.engines.cuda.options import CudaOptions
from coexec.engines.cuda.program import CudaProgram, resident
from coexec.engines.cuda.tensors import GpuMemory, GpuTensor
from coexec.engines.cuda.timing import GraphTimer
from coexec.engines.kernels.architecture import Architecture, MatrixUnit
from coexec.engines.kernels.base import Context
from coexec.engines.kernels.building import Build, build
from coexec.engines.kernels.dependencies import Dependencies
from coexec.engines.kernels.operators import why_not
from coexec.engines.tuning_cache import Choices
from coexec.errors import DeviceError, ExecutionError, first_line
from coexec.graph.graph import Operator, Tensor
from coexec.graph.region import Region
from coexec.hardware.hardware import Device, EngineInfo
from coexec.lowering.layout import PLAIN, Layout
from coexec.lowering.module import Module
from coexec.timing.trace import Detail

_POLL_S = 1e-3
"""Seconds between two checks whether the GPU has finished its work."""


class CudaDevice(OpenEngine):
    """A GPU with tensors in its own memory, in the layout of its kernels."""

    after_fork: AfterFork = "lost"
    launches_ahead = True

    def __init__(
        self, device: Device, info: EngineInfo, gpu: Gpu, options: CudaOptions, folder: Path | None
    ) -> None:
        refuse_forked()
        super().__init__(device, info)
        with translated(device.name, f"opening {device.processor}"):
            self.arch = architecture(
                gpu, "" if options.precision == "float32" else options.precision
            )
            self._context = CudaContext(gpu, sleeps=options.waiting == "passive")
            self.awaits_words = self._context.has_words
        self.thread_context = self._context
        # Only the prelude for NVRTC has the functions of matrix units.
        compiler = "nvrtc" if self.arch.unit else options.compiler
        self.images = Images(self._context, compiler, folder)
        kernels = LoadedKernels(self._context, self.images, self.arch)
        self._memory = GpuMemory(self._context, self.arch, kernels)
        self._branches = options.branches
        self._reasons: dict[str, str] = {}
        """By names of outputs of a program, the order of its launches and why."""
        self._choices = Choices(f"{gpu.name} {gpu.version} {self.images.compiler}", folder)

    def why_not_operator(self, op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
        return why_not(op, tensors, self.arch)

    def compile(self, module: Module) -> CudaProgram:
        names = ", ".join(t.name for t in module.outputs)
        try:
            built = build(module, self.arch)
        except (ValueError, KeyError) as error:
            raise DeviceError(
                f"{self.device.name} cannot compile what makes {names}: {first_line(error)}; run "
                f"that part elsewhere with another plan"
            ) from error
        with translated(self.device.name, f"compiling what makes {names}"):
            built = resident(built, self._memory)
            order, reason = self._order(built)
            program = CudaProgram(self.device.name, built, self._memory, order)
            if reason:
                self._reasons[names] = f"{self.device.name} runs the branches of {names} {reason}."
                self.decisions = tuple(self._reasons.values())
            ends = {t.name: t for t in (*module.inputs, *module.outputs)}
            context = Context(self.arch, ends, {})
            program.ends = self._memory.prepare([context.value(name) for name in ends])
            return program

    def _order(self, built: Build) -> Order:
        if self._branches == "none":
            return Order(Dependencies.chain(len(built.launches)), "one after the other, by option")
        if self._branches == "all":
            return Order(Dependencies.of(built), "side by side, by option")
        return faster_order(self.device.name, built, self._memory, self._choices)

    def allocate(self, tensor: Tensor, leaving: bool = False) -> GpuTensor:
        value = Context(self.arch, {tensor.name: tensor}, {}).value(tensor.name)
        with translated(self.device.name, f"taking {value.size_bytes} bytes for {tensor.name!r}"):
            return self._memory.allocate(value, leaving)

    def upload(self, array: Array, into: GpuTensor | None = None) -> GpuTensor:
        target = into or self.allocate(Tensor("", array.shape, array.dtype.name))
        self.fill(target, [(array, Region.whole(array.shape))] if array.size else [])
        return target

    def fill(
        self, into: GpuTensor, boxes: Sequence[tuple[Array, Region]], layout: Layout = PLAIN
    ) -> None:
        with translated(self.device.name, f"receiving {into.value.name!r}", ExecutionError):
            self._memory.fill(into, boxes)

    def download(self, tensor: GpuTensor) -> Array:
        with translated(self.device.name, f"sending {tensor.value.name!r}", ExecutionError):
            return self._memory.download(tensor)

    def host_array(self, tensor: GpuTensor) -> Array:
        with translated(self.device.name, f"taking page-locked memory for {tensor.value.name!r}"):
            return self._memory.array(tensor)

    def rests(self, end_s: float) -> bool:
        with translated(self.device.name, "coming to rest"):
            mark = self._context.mark()
            while not mark.ended:
                if time.monotonic() > end_s:
                    return False
                time.sleep(_POLL_S)
            return True

    def start_timing(self) -> None:
        with translated(self.device.name, "starting its clock"):
            self._memory.timer = GraphTimer(self.device.name, self._context)

    def stop_timing(self) -> Sequence[Detail]:
        timer, self._memory.timer = self._memory.timer, None
        with translated(self.device.name, "reading its clock"):
            return [] if timer is None else timer.details()

    def close(self) -> None:
        if not self._context.is_forked:
            with suppress(CudaError):  # of a GPU that has failed: all its work has ended
                self._context.finish()


def architecture(gpu: Gpu, unit: MatrixUnit = "") -> Architecture:
    """The GPU as a target for kernels: the one that OpenCL would describe, and the matrix units
    that products may use."""
    return Architecture(
        "nvidia",
        4,
        compute_units=gpu.compute_units,
        max_group=gpu.max_group,
        local_bytes=gpu.local_bytes,
        model=gpu.name,
        half=unit == "fp16",
        unit=unit,
    )
