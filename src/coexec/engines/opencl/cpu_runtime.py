"""What a CPU runtime of OpenCL does with its threads, and the cores that a device gets of it.

OpenCL has no call that says on which cores a CPU device computes. Each runtime decides the number
of its threads when it starts, and they serve all its devices in the process. `CpuRuntime` is what
holds for any runtime; `pocl` and `intel` know more about theirs.

Threads that are not bound lose more than a few cache lines: after a rest Linux wakes the second
thread on the core of the first, where both then take turns for milliseconds. Bound one by one, two
threads are as fast after 80 ms of rest as in a loop.

The thread that launches kernels holds Python's interpreter lock meanwhile. A worker that is woken
on its core and displaces it there would keep that lock from all other threads until the kernel is
done, so workers are told not to (`bind`).
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

__all__ = ["CoreBinding", "CpuRuntime", "bind", "calling_from", "environment", "thread_ids"]


@dataclass(frozen=True, eq=False)
class CoreBinding:
    """The cores that an open device computes on. They are its own as long as this object lives."""

    handle: Any
    """The device, or the part of it, that computes there."""
    cores: tuple[int, ...]
    thread_cores: Collection[int]
    """Where the thread belongs that launches kernels and waits for them."""
    by_itself: bool = False
    """Whether kernels run while no thread waits for them. In some runtimes that thread computes."""


class CpuRuntime:
    """A runtime of which nothing is known: its threads compute on all cores, bound to none."""

    remedy = "update or reinstall the driver"
    """If its device fails the trial."""
    binds = False
    """Whether its threads can be bound to chosen cores."""
    most_binaries = math.inf
    """Asked for more binaries of kernels than this, a process launches its kernels slowly."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._lock = threading.Lock()
        self._bindings: WeakSet[CoreBinding] = WeakSet()

    def variables(self, threads: int) -> Mapping[str, str]:
        """Environment variables for the first use of OpenCL in this process."""
        return {}

    def loaded(self, started: Sequence[int]) -> None:
        """OpenCL was loaded with `variables`, which has ``started`` these threads."""

    def want(self, cores: Sequence[int]) -> None:
        """`start` starts a thread for each of these cores."""

    def start(self, handle: Any) -> None:
        """Start the threads that come with the first context, unless they are started."""

    def prepare(self, handle: Any) -> str | None:
        """Make a device ready for its first use. Returns the CPU that it was told to compile for,
        None if it was told nothing."""
        return None

    def occupy(self, handle: Any, cores: tuple[int, ...]) -> CoreBinding:
        """Bind a device to ``cores``.

        Raises:
            DeviceError: it cannot compute on exactly these cores, beside those that are open.
        """
        with self._lock:
            binding = self._binding(handle, cores)
            self._bindings.add(binding)
            return binding

    def _binding(self, handle: Any, cores: tuple[int, ...]) -> CoreBinding:
        if cores != detect.usable_cores():
            raise DeviceError(f"coexec cannot bind the threads of {self.title}, which compute on "
                              f"all cores; write {whole_cpu()}/opencl")  # fmt: skip
        return CoreBinding(handle, cores, cores)

    def _elsewhere(self, cores: tuple[int, ...]) -> list[int]:
        """Cores of open devices, unless all of these are on ``cores``."""
        if all(binding.cores == cores for binding in self._bindings):
            return []
        gc.collect()  # devices that nothing refers to any more
        others = [binding.cores for binding in self._bindings if binding.cores != cores]
        return sorted({core for other in others for core in other})


def bind(threads: Sequence[int], cores: Sequence[Collection[int]]) -> None:
    """Bind each thread to its cores, and let it displace no other one there when it is woken.

    Where the system can do so; on Linux the latter is SCHED_BATCH, see sched(7).
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
    """The calling thread may use only ``cores`` for a while; so may threads that it starts."""
    if len(cores) < 2 or not hasattr(os, "sched_setaffinity"):
        yield  # several devices of one core follow, on others
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def thread_ids() -> set[int]:
    """The threads of this process, where the system tells."""
    try:
        return {int(thread) for thread in os.listdir("/proc/self/task")}
    except OSError:
        return set()


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables for a while. Those that are set already keep their values."""
    new = {name: value for name, value in values.items() if name not in os.environ}
    os.environ.update(new)
    try:
        yield
    finally:
        for name in new:
            os.environ.pop(name, None)
