"""OpenCL's C functions, from the loader that pyopencl uses, for runs without Python."""

import ctypes
import logging
from functools import cache

import pyopencl as cl

_NAMES = (
    "clEnqueueCopyBufferRect",
    "clEnqueueNDRangeKernel",
    "clFlush",
    "clReleaseEvent",
    "clWaitForEvents",
)
_log = logging.getLogger("coexec")


@cache
def addresses() -> dict[str, int] | None:
    """The functions by name; None if the loader has not all of them, which is logged."""
    try:
        # Names are looked up in the libraries that pyopencl was linked with, too.
        library = ctypes.CDLL(cl._cl.__file__)
        functions = {name: getattr(library, name) for name in _NAMES}
    except (AttributeError, OSError) as error:
        _log.info("kernels of OpenCL are launched through Python: %s", error)
        return None
    return {name: ctypes.cast(f, ctypes.c_void_p).value or 0 for name, f in functions.items()}
