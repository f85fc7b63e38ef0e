"""The OpenCL device that tests use, and the reason for skipping them where there is none."""

from functools import cache

import pytest

from coexec.devices.detect import usable_cores

__all__ = ["pocl_name", "pocl_number"]


def pocl_number() -> int:
    """The number of a PoCL device that works: 0 for gpu:0. Skips the test if there is none."""
    number, reason = _search()
    if number is None:
        pytest.skip(f"no usable PoCL: {reason}")
    return number


def pocl_name(core: int | None = None) -> str:
    """That device on ``core``, by default the last one."""
    return f"gpu:{pocl_number()}@{usable_cores()[-1] if core is None else core}"


@cache
def _search() -> tuple[int | None, str]:
    """A number, or None and the reason."""
    try:
        import pyopencl  # noqa: F401
    except ImportError as error:
        return None, str(error)
    from coexec.devices.opencl.platforms import devices
    from coexec.devices.opencl.trial import unusable

    found = {number: device for number, device in enumerate(devices()) if device.pocl}
    reasons = {number: unusable(device) for number, device in found.items()}
    usable = next((number for number, reason in reasons.items() if reason is None), None)
    return usable, "; ".join(map(str, reasons.values())) or "this machine has no PoCL device"
