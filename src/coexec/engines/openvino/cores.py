"""OpenVINO's threads on the cores of a device, and on no other.

OpenVINO offers no way to choose cores. What it does, as measured with 2026.4:

* With streams turned off (``NUM_STREAMS=0``) a model is compiled and run by the calling thread
  alone. So a device of one core needs nothing but a bound caller, and there may be any number.
* With one stream of several threads, the calling thread computes beside workers of TBB. These
  workers are one pool for the process. OpenVINO can bind them (``ENABLE_CPU_PINNING``), but only
  to the first cores that the process may use; and a stream that is free again is reused for the
  next model with as many threads, together with the cores of the old one.

So workers are bound here. They are recognised by their name, which Linux copies from the thread
that starts them. As they are one pool, only one group of several cores can be open at a time.
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

__all__ = ["CoreGroup", "check_cores", "workers"]

_NAME = "coexec-openvino"
"""Of threads that OpenVINO starts. Linux keeps 15 characters."""
_TASKS = Path("/proc/self/task")
_lock = threading.Lock()
_open: "weakref.WeakSet[CoreGroup]" = weakref.WeakSet()


class CoreGroup:
    """Several cores for OpenVINO's threads. They are free again when the object is gone."""

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
        """While this thread gives OpenVINO work: mark the threads that start, then bind them."""
        if not _can_bind():
            yield
            return
        own = _TASKS / str(threading.get_native_id()) / "comm"
        name = own.read_text().strip()
        own.write_text(_NAME)
        try:
            yield
        finally:
            own.write_text(name)
            self.bind()

    def bind(self) -> None:
        """The first core is the calling thread's, the others belong to the workers.

        There may be more workers than other cores, left from a larger group or idle for other
        reasons. So each may use all of these cores, and the system spreads those that work.

        This is repeated when programs are bound to their tensors, for workers that TBB has
        started late.
        """
        if not _can_bind():
            return
        for worker in workers():
            with suppress(OSError):  # it has ended
                os.sched_setaffinity(worker, self.cores[1:])


def workers() -> list[int]:
    """The ids of the threads that OpenVINO has started for groups of cores, TBB's among them."""
    found = []
    for task in _TASKS.iterdir() if _TASKS.is_dir() else ():
        with suppress(OSError):  # it has ended
            if (task / "comm").read_text().strip() == _NAME:
                found.append(int(task.name))
    return [worker for worker in found if worker != threading.get_native_id()]


def check_cores(
    device: str, cores: Sequence[int], properties: Mapping[str, Any], group: CoreGroup | None
) -> None:
    """Run a small model on the first of ``cores``, and check where OpenVINO computed it.

    The threads of a group are started by it.

    Args:
        device: its name.
        cores: of the device.
        properties: that its models are compiled with.
        group: the same cores, if there are several.

    Raises:
        DeviceError: a core was used that is not the device's.
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
