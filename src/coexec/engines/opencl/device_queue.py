"""The command queue of an open device: launches, copies, and waiting until they are done."""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from coexec.arrays import Array
from coexec.engines.opencl.architecture import Architecture
from coexec.engines.opencl.binaries import Binaries
from coexec.engines.opencl.timing import Timer
from coexec.timing.trace import Detail

__all__ = ["DeviceQueue"]

_POLL_S = 1e-3
"""Between two looks at a device that has to come to rest."""


class DeviceQueue:
    """Context, command queue and compiled kernels of one open device."""

    def __init__(
        self, name: str, arch: Architecture, binaries: Binaries, context: Any, options: str,
        active: bool = False,
    ) -> None:  # fmt: skip
        """
        Args:
            options: of the compiler.
            active: a thread that waits looks again and again, and does not sleep.
        """
        self.name = name
        self.arch = arch
        self.binaries = binaries
        self.context = context
        self.options = options
        self.commands = self._plain = cl.CommandQueue(context)
        """OpenCL's queue, where the next command goes."""
        self._timed: Any = None
        self.timer: Timer | None = None
        self._active = active
        self._lock = threading.RLock()
        """Held while a command is enqueued, so that it goes to the queue of the moment."""

    def constant(self, array: Array, writable: bool = False) -> Any:
        """A buffer with the values of ``array``."""
        access = cl.mem_flags.READ_WRITE if writable else cl.mem_flags.READ_ONLY
        flags = access | cl.mem_flags.COPY_HOST_PTR
        filled = array if array.size else np.zeros(1, array.dtype)
        return cl.Buffer(self.context, flags, hostbuf=filled)

    def launch(self, kernel: Any, grid: Any, group: Any, name: str, result: str) -> Any:
        """Enqueue a kernel; its event. A trace calls it ``name``, and what it works on
        ``result``."""
        with self._lock:
            event = cl.enqueue_nd_range_kernel(self.commands, kernel, grid, group)
            if self.timer is not None:
                self.timer.keep(event, name, "kernel", result)
        return event

    def copy(self, target: Any, source: Any, result: str) -> Any:
        """Enqueue a copy between buffers, or between a buffer and a mapped array; its event."""
        with self._lock:
            event = cl.enqueue_copy(self.commands, target, source, is_blocking=False)
            if self.timer is not None:
                self.timer.keep(event, "copy", "copy", result)
        return event

    def copy_box(self, target: Any, source: Any, where: Mapping[str, Any]) -> Any:
        """Enqueue a copy between boxes of two buffers; its event.

        Args:
            where: the words of `pyopencl.enqueue_copy` for such boxes.
        """
        with self._lock:
            return cl.enqueue_copy(self.commands, target, source, **where)

    def finish(self) -> None:
        """Wait for everything given to the device, and raise if something failed."""
        if self._active:
            marker = cl.enqueue_marker(self.commands)
            self.commands.flush()
            self.wait(marker)
        self.commands.finish()

    def wait(self, event: Any) -> None:
        """Wait for a command that was sent to the device, and raise if it failed."""
        while self._active and not self.ended(event):
            time.sleep(0)
        event.wait()

    def ended(self, event: Any) -> bool:
        """Whether a command is complete, or has failed."""
        status: int = event.command_execution_status
        return status <= cl.command_execution_status.COMPLETE

    def rests(self, end_s: float) -> bool:
        """Wait for everything given to the device, at most until ``end_s`` of `time.monotonic`;
        whether it has ended."""
        with self._lock:
            marker = cl.enqueue_marker(self.commands)
            self.commands.flush()
        while not self.ended(marker):
            if time.monotonic() > end_s:
                return False
            time.sleep(_POLL_S)
        return True

    def start_timing(self) -> None:
        """From now on events carry times: a queue of its own, as they cost a little."""
        if self._timed is None:
            properties = cl.command_queue_properties.PROFILING_ENABLE
            self._timed = cl.CommandQueue(self.context, properties=properties)
        self._change_to(self._timed)
        self.timer = Timer(self.name, self.commands)

    def stop_timing(self) -> Sequence[Detail]:
        """What was kept, in seconds of `time.perf_counter`. Of this executor nothing is running."""
        timer, self.timer = self.timer, None
        self._change_to(self._plain)
        return [] if timer is None else timer.details()

    def _change_to(self, queue: Any) -> None:
        """Let the next commands go to ``queue``, behind those of the queue before."""
        with self._lock:
            if queue is not self.commands:
                marker = cl.enqueue_marker(self.commands)
                self.commands.flush()
                cl.enqueue_barrier(queue, wait_for=[marker])
                self.commands = queue
