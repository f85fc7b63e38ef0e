"""OpenCL on one GPU."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from coexec.arrays import Array
from coexec.engines.base import AfterFork, OpenEngine
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import Chooser, Context, Grid, KernelLaunch
from coexec.engines.kernels.building import build
from coexec.engines.kernels.operators import why_not
from coexec.engines.kernels.tuner import rule
from coexec.engines.opencl.binaries import OPTIONS, Binaries
from coexec.engines.opencl.device_queue import DeviceQueue
from coexec.engines.opencl.failures import translated
from coexec.engines.opencl.measuring import Measuring
from coexec.engines.opencl.options import Options
from coexec.engines.opencl.platforms import DeviceHandle, is_forked
from coexec.engines.opencl.program import OpenClProgram
from coexec.engines.opencl.tensors import DeviceMemory, DeviceTensor
from coexec.engines.tuning_cache import Choices
from coexec.errors import DeviceError, ExecutionError, first_line
from coexec.graph.graph import Operator, Tensor
from coexec.graph.region import Region
from coexec.hardware.hardware import Device, EngineInfo
from coexec.lowering.layout import PLAIN, Layout
from coexec.lowering.module import Module
from coexec.timing.trace import Detail


class OpenClDevice(OpenEngine):
    """A GPU with tensors in its own memory, in the layout of the kernels generated for it."""

    after_fork: AfterFork = "lost"

    def __init__(
        self,
        device: Device,
        info: EngineInfo,
        gpu: DeviceHandle,
        options: Options,
        folder: Path | None = None,
        arch: Architecture | None = None,
    ) -> None:
        """``arch``: generate kernels for this architecture in place of the GPU's own (tests)."""
        super().__init__(device, info)
        self.arch = arch or gpu.architecture(options.precision == "fp16", options.storage)
        with translated(device.name, f"opening {gpu.name}"):
            context = gpu.context()
            self.binaries = Binaries(gpu, context, folder)
            waits_actively = options.waiting == "active"
            self._queue = DeviceQueue(
                device.name, self.arch, self.binaries, context, OPTIONS, waits_actively
            )
            self._memory = DeviceMemory(self._queue, gpu.unified)
        self._tuning = options.tuning
        self._measuring: Measuring | None = None
        if options.tuning == "exhaustive":
            choices = Choices(f"{gpu.name} {gpu.driver} {self.arch}", folder)
            self._measuring = Measuring(self._queue, choices)

    @property
    def _chooser(self) -> Chooser | None:
        return None if self._measuring is None else self._measuring.variant

    def _group_of(self, launch: KernelLaunch) -> Grid | None:
        if launch.group or self._tuning == "none":
            return launch.group
        if self._measuring is not None:
            return self._measuring.group(launch)
        return rule(launch, self.arch)

    def why_not_operator(self, op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
        return why_not(op, tensors, self.arch)

    def compile(self, module: Module) -> OpenClProgram:
        try:
            built = build(module, self.arch, self._chooser)
        except (ValueError, KeyError) as error:
            names = ", ".join(t.name for t in module.outputs)
            raise DeviceError(
                f"{self.device.name} cannot compile what makes {names}: "
                f"{first_line(error)}; run that part elsewhere with another "
                f"plan"
            ) from error
        return OpenClProgram(built, self._memory, self._group_of)

    def allocate(self, tensor: Tensor, leaving: bool = False) -> DeviceTensor:
        value = Context(self.arch, {tensor.name: tensor}, {}).value(tensor.name)
        with translated(self.device.name, f"taking {value.size_bytes} bytes for {tensor.name!r}"):
            return self._memory.allocate(value, leaving)

    def upload(self, array: Array, into: DeviceTensor | None = None) -> DeviceTensor:
        target = into or self.allocate(Tensor("", array.shape, array.dtype.name))
        with translated(self.device.name, f"receiving {array.nbytes} bytes", ExecutionError):
            self._memory.upload(array, target)
        return target

    def fill(
        self, into: DeviceTensor, boxes: Sequence[tuple[Array, Region]], layout: Layout = PLAIN
    ) -> None:
        with translated(self.device.name, f"receiving {into.value.name!r}", ExecutionError):
            self._memory.fill(into, boxes)

    def download(self, tensor: DeviceTensor) -> Array:
        with translated(self.device.name, f"sending {tensor.value.name!r}", ExecutionError):
            return self._memory.download(tensor)

    def rests(self, end_s: float) -> bool:
        with translated(self.device.name, "coming to rest"):
            return self._queue.rests(end_s)

    def start_timing(self) -> None:
        self._queue.start_timing()

    def stop_timing(self) -> Sequence[Detail]:
        return self._queue.stop_timing()

    def close(self) -> None:
        if not is_forked():
            self._queue.finish()
