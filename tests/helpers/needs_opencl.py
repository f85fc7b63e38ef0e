"""The OpenCL device on CPU cores that tests use, and the reason for skipping them without one.

It is the first that works; ``pytest --opencl "Intel(R) OpenCL"`` names another platform's.
"""

from functools import cache

import pytest

from coexec.engines.detect import usable_cores

__all__ = ["WANTED", "opencl_name", "opencl_number"]

WANTED = [""]
"""A part of the platform's name; set by the option."""


def opencl_number() -> int:
    """The number of a device that works: 0 for gpu:0. Skips the test if there is none."""
    number, reason = _search(WANTED[0])
    if number is None:
        pytest.skip(f"no usable OpenCL device on CPU cores: {reason}")
    return number


def opencl_name(core: int | None = None) -> str:
    """That device on ``core``, by default the last one."""
    return f"gpu:{opencl_number()}@{usable_cores()[-1] if core is None else core}"


@cache
def _search(platform: str) -> tuple[int | None, str]:
    """A number, or None and the reason."""
    try:
        import pyopencl  # noqa: F401
    except ImportError as error:
        return None, str(error)
    from coexec.engines.opencl.platforms import devices, start
    from coexec.engines.opencl.trial import unusable

    start(usable_cores()[-1:])
    reasons = []
    for number, device in enumerate(devices()):
        if device.on_cpu and platform in device.handle.platform.name:
            reason = unusable(device)
            if reason is None:
                return number, ""
            reasons.append(reason)
    return None, "; ".join(reasons) or "this machine has none"
