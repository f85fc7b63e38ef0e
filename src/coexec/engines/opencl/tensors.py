"""Tensors in the memory of an OpenCL device, and their transfer from and to the host."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl

from coexec.arrays import Array
from coexec.engines.kernels.base import Value
from coexec.engines.kernels.reorder import reorder
from coexec.engines.kernels.tuner import rounded, rule
from coexec.engines.opencl.binaries import kernel_of
from coexec.engines.opencl.device_queue import DeviceQueue
from coexec.graph.region import Region


@dataclass(eq=False)
class DeviceTensor:
    """A tensor in the device's memory and layout."""

    value: Value
    buffer: Any
    leaving: bool = False
    """Whether the program that writes it sends it to the host in the same run."""
    sent: bool = False
    """Whether it was sent to the host after it was written."""
    staging: "_Staging | None" = None


@dataclass(eq=False)
class _Staging:
    """The tensor in the layout of numpy, and the kernels that convert from and to this layout."""

    buffer: Any
    host: Any
    """Array for the host. With unified memory it is the mapped buffer itself. Else it is
    page-locked memory, which is copied to and from the buffer."""
    up: "tuple[Any, Any, Any] | None"
    down: "tuple[Any, Any, Any] | None"


class DeviceMemory:
    """The tensors of one open device, in its memory and its layouts."""

    def __init__(self, queue: DeviceQueue, unified: bool) -> None:
        """``unified``: the device computes in the host's memory."""
        self.queue = queue
        self._unified = unified
        self._host_queue = cl.CommandQueue(queue.context)
        """Queue that maps sent tensors: the other queue may have further kernels to run by then."""

    def allocate(self, value: Value, leaving: bool = False) -> DeviceTensor:
        """Uninitialised memory for a tensor."""
        size = max(value.size_bytes, 1)
        return DeviceTensor(value, cl.Buffer(self.queue.context, self._host_flags(), size), leaving)

    def upload(self, array: Array, tensor: DeviceTensor) -> None:
        """Copy ``array`` into ``tensor``. Returns once ``array`` has been read."""
        self.fill(tensor, [(array, Region.whole(array.shape))] if array.size else [])

    def fill(self, tensor: DeviceTensor, boxes: Sequence[tuple[Array, Region]]) -> None:
        """Copy arrays into boxes that together cover ``tensor``. Returns once the arrays have been
        read."""
        staging = self._staging(tensor)
        self.recycle([tensor])
        for array, region in boxes:
            host = self._map(staging, tensor.value, self.queue.commands, writable=True)
            host[region.slices] = array
        if not self._unified:
            self.queue.copy(staging.buffer, staging.host, tensor.value.name)
        self.recycle([tensor])
        self._reorder(staging.up, tensor)

    def download(self, tensor: DeviceTensor) -> Array:
        """The values of ``tensor``, valid until it is written or downloaded again."""
        if not tensor.sent:
            self.recycle([tensor])
            self._send(tensor)
            self.queue.finish()
        values: Array = self._map(self._staging(tensor), tensor.value, self._host_queue)
        return values

    def constant(self, array: Array) -> Any:
        """A buffer with a copy of ``array``."""
        return self.queue.constant(array)

    def send(self, tensors: Sequence[DeviceTensor]) -> Any:
        """Enqueue the transfer of those of ``tensors`` that leave to memory that the host can read.

        Returns:
            The last event; None if nothing had to be enqueued.
        """
        events = [self._send(tensor) for tensor in tensors if tensor.leaving]
        return next((event for event in reversed(events) if event is not None), None)

    def sent(self, tensors: Sequence[DeviceTensor]) -> None:
        """Note that the commands that `send` has enqueued for ``tensors`` have ended."""
        for tensor in tensors:
            tensor.sent = tensor.leaving

    def _send(self, tensor: DeviceTensor) -> Any:
        """Enqueue the transfer of a tensor. Returns the last event; None if nothing had to be
        enqueued."""
        staging = self._staging(tensor)
        event = self._reorder(staging.down, tensor)
        if not self._unified:
            host = self._map(staging, tensor.value, self._host_queue)
            event = self.queue.copy(host, staging.buffer, tensor.value.name)
        return event

    def recycle(self, tensors: Sequence[DeviceTensor]) -> None:
        """Unmap ``tensors``, which will be written. The host must not read them until they are
        mapped again."""
        for tensor in tensors:
            tensor.sent = False
            staging = tensor.staging
            if self._unified and staging is not None and staging.host is not None:
                staging.host.base.release(self.queue.commands)
                staging.host = None

    def _reorder(self, launch: "tuple[Any, Any, Any] | None", tensor: DeviceTensor) -> Any:
        """Enqueue a change of layout. Returns its event; None if the layout stays."""
        if launch is None:
            return None
        return self.queue.launch(*launch, "reorder", tensor.value.name)

    def _host_flags(self) -> Any:
        flags = cl.mem_flags.READ_WRITE
        return flags | cl.mem_flags.ALLOC_HOST_PTR if self._unified else flags

    def _staging(self, tensor: DeviceTensor) -> _Staging:
        if tensor.staging is None:
            value = tensor.value
            plain = value.on_host
            same = plain.size_bytes == value.size_bytes and value.block in (0, 1)
            same = same and value.half == plain.half
            buffer = tensor.buffer if same else self.allocate(plain).buffer
            up = None if same else self._reordering(plain, value, buffer, tensor.buffer)
            down = None if same else self._reordering(value, plain, tensor.buffer, buffer)
            tensor.staging = _Staging(buffer, None, up, down)
        return tensor.staging

    def _map(self, staging: _Staging, value: Value, queue: Any, writable: bool = False) -> Any:
        """The host's array of a tensor; maps the buffer if it is not mapped."""
        if staging.host is None:
            buffer = staging.buffer
            if not self._unified:
                pinned = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
                size = max(value.on_host.size_bytes, 1)
                buffer = cl.Buffer(self.queue.context, pinned, size)
                writable = True
            # Kernels may read a buffer while it is mapped for reading only.
            access: Any = cl.map_flags.READ
            if writable:
                access |= cl.map_flags.WRITE
            staging.host, _ = cl.enqueue_map_buffer(
                queue, buffer, access, 0, value.shape, np.dtype(value.host_dtype)
            )
        return staging.host

    def _reordering(self, source: Value, target: Value, a: Any, b: Any) -> tuple[Any, Any, Any]:
        launch = reorder(source, target, self.queue.arch)
        program = self.queue.binaries.program(launch.source, self.queue.options)
        kernel = kernel_of(program, launch.name)
        sizes = (np.int32(size) for size in launch.arguments if isinstance(size, int))
        kernel.set_args(a, np.int32(0), b, np.int32(0), *sizes)
        group = rule(launch, self.queue.arch)
        return kernel, rounded(launch.grid, group), group
