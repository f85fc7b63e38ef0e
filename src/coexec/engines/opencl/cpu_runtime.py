"""The threads of an OpenCL runtime for CPU cores, and the cores on which a device computes.

OpenCL has no call that selects the cores of a CPU device. Each runtime fixes the number of its
threads when it starts, and these threads serve all its devices in the process. `CpuRuntime` is the
behaviour that any runtime has; `pocl` and `intel` add what is specific to these two.

Unbound threads lose more than a few cache lines: after an idle time Linux wakes the second thread
on the core of the first one, and both share that core for milliseconds. If each thread is bound to
its core, two threads are as fast after 80 ms of idle time as in a loop.

The thread that launches kernels holds Python's interpreter lock meanwhile. If a worker is woken on
its core and preempts it, all other Python threads are blocked until the kernel has ended. So `bind`
also prevents workers from preempting other threads.
"""

import gc
import math
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any
from weakref import WeakSet

from coexec.engines import detect
from coexec.engines.names import whole_cpu
from coexec.errors import DeviceError


@dataclass(frozen=True, eq=False)
class CoreBinding:
    """The cores on which an open device computes. They are reserved as long as this object
    exists."""

    handle: Any
    """OpenCL handle of the device, or of the sub-device, that computes on these cores."""
    cores: tuple[int, ...]
    thread_cores: Collection[int]
    """Cores for the thread that launches kernels and waits for them."""
    by_itself: bool = False
    """Whether kernels run while no thread waits for them. In some runtimes the waiting thread
    computes."""


class CpuRuntime:
    """Any CPU runtime: its threads compute on all cores and cannot be bound."""

    remedy = "update or reinstall the driver"
    """Advice to the user if the device fails its trial."""
    binds = False
    """Whether its threads can be bound to chosen cores."""
    most_binaries = math.inf
    """A process that requests more kernel binaries than this launches its kernels slowly."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._lock = threading.Lock()
        self._bindings: WeakSet[CoreBinding] = WeakSet()

    def variables(self, threads: int) -> Mapping[str, str]:
        """Environment variables to set while this process uses OpenCL for the first time."""
        return {}

    def loaded(self, started: Sequence[int]) -> None:
        """Note that OpenCL was loaded with `variables`. ``started``: ids of the threads that this
        started."""

    def want(self, cores: Sequence[int]) -> None:
        """Set the cores for each of which `start` starts a thread."""

    def start(self, handle: Any) -> None:
        """Start the threads that the first context creates, unless they have been started."""

    def prepare(self, handle: Any) -> str | None:
        """Prepare a device for its first use. Returns the CPU name that was set for its compiler;
        None if none was set."""
        return None

    def check_room(self) -> None:
        """Check that the runtime can write the files that it needs while it compiles.

        Raises:
            DeviceError: it cannot.
        """

    def pool(self, cores: Sequence[int]) -> str:
        """`EngineInfo.pool` of a device with these cores."""
        return ""

    def occupy(self, handle: Any, cores: tuple[int, ...]) -> CoreBinding:
        """Bind a device to ``cores``.

        Raises:
            DeviceError: it cannot compute on exactly these cores while the other devices are open.
        """
        with self._lock:
            binding = self._binding(handle, cores)
            self._bindings.add(binding)
            return binding

    def _binding(self, handle: Any, cores: tuple[int, ...]) -> CoreBinding:
        if cores != detect.usable_cores():
            raise DeviceError(
                f"coexec cannot bind the threads of {self.title}, which compute on "
                f"all cores; write {whole_cpu()}/opencl"
            )
        return CoreBinding(handle, cores, cores)

    def _elsewhere(self, cores: tuple[int, ...]) -> list[int]:
        """Cores of the open devices that compute on other cores than ``cores``, in ascending
        order."""
        if all(binding.cores == cores for binding in self._bindings):
            return []
        gc.collect()  # frees devices that nothing refers to any more
        bound_cores = [binding.cores for binding in self._bindings if binding.cores != cores]
        return sorted({core for device_cores in bound_cores for core in device_cores})


def bind(threads: Sequence[int], cores: Sequence[Collection[int]]) -> None:
    """Bind each thread to its cores, and prevent it from preempting other threads when it is woken.

    Does what the system supports. On Linux the scheduling policy SCHED_BATCH prevents the
    preemption, see sched(7).
    """
    if hasattr(os, "sched_setaffinity"):
        for thread, allowed in zip(threads, cores, strict=False):
            os.sched_setaffinity(thread, allowed)
            _displace_nobody(thread)


def _displace_nobody(thread: int) -> None:
    if hasattr(os, "SCHED_BATCH"):
        with suppress(PermissionError):  # a sandbox may forbid it
            if os.sched_getscheduler(thread) == os.SCHED_OTHER:
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


@contextmanager
def calling_from(cores: Sequence[int]) -> Iterator[None]:
    """Restrict the calling thread, and the threads that it starts, to ``cores`` in the ``with``
    block."""
    if len(cores) < 2 or not hasattr(os, "sched_setaffinity"):
        yield  # further devices may follow, each on another core
        return
    previous_cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, previous_cores)


def thread_ids() -> set[int]:
    """Ids of the threads of this process; empty where the system does not list them."""
    try:
        return {int(thread) for thread in os.listdir("/proc/self/task")}
    except OSError:
        return set()


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables in the ``with`` block. Variables that are set already keep their
    values."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)
