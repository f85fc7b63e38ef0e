"""Tensors on an OpenCL device, and the way there and back."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyopencl as cl

from coexec.engines.opencl.architecture import Architecture
from coexec.engines.opencl.binaries import Binaries
from coexec.engines.opencl.kernels.base import Value
from coexec.engines.opencl.kernels.reorder import reorder
from coexec.engines.opencl.timing import Timer
from coexec.engines.opencl.tuner import rounded, rule
from coexec.frontend.module import Array
from coexec.timing.trace import Detail

__all__ = ["DeviceTensor", "Runtime"]


@dataclass(eq=False)
class DeviceTensor:
    """A tensor in the device's memory and layout."""

    value: Value
    buffer: Any
    leaving: bool = False
    """The program that writes it sends it to the host in the same run."""
    sent: bool = False
    """The host's copy has been made since it was written."""
    staging: "_Staging | None" = None


@dataclass(eq=False)
class _Staging:
    """The tensor as numpy sees it, and the kernels that bring it there and back."""

    buffer: Any
    host: Any
    """An array over the buffer itself while it is mapped, where memory is unified; elsewhere over
    page-locked memory that is copied from and to."""
    up: "tuple[Any, Any, Any] | None"
    down: "tuple[Any, Any, Any] | None"


class Runtime:
    """Context, queue and waiting of one opened device."""

    def __init__(
        self, name: str, handle: Any, arch: Architecture, unified: bool, binaries: Binaries,
        context: Any, options: str, active: bool = False,
    ) -> None:  # fmt: skip
        self.name = name
        self.arch = arch
        self.unified = unified
        self.context = context
        self.binaries = binaries
        self.options = options
        self.queue = self._plain_queue = cl.CommandQueue(context)
        self._host_queue = cl.CommandQueue(context)
        """Of whoever reads what was sent: the other queue has kernels to run by then."""
        self._timed_queue: Any = None
        self.timer: Timer | None = None
        self._active = active

    def constant(self, array: Array, writable: bool = False) -> Any:
        """A buffer with the values of ``array``."""
        access = cl.mem_flags.READ_WRITE if writable else cl.mem_flags.READ_ONLY
        flags = access | cl.mem_flags.COPY_HOST_PTR
        filled = array if array.size else np.zeros(1, array.dtype)
        return cl.Buffer(self.context, flags, hostbuf=filled)

    def allocate(self, value: Value, leaving: bool = False) -> DeviceTensor:
        """Uninitialised memory for a tensor."""
        size = max(value.size_bytes, 1)
        return DeviceTensor(value, cl.Buffer(self.context, self._host_flags(), size), leaving)

    def upload(self, array: Array, tensor: DeviceTensor) -> None:
        """Copy ``array`` into ``tensor``. Returns once ``array`` has been read."""
        staging = self._staging(tensor)
        self.take_back(tensor)
        if array.size:
            self._map(staging, tensor.value, self.queue, writable=True)[...] = array
        if not self.unified:
            self._copy(staging.buffer, staging.host, tensor)
        self.take_back(tensor)
        self._reorder(staging.up, tensor)

    def download(self, tensor: DeviceTensor) -> Array:
        """The values of ``tensor``, valid until it is written or downloaded again."""
        if not tensor.sent:
            self.take_back(tensor)
            self.send(tensor)
            self.finish()
        values: Array = self._map(self._staging(tensor), tensor.value, self._host_queue)
        return values

    def send(self, tensor: DeviceTensor) -> None:
        """Enqueue what brings ``tensor`` to where the host can read it."""
        staging = self._staging(tensor)
        self._reorder(staging.down, tensor)
        if not self.unified:
            host = self._map(staging, tensor.value, self._host_queue)
            self._copy(host, staging.buffer, tensor)

    def take_back(self, tensor: DeviceTensor) -> None:
        """``tensor`` is going to be written: until it is mapped again, the host may not read it."""
        tensor.sent = False
        staging = tensor.staging
        if self.unified and staging is not None and staging.host is not None:
            staging.host.base.release(self.queue)
            staging.host = None

    def finish(self) -> None:
        """Wait for everything given to the device, and raise if something failed."""
        if self._active:
            event = cl.enqueue_marker(self.queue)
            self.queue.flush()
            while event.command_execution_status > cl.command_execution_status.COMPLETE:
                time.sleep(0)
        self.queue.finish()

    def call(self, kernel: Any, grid: Any, group: Any, name: str, result: str) -> None:
        """Enqueue a kernel."""
        event = cl.enqueue_nd_range_kernel(self.queue, kernel, grid, group)
        if self.timer is not None:
            self.timer.keep(event, name, "kernel", result)

    def _copy(self, target: Any, source: Any, tensor: DeviceTensor) -> None:
        event = cl.enqueue_copy(self.queue, target, source, is_blocking=False)
        if self.timer is not None:
            self.timer.keep(event, "copy", "copy", tensor.value.name)

    def _reorder(self, call: "tuple[Any, Any, Any] | None", tensor: DeviceTensor) -> None:
        if call is not None:
            self.call(*call, "reorder", tensor.value.name)

    def start_timing(self) -> None:
        """From now on events carry times: a queue of its own, as they cost a little."""
        if self._timed_queue is None:
            timed = cl.command_queue_properties.PROFILING_ENABLE
            self._timed_queue = cl.CommandQueue(self.context, properties=timed)
        self.queue = self._timed_queue
        self.timer = Timer(self.name, self.queue)

    def stop_timing(self) -> Sequence[Detail]:
        timer, self.timer, self.queue = self.timer, None, self._plain_queue
        return [] if timer is None else timer.details()

    def _host_flags(self) -> Any:
        flags = cl.mem_flags.READ_WRITE
        return flags | cl.mem_flags.ALLOC_HOST_PTR if self.unified else flags

    def _staging(self, tensor: DeviceTensor) -> _Staging:
        if tensor.staging is None:
            value = tensor.value
            plain = replace(value, block=0, half=False)
            same = plain.size_bytes == value.size_bytes and value.block in (0, 1) and not value.half
            buffer = tensor.buffer if same else self.allocate(plain).buffer
            up = None if same else self._reordering(plain, value, buffer, tensor.buffer)
            down = None if same else self._reordering(value, plain, tensor.buffer, buffer)
            tensor.staging = _Staging(buffer, None, up, down)
        return tensor.staging

    def _map(self, staging: _Staging, value: Value, queue: Any, writable: bool = False) -> Any:
        """The array through which the host sees a tensor."""
        if staging.host is None:
            buffer = staging.buffer
            if not self.unified:
                pinned = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
                size = max(replace(value, block=0, half=False).size_bytes, 1)
                buffer = cl.Buffer(self.context, pinned, size)
                writable = True
            # What is mapped only to be read, kernels may read meanwhile.
            access: Any = cl.map_flags.READ
            if writable:
                access |= cl.map_flags.WRITE
            staging.host, _ = cl.enqueue_map_buffer(
                queue, buffer, access, 0, value.shape, np.dtype(value.dtype)
            )
        return staging.host

    def _reordering(self, source: Value, target: Value, a: Any, b: Any) -> tuple[Any, Any, Any]:
        launch = reorder(source, target, self.arch)
        program = self.binaries.program(launch.source, self.options)
        kernel = cl.Kernel(program, launch.name)
        sizes = (np.int32(size) for size in launch.arguments if isinstance(size, int))
        kernel.set_args(a, np.int32(0), b, np.int32(0), *sizes)
        group = rule(launch, self.arch)
        return kernel, rounded(launch.grid, group), group
