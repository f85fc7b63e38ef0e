"""The GPUs of this machine that have an OpenCL driver."""

import ctypes
import os
from dataclasses import dataclass
from typing import Any

from coexec.engines.kernels.architecture import Architecture
from coexec.errors import DeviceError, ForkedError, first_line
from coexec.extras import install
from coexec.units import format_bytes

_UUID = 0x106A
"""CL_DEVICE_UUID_KHR."""
_loaded_by: int | None = None
"""Id of the process that has loaded OpenCL; a forked child inherits the number."""


@dataclass(frozen=True, eq=False)
class DeviceHandle:
    """A GPU that OpenCL drives."""

    handle: Any

    def context(self) -> Any:
        import pyopencl

        return pyopencl.Context([self.handle])

    @property
    def name(self) -> str:
        return str(self.handle.name).strip()

    @property
    def unified(self) -> bool:
        """Whether the device computes in the host's memory."""
        return bool(self.handle.host_unified_memory)

    @property
    def driver(self) -> str:
        """Name and version of the driver."""
        device = self.handle
        platform = str(device.platform.name).strip()
        return f"{platform} {device.driver_version}, {device.version.strip()}"

    @property
    def identity(self) -> str:
        """UUID of the GPU if its driver reports it, else name and number."""
        if uuid := _uuid(self.handle):
            return uuid
        return f"{self.name} #{self.handle.platform.get_devices().index(self.handle)}"

    def facts(self) -> dict[str, str]:
        """Properties for users, as text by title."""
        return {
            "units": str(self.handle.max_compute_units),
            "memory": format_bytes(self.memory_bytes),
            "unified": "yes" if self.unified else "no",
            "fp16 arithmetic": "yes" if "cl_khr_fp16" in self.handle.extensions else "no",
        }

    @property
    def memory_bytes(self) -> int:
        return int(self.handle.global_mem_size)

    def architecture(self, half: bool = False, storage: str = "auto") -> Architecture:
        """The device as a target for kernels.

        ``storage`` is described in the engine's `Options`. With the storage "auto", Adreno GPUs use
        images, which they read faster.
        """
        device = self.handle
        images = storage == "image" or (storage == "auto" and "adreno" in self.name.lower())
        edge = min(device.image2d_max_width, device.image2d_max_height)
        return Architecture(
            "nvidia" if "nvidia" in device.vendor.lower() else "mobile",
            4,
            compute_units=device.max_compute_units,
            max_group=device.max_work_group_size,
            local_bytes=device.local_mem_size,
            half=half,
            image_edge=edge if images and device.image_support else 0,
            model=self.name,
        )


def devices() -> list[DeviceHandle]:
    """All GPUs.

    Raises:
        DeviceError: pyopencl is not installed.
        ForkedError: this process was forked from one that has loaded OpenCL.
    """
    global _loaded_by
    if is_forked():
        raise ForkedError(
            f"OpenCL was loaded in process {_loaded_by} and does not work in its forked child "
            f"{os.getpid()}; start the child with multiprocessing's method 'spawn', or use OpenCL "
            f"in children only and not in the process that forks them"
        )
    os.environ.setdefault("PYOPENCL_NO_CACHE", "1")  # its own cache returns stale binaries
    try:
        import pyopencl
    except ImportError as error:
        raise DeviceError(
            f"OpenCL needs pyopencl ({first_line(error)}): {install('gpu')}"
        ) from None
    _loaded_by = os.getpid()
    try:
        platforms = pyopencl.get_platforms()
    except pyopencl.Error:
        return []  # none at all
    handles = (handle for platform in platforms for handle in _handles(platform))
    return [DeviceHandle(handle) for handle in handles if is_gpu(handle)]


def is_forked() -> bool:
    """Whether this process was forked from the one that has loaded OpenCL."""
    return _loaded_by is not None and _loaded_by != os.getpid()


def is_gpu(handle: Any) -> bool:
    """Whether a ``pyopencl.Device`` is a GPU."""
    import pyopencl

    return bool(handle.type & pyopencl.device_type.GPU)


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


def _handles(platform: Any) -> list[Any]:
    import pyopencl

    try:
        return list(platform.get_devices())
    except pyopencl.Error:
        return []  # a platform without devices
