"""The OpenCL devices of this machine, GPUs first; PoCL, which is the CPU itself, last.

PoCL's threads start with the process's first use of OpenCL and serve all its PoCL devices, so
their number is decided by whoever comes first. They are bound to cores afterwards.
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from coexec.devices import detect
from coexec.devices.opencl.architecture import Architecture
from coexec.devices.opencl.pocl_cpu import tell_cpu
from coexec.errors import DeviceError, first_line

__all__ = ["Found", "devices", "start"]

_lock = threading.Lock()
_workers: list[int] = []
"""Thread ids of PoCL's workers."""
_started: list[int] = []
"""How many workers were asked for, once they are started."""


@dataclass(frozen=True, eq=False)
class Found:
    """An OpenCL device."""

    handle: Any
    told_cpu: str | None = None
    """The CPU that PoCL was told to compile for, see `pocl_cpu`. None: as it finds out itself."""

    @property
    def pocl(self) -> bool:
        return "Portable Computing Language" in self.handle.platform.name

    @property
    def name(self) -> str:
        return str(self.handle.name).strip()

    @property
    def unified(self) -> bool:
        """Whether the device computes in the host's memory."""
        return bool(self.handle.host_unified_memory) or self.pocl

    @property
    def driver(self) -> str:
        """The driver and its version, and the CPU that it was told to compile for."""
        device = self.handle
        text = f"{device.platform.name.strip()} {device.driver_version}, {device.version.strip()}"
        return f"{text}, told {self.told_cpu}" if self.told_cpu else text

    @property
    def compiles_for(self) -> str:
        """What a compiled program depends on: the driver, and the instructions of PoCL's CPU."""
        return " ".join([self.driver, *(detect.features() if self.pocl else ())])

    @property
    def memory_bytes(self) -> int:
        return int(self.handle.global_mem_size)

    @property
    def half(self) -> bool:
        return "cl_khr_fp16" in self.handle.extensions

    @property
    def _image_edge(self) -> int:
        device = self.handle
        return (
            min(device.image2d_max_width, device.image2d_max_height) if device.image_support else 0
        )

    def architecture(self, half: bool = False, storage: str = "auto") -> Architecture:
        """``storage``: see `coexec.devices.base.Options`. Adreno GPUs read images faster."""
        device = self.handle
        images = storage == "image" or (storage == "auto" and "adreno" in self.name.lower())
        common = {
            "compute_units": device.max_compute_units,
            "max_group": device.max_work_group_size,
            "local_bytes": device.local_mem_size,
            "half": half,
            "image_edge": self._image_edge if images else 0,
            "model": self.name,
        }
        if self.pocl:
            width = device.native_vector_width_float
            # 512-bit machines have 32 registers; NEON has 32 as well, AVX 16.
            registers = 32 if width in (4, 16) else 16
            return Architecture("cpu", max(4, width), registers=registers, **common)
        if "nvidia" in device.vendor.lower():
            return Architecture("nvidia", 4, **common)
        return Architecture("mobile", 4, **common)


def start(cores: Sequence[int] | None = None) -> None:
    """Load OpenCL, with one PoCL thread for each of ``cores`` (all usable ones by default).

    Raises:
        DeviceError: pyopencl is not installed, or PoCL's threads run in another number already.
    """
    with _lock:
        wanted = len(cores) if cores else None
        if not _started:
            _load(wanted or len(detect.usable_cores()))
        if wanted and wanted != _started[0] and _workers:
            raise DeviceError(
                f"PoCL runs on {_started[0]} cores in this process, so it cannot run on {wanted} "
                f"now; open gpu devices with the same number of cores, or use another process"
            )
        if cores and hasattr(os, "sched_setaffinity"):
            for worker, core in zip(_workers, cores, strict=False):
                os.sched_setaffinity(worker, {core})


def _load(threads: int) -> None:
    # PoCL has no other way to be told. Its own cache would keep what ours keeps.
    os.environ.setdefault("POCL_MAX_PTHREAD_COUNT", str(threads))
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")  # pyopencl's would answer with stale binaries
    try:
        import pyopencl
    except ImportError as error:
        raise DeviceError(f"GPU devices need pyopencl ({first_line(error)}): "
                          f"pip install 'coexec[gpu]'") from None  # fmt: skip
    before = _threads()
    try:
        for platform in pyopencl.get_platforms():
            platform.get_devices()
    except pyopencl.Error:
        pass  # no platform at all: `devices` is empty then
    _workers[:] = sorted(_threads() - before)
    _started.append(int(os.environ["POCL_MAX_PTHREAD_COUNT"]))


def _threads() -> set[int]:
    try:
        return {int(t) for t in os.listdir("/proc/self/task")}
    except OSError:
        return set()


def devices() -> list[Found]:
    """All devices, in the order of their numbers: ``gpu:0`` is the first.

    Whether one works is said by `coexec.devices.opencl.trial`.
    """
    start()
    import pyopencl

    found = []
    for platform in _platforms(pyopencl):
        try:
            found += [Found(d, tell_cpu(d)) for d in platform.get_devices()]
        except pyopencl.Error:
            continue  # a platform without devices
    usable = [f for f in found if f.pocl or f.handle.type & pyopencl.device_type.GPU]
    return sorted(usable, key=lambda f: f.pocl)


def _platforms(pyopencl: Any) -> list[Any]:
    try:
        return list(pyopencl.get_platforms())
    except pyopencl.Error:
        return []
