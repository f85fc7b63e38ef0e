"""The OpenCL device that computes for a processor: the first that passes its trial."""

from coexec.engines.opencl.driver_trial import unusable
from coexec.engines.opencl.platforms import INSTALL, DeviceHandle, absent, devices, start
from coexec.errors import DeviceError
from coexec.hardware.hardware import Device

__all__ = ["find"]


def find(device: Device, runtime: str = "") -> DeviceHandle:
    """The OpenCL device for a processor; it has passed its trial.

    Args:
        device: CPU cores, or a GPU by its identity.
        runtime: for CPU cores, a part of the name of the runtime to use.

    Raises:
        DeviceError: there is none, or none that works.
    """
    start(device.cores)
    reasons = []
    for candidate in devices():
        if _is_meant(candidate, device, runtime):
            reason = unusable(candidate)
            if reason is None:
                return candidate
            reasons.append(reason)
    if device.kind == "cpu":
        titles = ", ".join(candidate.platform for candidate in devices() if candidate.on_cpu)
        if titles and not reasons:
            reasons.append(f"no OpenCL runtime is called {runtime!r}, only {titles}")
        reasons += absent()
    why = "; ".join(reasons) or f"there is no OpenCL runtime for it; {INSTALL}"
    raise DeviceError(f"device {device.name!r} cannot be used through OpenCL: {why}")


def _is_meant(handle: DeviceHandle, device: Device, runtime: str) -> bool:
    if device.kind == "cpu":
        return handle.on_cpu and runtime.lower() in handle.platform.lower()
    return not handle.on_cpu and handle.identity == device.identity
