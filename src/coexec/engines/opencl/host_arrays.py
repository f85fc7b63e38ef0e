"""Arrays in the host's memory on which the kernels of CPU cores compute as they lie."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyopencl as cl

from coexec.arrays import Array
from coexec.engines.base import aligned_empty
from coexec.engines.opencl.device_queue import DeviceQueue
from coexec.errors import DeviceError
from coexec.ir.graph import Tensor

__all__ = ["HostArray", "HostArrays"]


@dataclass(eq=False)
class HostArray:
    """An array and the buffer through which kernels see it."""

    array: Array
    buffer: Any
    copied: bool = False
    """The array is ours, for values of others that are not aligned."""


class HostArrays:
    """The host's memory, as programs of one open device bind tensors to it."""

    def __init__(self, queue: DeviceQueue, alignment: int) -> None:
        """``alignment``: in bytes, of what kernels read and write.

        Raises:
            DeviceError: the driver does not compute in the host's memory.
        """
        self.queue = queue
        self._alignment = alignment
        self._require_one_memory()

    def bound(self, tensor: Array, before: HostArray | None) -> HostArray:
        """What kernels take for ``tensor``; ``before`` again if it does as well.

        What is not aligned, as callers' arrays may be, is copied: it is only read.
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

    def take_back(self, tensors: Sequence[HostArray]) -> None:
        """Nobody has to be told that these are going to be written."""

    def send(self, tensors: Sequence[HostArray]) -> Any:
        """What was written is where the host reads it: nothing is enqueued."""
        return None

    def sent(self, tensors: Sequence[HostArray]) -> None:
        """There is nothing to note."""

    def seen(self, array: Array) -> HostArray:
        """An array that is contiguous, as kernels and copies see it."""
        flags = cl.mem_flags.READ_WRITE if array.flags.writeable else cl.mem_flags.READ_ONLY
        flat = array if array.size else np.zeros(1, array.dtype)
        buffer = cl.Buffer(
            self.queue.context, flags | cl.mem_flags.USE_HOST_PTR, hostbuf=flat.reshape(-1)
        )
        return HostArray(array, buffer)

    def _require_one_memory(self) -> None:
        """OpenCL lets a driver keep a copy of the host's memory; those of CPU cores have no reason
        to."""
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
