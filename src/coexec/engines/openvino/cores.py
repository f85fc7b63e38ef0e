"""Bind OpenVINO's threads to the cores of a device.

OpenVINO has no option to choose cores. Its behaviour, as measured with 2026.4:

* With streams turned off (``NUM_STREAMS=0``), the calling thread alone compiles and runs a model.
  So for a device of one core it is enough to bind the calling thread. There may be any number of
  such devices.
* With one stream of several threads, the calling thread computes together with worker threads of
  TBB. These workers are one pool for the process. OpenVINO can bind them (``ENABLE_CPU_PINNING``),
  but only to the first cores that the process may use. A stream that is free again is reused for
  the next model with the same number of threads, together with the cores of the old model.

So the workers are bound here. They are recognised by their name, which Linux copies from the thread
that starts them. Since they are one pool, only one group of several cores can be open at a time.
"""

import os
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from coexec.engines.detect import usable_cores
from coexec.errors import DeviceError

_NAME = "coexec-openvino"
"""Name of the threads that OpenVINO starts. Linux keeps 15 characters."""
_TASKS = Path("/proc/self/task")
_lock = threading.Lock()
_open: "weakref.WeakSet[CoreGroup]" = weakref.WeakSet()


class CoreGroup:
    """Several cores for OpenVINO's threads. They are free again when the object is collected."""

    def __init__(self, device: str, cores: Sequence[int]) -> None:
        """Claim ``cores`` for the device of that name.

        Raises:
            DeviceError: another group of several cores is open, or threads cannot be bound here.
        """
        self.cores = tuple(cores)
        self._device = device
        if not _can_bind() and set(cores) != set(usable_cores()):
            raise DeviceError(
                f"{device}: OpenVINO's threads cannot be bound to cores on this operating system; "
                f"use all cores as one device, or another engine"
            )
        with _lock:
            for other in _open:
                if other.cores != self.cores:
                    raise DeviceError(
                        f"{device}: OpenVINO has one pool of threads in a process, and "
                        f"{other._device} has it on the cores {_listed(other.cores)}; use devices "
                        f"of one core each, or another engine for one of the two"
                    )
            _open.add(self)

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """Context in which this thread calls OpenVINO. Threads that start in it get the name of
        workers, and are bound at its end."""
        if not _can_bind():
            yield
            return
        comm = _TASKS / str(threading.get_native_id()) / "comm"
        name = comm.read_text().strip()
        comm.write_text(_NAME)
        try:
            yield
        finally:
            comm.write_text(name)
            self.bind()

    def bind(self) -> None:
        """Bind all workers to the cores except the first one, which the calling thread uses.

        There may be more workers than cores, because some are left from a larger group or idle for
        other reasons. So each worker may use all of these cores, and the system distributes the
        busy workers.

        This is repeated when programs are bound to their tensors, for workers that TBB has started
        later.
        """
        if not _can_bind():
            return
        for worker in workers():
            with suppress(OSError):  # it has ended
                os.sched_setaffinity(worker, self.cores[1:])


def workers() -> list[int]:
    """The ids of the threads that OpenVINO has started for groups of cores, TBB's among them."""
    ids = []
    for task in _TASKS.iterdir() if _TASKS.is_dir() else ():
        with suppress(OSError):  # it has ended
            if (task / "comm").read_text().strip() == _NAME:
                ids.append(int(task.name))
    return [worker for worker in ids if worker != threading.get_native_id()]


def check_cores(
    device: str, cores: Sequence[int], properties: Mapping[str, Any], group: CoreGroup | None
) -> None:
    """Run a small model on the first of ``cores``, and check on which cores OpenVINO computed it.

    This run starts the threads of a group.

    Args:
        device: its name.
        cores: of the device.
        properties: the properties with which its models are compiled.
        group: the same cores, if there are several.

    Raises:
        DeviceError: OpenVINO used a core that does not belong to the device.
    """
    if not _can_bind() or set(cores) == set(usable_cores()):
        return
    from coexec.engines.openvino.trial import affinity_inside

    with group.compiling() if group else nullcontext():
        used = affinity_inside(cores[0], properties)
    if not used <= set(cores):
        raise DeviceError(
            f"{device}: OpenVINO runs it on the cores {_listed(sorted(used))}, because another "
            f"package has loaded OpenVINO or TBB before, with libtbbbind; open this device first, "
            f"use all cores as one device, or another engine"
        )


def _can_bind() -> bool:
    return hasattr(os, "sched_setaffinity") and _TASKS.is_dir()


def _listed(cores: Sequence[int]) -> str:
    return ", ".join(map(str, cores))
