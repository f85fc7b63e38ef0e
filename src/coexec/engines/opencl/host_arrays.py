"""Arrays in host memory that kernels on CPU cores use directly, without a copy."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl

from coexec.arrays import Array, aligned
from coexec.engines.base import aligned_empty
from coexec.engines.opencl.device_queue import DeviceQueue
from coexec.errors import DeviceError
from coexec.graph.graph import Tensor


@dataclass(eq=False)
class HostArray:
    """An array, and the OpenCL buffer over its memory."""

    array: Array
    buffer: Any
    copied: bool = False
    """Whether the array is an aligned copy of a caller's array that is not aligned."""


class HostArrays:
    """Host memory, to which the programs of one open device bind tensors."""

    def __init__(self, queue: DeviceQueue, alignment: int) -> None:
        """``alignment``: bytes to which the arrays of kernels must be aligned.

        Raises:
            DeviceError: the driver does not compute in host memory.
        """
        self.queue = queue
        self._alignment = alignment
        self._require_one_memory()

    def bound(self, tensor: Array, before: HostArray | None) -> HostArray:
        """The array that kernels use for ``tensor``; ``before`` itself if it can be used again.

        An array that is not aligned, as callers' arrays may be, is copied: kernels only read it.
        """
        if before is not None and before.array is tensor:
            return before
        if tensor.__array_interface__["data"][0] % self._alignment == 0:
            return self.seen(tensor)
        if before is None or not before.copied or before.array.shape != tensor.shape:
            before = self.seen(aligned_empty(Tensor("", tensor.shape, tensor.dtype.name)))
            before.copied = True
        before.array[...] = tensor
        return before

    def recycle(self, tensors: Sequence[HostArray]) -> None:
        """Do nothing: host memory needs no unmapping before kernels write it."""

    def send(self, tensors: Sequence[HostArray]) -> Any:
        """Enqueue nothing: kernels write to the memory that the host reads."""
        return None

    def sent(self, tensors: Sequence[HostArray]) -> None:
        """Do nothing: there is no state to update."""

    def seen(self, array: Array) -> HostArray:
        """``array``, which must be contiguous, with a buffer for kernels and copies."""
        flags = cl.mem_flags.READ_WRITE if array.flags.writeable else cl.mem_flags.READ_ONLY
        flat = array if array.size else np.zeros(1, array.dtype)
        buffer = cl.Buffer(
            self.queue.context, flags | cl.mem_flags.USE_HOST_PTR, hostbuf=flat.reshape(-1)
        )
        return HostArray(array, buffer)

    def constant(self, array: Array) -> Any:
        """A buffer over the memory of ``array``, which it keeps alive."""
        return self.seen(aligned(array)).buffer

    def _require_one_memory(self) -> None:
        """Raise an error if the driver keeps a copy of host memory. OpenCL allows that, but drivers
        of CPU cores have no reason for it."""
        ones, twos = (aligned_empty(Tensor("", (64,), "float32")) for _ in range(2))
        ones[...], twos[...] = 1.0, 2.0
        source, target = self.seen(ones), self.seen(twos)
        ones[...] = 3.0
        cl.enqueue_copy(self.queue.commands, target.buffer, source.buffer)
        self.queue.finish()
        if not (twos == 3.0).all():
            raise DeviceError(
                f"{self.queue.name}: this OpenCL runtime does not compute in the host's memory; "
                f"let it use memory of its own: --engine opencl.memory=own"
            )
