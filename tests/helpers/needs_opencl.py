"""The OpenCL runtime on CPU cores that tests use, and the reason for skipping them without one.

It is the first that works; ``pytest --opencl intel`` takes another. ``--opencl-block 16`` sets the
width of its blocks of channels.
"""

from functools import cache

import pytest

from coexec.engines.detect import usable_cores
from coexec.engines.names import cpu_name
from coexec.engines.opencl.platforms import DeviceHandle, find
from coexec.engines.options import EngineOptions
from coexec.errors import DeviceError
from coexec.system.hardware import Device

__all__ = ["BLOCK", "RUNTIME", "opencl_found", "opencl_name", "opencl_options"]

RUNTIME = [""]
"""A part of the runtime's name, as the engine's option has it; set by pytest's."""
BLOCK = ["auto"]
"""The engine's option; set by pytest's."""


def opencl_found() -> DeviceHandle:
    """The runtime on the last core. Skips the test if none works."""
    found, reason = _search(RUNTIME[0])
    if found is None:
        pytest.skip(f"no usable OpenCL runtime for CPU cores: {reason}")
    return found


def opencl_name(core: int | None = None) -> str:
    """A device that computes with OpenCL on ``core``, by default the last one. Skips likewise."""
    opencl_found()
    return f"cpu:{usable_cores()[-1] if core is None else core}/opencl"


def opencl_options(**more: str) -> EngineOptions:
    """The engine's options: the runtime, the width of blocks, and ``more``."""
    return {"opencl": {"runtime": RUNTIME[0], "block": BLOCK[0], **more}}


@cache
def _search(runtime: str) -> tuple[DeviceHandle | None, str]:
    """It, or None and the reason."""
    cores = usable_cores()[-1:]
    try:
        return find(Device(cpu_name(cores), "cpu", cores=cores), runtime), ""
    except DeviceError as error:
        return None, str(error)
