"""Intel's CPU runtime: its threads start with the first context, and the calling thread computes.

With n threads, n - 1 workers compute beside the thread that waits for the kernels. With n = 1, a
single worker sometimes computes in place of that thread. Workers stay on the cores to which they
are bound.

Several devices in one process have one core each. Each of them is a sub-device, partitioned by
names, so that two callers compute at the same time. The name is a number that coexec chooses, as
the runtime does not bind threads by it. Equal partitions, and contexts on the whole device, would
compute one after the other. The single worker may then run on any of these cores.
"""

import os
from collections.abc import Collection, Sequence
from itertools import cycle
from typing import Any

from coexec.engines.opencl.cpu_runtime import (
    CoreBinding,
    CpuRuntime,
    bind,
    calling_from,
    environment,
    thread_ids,
)
from coexec.errors import DeviceError
from coexec.extras import install

_THREADS = "DPCPP_CPU_NUM_CUS"
_VECTORIZER = "CL_CONFIG_USE_VECTORIZER"
"""Whether the runtime makes vectors of work items. The engine's kernels use vectors already:
without the vectorizer they compile seven times as fast and run no slower (squeezenet: 5 s of CPU
time in place of 34)."""
_BY_NAMES, _END = 0x4052, -1
"""CL_DEVICE_PARTITION_BY_NAMES_INTEL and CL_PARTITION_BY_NAMES_LIST_END_INTEL."""
_FILL_BYTES = 1 << 22
"""Bytes of a fill that is large enough to be shared among all threads."""
_FILLS = 20
"""Largest number of fills. Workers start when there is work for them. A worker that starts after
these fills keeps the cores that the runtime gives it: those of the thread that made the first
context."""


class Intel(CpuRuntime):
    """Intel's runtime: any number of cores for one device; one core each for several devices.

    On fewer cores than threads, several threads share a core.
    """

    binds = True
    remedy = install("intel-opencl", upgrade=True)

    def __init__(self) -> None:
        super().__init__("Intel's OpenCL runtime")
        self._workers: Sequence[int] = ()
        self._threads = 0
        self._wanted: tuple[int, ...] = (0,)
        self._parts: dict[int, Any] = {}
        """The sub-device that is bound to each core."""

    def pool(self, cores: Sequence[int]) -> str:
        return self.title if len(cores) > 1 else ""

    def want(self, cores: Sequence[int]) -> None:
        self._wanted = tuple(cores)

    def start(self, handle: Any) -> None:
        if self._threads:
            return
        import pyopencl as cl

        self._threads = int(os.environ.get(_THREADS, len(self._wanted)))
        earlier_threads = thread_ids()
        values = {_THREADS: str(self._threads), _VECTORIZER: "False"}
        with environment(values), calling_from(self._wanted):
            context = cl.Context([handle])
            queue = cl.CommandQueue(context)
            memory = cl.Buffer(context, cl.mem_flags.READ_WRITE, _FILL_BYTES)
            for _ in range(_FILLS):
                cl.enqueue_fill_buffer(queue, memory, b"\0", 0, _FILL_BYTES)
                queue.finish()
                self._workers = sorted(thread_ids() - earlier_threads)
                if len(self._workers) >= self._threads - 1:
                    break

    def _binding(self, handle: Any, cores: tuple[int, ...]) -> CoreBinding:
        self.want(cores)
        self.start(handle)
        if len(cores) > self._threads:
            raise DeviceError(
                f"{self.title} has {self._threads} threads in this process, so it cannot compute "
                f"on {len(cores)} cores; open the device with the most cores first, or use another "
                f"process"
            )
        if self._threads == 1:
            return self._on_one(handle, cores)
        if in_use := self._elsewhere(cores):
            raise DeviceError(
                f"{self.title} computes on cores {', '.join(map(str, in_use))} in this process; "
                f"several devices in one process have one core each: close that device first, "
                f"give each device one core, or use another process"
            )
        worker_cores = zip(cycle((*cores[1:], cores[0])), self._workers, strict=False)
        bind(self._workers, [{core} for core, _ in worker_cores])
        return CoreBinding(handle, cores, cores[:1])

    def _on_one(self, handle: Any, cores: tuple[int, ...]) -> CoreBinding:
        (core,) = cores
        if core not in self._parts:
            self._parts[core] = self._part(handle, core)
        shared: Collection[int] = {core, *self._elsewhere(cores)}
        bind(self._workers, [shared] * len(self._workers))
        return CoreBinding(self._parts[core], cores, cores)

    def _part(self, handle: Any, core: int) -> Any:
        """A new sub-device for a core; the whole device if it cannot be divided."""
        if handle.max_compute_units == 1:  # this process may use one core only
            return handle
        (part,) = handle.create_sub_devices([_BY_NAMES, len(self._parts), _END])
        return part
