"""OpenCL on one device: a GPU, or CPU cores."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from coexec.arrays import Array
from coexec.engines.base import AfterFork, BoxCopy, OpenEngine
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import Chooser, Context, Grid, KernelLaunch
from coexec.engines.kernels.border import blocks_dialect
from coexec.engines.kernels.building import build
from coexec.engines.kernels.operators import why_not
from coexec.engines.kernels.tuner import rule
from coexec.engines.opencl.binaries import OPTIONS, Binaries
from coexec.engines.opencl.copying import ArrayCopies, rectangles
from coexec.engines.opencl.cpu_runtime import CoreBinding
from coexec.engines.opencl.device_queue import DeviceQueue
from coexec.engines.opencl.failures import translated
from coexec.engines.opencl.forked import in_forked_child, keep_in_children
from coexec.engines.opencl.host_arrays import HostArrays
from coexec.engines.opencl.measuring import Measuring
from coexec.engines.opencl.options import Options
from coexec.engines.opencl.platforms import DeviceHandle
from coexec.engines.opencl.program import OpenClProgram
from coexec.engines.opencl.tensors import DeviceMemory, DeviceTensor
from coexec.engines.tuning_cache import Choices
from coexec.errors import DeviceError, ExecutionError, first_line
from coexec.graph.graph import Operator, Tensor
from coexec.graph.region import Region
from coexec.hardware.hardware import Device, EngineInfo
from coexec.lowering.dialect import Dialect
from coexec.lowering.layout import PLAIN, Layout
from coexec.lowering.module import Module
from coexec.timing.trace import Detail


class _Kernels(OpenEngine):
    """A processor with kernels that are generated for it, for any memory of its tensors."""

    after_fork: AfterFork = "lost"
    _memory: DeviceMemory | HostArrays

    def __init__(
        self,
        device: Device,
        info: EngineInfo,
        handle: DeviceHandle,
        options: Options,
        folder: Path | None = None,
        arch: Architecture | None = None,
    ) -> None:
        """``arch``: generate kernels for this architecture in place of the processor's own
        (tests)."""
        super().__init__(device, info)
        with translated(device.name, f"opening {handle.name}"):
            handle, binding = handle.on(device.cores)
            context = handle.context()
        self._binding: CoreBinding | None = binding
        self.thread_cores = binding.thread_cores
        self.launches_ahead = binding.by_itself
        self.arch = arch or handle.architecture(
            options.precision == "fp16", options.storage, options.block
        )
        self.binaries = Binaries(handle, context, folder)
        waits_actively = options.waiting == "active"
        self._queue = DeviceQueue(
            device.name, self.arch, self.binaries, context, OPTIONS, waits_actively
        )
        keep_in_children(self)
        self._unified = handle.unified
        self._tuning = options.tuning
        self._measuring: Measuring | None = None
        if options.tuning == "exhaustive":
            choices = Choices(f"{handle.name} {handle.driver} {self.arch}", folder)
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
            on_arrays = isinstance(self._memory, HostArrays)
            built = build(module, self.arch, self._chooser, on_arrays)
        except (ValueError, KeyError) as error:
            names = ", ".join(t.name for t in module.outputs)
            raise DeviceError(
                f"{self.device.name} cannot compile what makes {names}: "
                f"{first_line(error)}; run that part elsewhere with another "
                f"plan"
            ) from error
        return OpenClProgram(built, self._memory, self._group_of)

    def rests(self, end_s: float) -> bool:
        with translated(self.device.name, "coming to rest"):
            return self._queue.rests(end_s)

    def start_timing(self) -> None:
        self._queue.start_timing()

    def stop_timing(self) -> Sequence[Detail]:
        return self._queue.stop_timing()

    def close(self) -> None:
        if in_forked_child():
            return
        self._queue.finish()
        self._binding = None  # its cores are free for another device


class OpenClDevice(_Kernels):
    """A GPU, or CPU cores, with tensors in its own memory, in the layout of its kernels."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._memory: DeviceMemory = DeviceMemory(self._queue, self._unified)

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


class OpenClCores(_Kernels):
    """CPU cores that compute on the host's arrays.

    Feature maps enter and leave programs in blocks of channels if the other side uses these blocks,
    too.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.alignment = self.arch.block * np.dtype(np.float32).itemsize  # kernels write vectors
        with translated(self.device.name, "trying whether it computes in the host's memory"):
            self._memory: HostArrays = HostArrays(self._queue, self.alignment)

    def copier(self, copies: Sequence[BoxCopy]) -> Callable[[], None] | None:
        rects_by_copy = [(copy, rectangles(copy)) for copy in copies if copy.part.size]
        if any(rects is None for _, rects in rects_by_copy):
            return None
        pairs = [(copy, rectangle) for copy, rects in rects_by_copy for rectangle in rects or ()]
        with translated(self.device.name, "seeing the host's arrays"):
            return ArrayCopies(self._memory, pairs)

    @cached_property
    def dialect(self) -> Dialect:
        return blocks_dialect(self.arch)
