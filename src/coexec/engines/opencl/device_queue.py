"""The command queue of an open device: launches, copies, and waiting until they are done."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from coexec.arrays import Array
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.opencl.binaries import Binaries
from coexec.engines.opencl.timing import Timer
from coexec.timing.trace import Detail

_POLL_S = 1e-3
"""Seconds between two checks whether a device has finished its commands."""


class DeviceQueue:
    """Context, command queue and compiled kernels of one open device."""

    def __init__(
        self,
        name: str,
        arch: Architecture,
        binaries: Binaries,
        context: Any,
        options: str,
        active: bool = False,
    ) -> None:
        """
        Args:
            options: options of the compiler.
            active: a waiting thread polls and does not sleep.
        """
        self.name = name
        self.arch = arch
        self.binaries = binaries
        self.context = context
        self.options = options
        self.commands = self._plain = cl.CommandQueue(context)
        """OpenCL queue for the next command."""
        self._timed: Any = None
        self.timer: Timer | None = None
        self._active = active
        self._lock = threading.RLock()
        """Locked while a command is enqueued, so that the command goes to the current queue."""

    def constant(self, array: Array, writable: bool = False) -> Any:
        """A buffer with the values of ``array``."""
        access = cl.mem_flags.READ_WRITE if writable else cl.mem_flags.READ_ONLY
        flags = access | cl.mem_flags.COPY_HOST_PTR
        filled = array if array.size else np.zeros(1, array.dtype)
        return cl.Buffer(self.context, flags, hostbuf=filled)

    def launch(self, kernel: Any, grid: Any, group: Any, name: str, result: str) -> Any:
        """Enqueue a kernel and return its event.

        Args:
            name: name of the kernel in a trace.
            result: name of the tensor that it computes, for the trace.
        """
        with self._lock:
            event = cl.enqueue_nd_range_kernel(self.commands, kernel, grid, group)
            if self.timer is not None:
                self.timer.keep(event, name, "kernel", result)
        return event

    def copy(self, target: Any, source: Any, result: str) -> Any:
        """Enqueue a copy between buffers, or a buffer and a mapped array; return its event."""
        with self._lock:
            event = cl.enqueue_copy(self.commands, target, source, is_blocking=False)
            if self.timer is not None:
                self.timer.keep(event, "copy", "copy", result)
        return event

    def finish(self) -> None:
        """Wait until all enqueued commands have ended. Raises an error if one failed."""
        if self._active:
            marker = cl.enqueue_marker(self.commands)
            self.commands.flush()
            self.wait(marker)
        self.commands.finish()

    def wait(self, event: Any) -> None:
        """Wait until a flushed command has ended. Raises an error if it failed."""
        while self._active and not self.ended(event):
            time.sleep(0)
        event.wait()

    def ended(self, event: Any) -> bool:
        """Whether a command is complete, or has failed."""
        status: int = event.command_execution_status
        return status <= cl.command_execution_status.COMPLETE

    def rests(self, end_s: float) -> bool:
        """Wait until all enqueued commands have ended, at most until ``end_s`` of `time.monotonic`.
        Returns whether they have."""
        with self._lock:
            marker = cl.enqueue_marker(self.commands)
            self.commands.flush()
        while not self.ended(marker):
            if time.monotonic() > end_s:
                return False
            time.sleep(_POLL_S)
        return True

    def start_timing(self) -> None:
        """Record the times of all further commands. They go to a second queue, as profiling takes
        some time."""
        if self._timed is None:
            properties = cl.command_queue_properties.PROFILING_ENABLE
            self._timed = cl.CommandQueue(self.context, properties=properties)
        self._change_to(self._timed)
        self.timer = Timer(self.name, self.commands)

    def stop_timing(self) -> Sequence[Detail]:
        """The recorded commands, in seconds of `time.perf_counter`. No command of this executor may
        be running."""
        timer, self.timer = self.timer, None
        self._change_to(self._plain)
        return [] if timer is None else timer.details()

    def _change_to(self, queue: Any) -> None:
        """Send the next commands to ``queue``; they start after those of the previous queue."""
        with self._lock:
            if queue is not self.commands:
                marker = cl.enqueue_marker(self.commands)
                self.commands.flush()
                cl.enqueue_barrier(queue, wait_for=[marker])
                self.commands = queue
