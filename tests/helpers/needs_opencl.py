"""The OpenCL runtime on CPU cores that tests use, and the reason for skipping them without one.

It is the first runtime that works; ``pytest --opencl intel`` selects another one.
``--opencl-block 16`` sets the width of its blocks of channels.
"""

from functools import cache

import pytest

from coexec.engines.detect import usable_cores
from coexec.engines.names import cpu_name
from coexec.engines.opencl.platforms import DeviceHandle
from coexec.engines.opencl.tried import find
from coexec.engines.options import EngineOptions
from coexec.errors import DeviceError
from coexec.hardware.hardware import Device

RUNTIME = [""]
"""A part of the runtime's name: the engine's option ``runtime``; set by pytest's option."""
BLOCK = ["auto"]
"""The engine's option ``block``; set by pytest's option."""


def opencl_found() -> DeviceHandle:
    """The runtime on the last core. Skips the test if no runtime works."""
    handle, reason = _search(RUNTIME[0])
    if handle is None:
        pytest.skip(f"no usable OpenCL runtime for CPU cores: {reason}")
    return handle


def opencl_name(core: int | None = None) -> str:
    """The name of a device that computes with OpenCL on ``core``, by default the last core. Skips
    the test if no runtime works."""
    opencl_found()
    return f"cpu:{usable_cores()[-1] if core is None else core}/opencl"


def opencl_options(**more: str) -> EngineOptions:
    """The engine's options: the runtime, the width of blocks, and ``more``."""
    return {"opencl": {"runtime": RUNTIME[0], "block": BLOCK[0], **more}}


@cache
def _search(runtime: str) -> tuple[DeviceHandle | None, str]:
    """The runtime, or None and the reason why none works."""
    cores = usable_cores()[-1:]
    try:
        return find(Device(cpu_name(cores), "cpu", cores=cores), runtime), ""
    except DeviceError as error:
        return None, str(error)
