"""The OpenCL devices of this machine: GPUs first, then CPU runtimes, which compute on CPU cores.

Intel's runtime is the first CPU runtime, as it is twice as fast as PoCL on two threads.
"""

import ctypes
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coexec.engines import detect
from coexec.engines.kernels.architecture import Architecture, BlockWidth, blocks_on_cores
from coexec.engines.opencl import vendors
from coexec.engines.opencl.cpu_runtime import CoreBinding, CpuRuntime, environment, thread_ids
from coexec.engines.opencl.forked import note_loaded, refuse_forked
from coexec.engines.opencl.intel import Intel
from coexec.engines.opencl.pocl import Pocl
from coexec.errors import DeviceError, first_line
from coexec.extras import install
from coexec.units import format_bytes

_RUNTIMES: dict[str, CpuRuntime] = {
    "Intel(R) OpenCL": Intel(),
    "Portable Computing Language": Pocl(),
}
"""CPU runtimes by platform name, in the order of their devices. Others are added when found."""
INSTALL = (
    f"{install('pocl')}, or {install('intel-opencl')}, brings a runtime for CPU cores, a GPU needs "
    f"its driver"
)
_UUID = 0x106A
"""CL_DEVICE_UUID_KHR."""
_lock = threading.Lock()
_loaded = threading.Event()
"""Set when OpenCL has been loaded with the number of threads of the first call."""


@dataclass(frozen=True, eq=False)
class DeviceHandle:
    """An OpenCL device."""

    handle: Any
    runtime: CpuRuntime | None = None
    """The runtime that computes on CPU cores; None for GPUs."""
    overridden_cpu_name: str | None = None
    """CPU name that `pocl_cpu` has set for the compiler; None if the compiler detects the CPU."""

    @property
    def on_cpu(self) -> bool:
        return self.runtime is not None

    @property
    def binds(self) -> bool:
        """Whether it can compute on chosen cores."""
        return self.runtime is not None and self.runtime.binds

    def on(self, cores: tuple[int, ...]) -> "tuple[DeviceHandle, CoreBinding]":
        """The device on ``cores``, which are reserved for it as long as the binding exists.

        Args:
            cores: empty for GPUs.

        Raises:
            DeviceError: it cannot compute there while the other devices are open.
        """
        if self.runtime is None:
            return self, CoreBinding(self.handle, (), ())
        binding = self.runtime.occupy(self.handle, cores or detect.usable_cores())
        return replace(self, handle=binding.handle), binding

    def check_room(self) -> None:
        """
        Raises:
            DeviceError: the driver cannot write the files that it needs while it compiles.
        """
        if self.runtime is not None:
            self.runtime.check_room()

    def context(self) -> Any:
        import pyopencl

        if self.runtime is not None:
            self.runtime.start(self.handle)
        return pyopencl.Context([self.handle])

    @property
    def name(self) -> str:
        return str(self.handle.name).strip()

    @property
    def platform(self) -> str:
        """Name of the platform. Users select a runtime for CPU cores by it."""
        return str(self.handle.platform.name).strip()

    @property
    def unified(self) -> bool:
        """Whether the device computes in the host's memory."""
        return bool(self.handle.host_unified_memory) or self.on_cpu

    @property
    def driver(self) -> str:
        """Name and version of the driver, and the CPU name that was set for its compiler."""
        device = self.handle
        text = f"{self.platform} {device.driver_version}, {device.version.strip()}"
        return f"{text}, told {self.overridden_cpu_name}" if self.overridden_cpu_name else text

    @property
    def compiles_for(self) -> str:
        """Everything that a compiled program depends on: the driver, and a CPU's instructions."""
        return " ".join([self.driver, *(detect.features() if self.on_cpu else ())])

    @property
    def identity(self) -> str:
        """UUID of a GPU if its driver reports it, else name and number."""
        if uuid := _uuid(self.handle):
            return uuid
        return f"{self.name} #{self.handle.platform.get_devices().index(self.handle)}"

    def facts(self) -> dict[str, str]:
        """Properties for users, as text by title."""
        return {
            "units": str(self.handle.max_compute_units),
            "memory": format_bytes(self.memory_bytes),
            "unified": "yes" if self.unified else "no",
            "fp16 arithmetic": "yes" if self.half else "no",
        }

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

    @property
    def vector_width(self) -> int:
        """Number of floats in a vector register, as the driver reports it."""
        return int(self.handle.native_vector_width_float)

    def architecture(
        self, half: bool = False, storage: str = "auto", block: BlockWidth = "auto"
    ) -> Architecture:
        """The device as a target for kernels.

        ``storage`` and ``block`` are described in the engine's `Options`. With the storage "auto",
        Adreno GPUs use images, which they read faster.
        """
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
        if self.on_cpu:
            most = 16 if self.vector_width == 8 else 32  # AVX has 16; AVX-512 and NEON have 32
            width, registers = blocks_on_cores(self.vector_width, most, block)
            return Architecture("cpu", width, registers=registers, **common)
        if "nvidia" in device.vendor.lower():
            return Architecture("nvidia", 4, **common)
        return Architecture("mobile", 4, **common)


def start(cores: Sequence[int] | None = None) -> None:
    """Load OpenCL. CPU runtimes get a thread for each of ``cores`` (all usable ones by default).

    Their number of threads does not change after they have started.

    Raises:
        DeviceError: pyopencl is not installed.
        ForkedError: this process was forked from one that has loaded OpenCL.
    """
    refuse_forked()
    with _lock:
        first = not _loaded.is_set()
        thread_cores = tuple(cores or detect.usable_cores())
        if first:
            note_loaded()
            _load(len(thread_cores))
            _loaded.set()
        for runtime in _RUNTIMES.values() if first or cores else ():
            runtime.want(thread_cores)


def _load(threads: int) -> None:
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")  # its own cache returns stale binaries
    try:
        import pyopencl
    except ImportError as error:
        raise DeviceError(
            f"OpenCL needs pyopencl ({first_line(error)}): "
            f"{install('gpu')} for GPUs, {install('pocl')} or "
            f"{install('intel-opencl')} for CPU cores"
        ) from None
    values = dict(vendors.variables(Path(pyopencl.__file__).parent))
    for runtime in _RUNTIMES.values():
        values |= runtime.variables(threads)
    earlier_threads = thread_ids()
    with environment(values):
        for platform in _platforms():
            _handles(platform)
    for runtime in _RUNTIMES.values():
        runtime.loaded(sorted(thread_ids() - earlier_threads))


def devices() -> list[DeviceHandle]:
    """All devices, GPUs first. `coexec.engines.opencl.tried` tests whether one works."""
    start()
    candidates = [_found(handle) for platform in _platforms() for handle in _handles(platform)]
    ranks = {id(runtime): rank for rank, runtime in enumerate(_RUNTIMES.values(), 1)}
    return sorted((f for f in candidates if f), key=lambda f: ranks.get(id(f.runtime), 0))


def absent() -> list[str]:
    """Why installed CPU runtimes are missing among the devices, with the remedy."""
    platforms = _platforms()
    reasons = vendors.absent(" ".join(platform.name for platform in platforms))
    for platform in platforms:
        runtime = _RUNTIMES.get(platform.name.strip())
        if runtime is not None and not _handles(platform):
            try:
                runtime.check_room()
            except DeviceError as error:
                reasons.append(str(error))
    return reasons


def _uuid(handle: Any) -> str:
    """UUID in hexadecimal digits; "" if the driver does not report it.

    Calls OpenCL through ctypes, as pyopencl has no name for this property.
    """
    import pyopencl

    if "cl_khr_device_uuid" not in handle.extensions:
        return ""
    value = (ctypes.c_ubyte * 16)()
    try:  # the function of the loader that pyopencl is linked to
        ask = ctypes.CDLL(pyopencl._cl.__file__).clGetDeviceInfo
    except (OSError, AttributeError):
        return ""
    code = ask(ctypes.c_void_p(handle.int_ptr), _UUID, ctypes.c_size_t(16), value, None)
    return bytes(value).hex() if code == 0 else ""


def _found(handle: Any) -> DeviceHandle | None:
    import pyopencl

    name = handle.platform.name.strip()
    runtime = _RUNTIMES.get(name)
    if runtime is None and handle.type & pyopencl.device_type.CPU:
        runtime = _RUNTIMES.setdefault(name, CpuRuntime(name))
    if runtime is not None:
        return DeviceHandle(handle, runtime, runtime.prepare(handle))
    return DeviceHandle(handle) if handle.type & pyopencl.device_type.GPU else None


def _platforms() -> list[Any]:
    import pyopencl

    try:
        return list(pyopencl.get_platforms())
    except pyopencl.Error:
        return []  # none at all


def _handles(platform: Any) -> list[Any]:
    import pyopencl

    try:
        return list(platform.get_devices())
    except pyopencl.Error:
        return []  # a platform without devices
