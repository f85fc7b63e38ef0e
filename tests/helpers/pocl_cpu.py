"""Sets the CPU for which PoCL compiles, where PoCL's LLVM is older than the CPU.

The PoCL of the wheel pocl-binary-distribution 3.0 contains LLVM 14 (2022), which gives newer CPUs
wrong names. AMD's Zen 5 is "generic": every build ends with "unknown target CPU 'generic'". AMD's
Zen 4 is "znver3", a CPU without AVX-512; so are others. PoCL takes its library of functions for
AVX-512, and the compiler crashes at the first of them.

No option sets another name. PoCL's structure of the device contains a pointer to the name, at an
offset that is valid for one build. Nothing is changed unless that build is loaded, and the pointer
leads to exactly one of these names. Memory is read and written through /proc/self/mem, where an
address that is not mapped is an error and not a crash.
"""

import ctypes
import os
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

from coexec.engines import detect

_PLATFORM = "OpenCL 3.0 PoCL 3.0-rc2  Linux, Release, RELOC, LLVM 14.0.6, SLEEF, DISTRO, POCL_DEBUG"
_LIBRARY = "libpocl-21062cec.so"
"""The wheel's library; the digits are a digest of its content."""
_OFFSET = 640
"""Bytes from the start of a device's structure to the pointer to its CPU name, in that build."""
_POINTER = struct.Struct("@P")


def override_cpu_name(handle: Any) -> None:
    """Set the CPU name of a PoCL device, a ``pyopencl.Device`` that has compiled nothing yet, if it
    is wrong."""
    features = detect.features()
    has_avx512 = "X86_V4" in features
    name = "skylake-avx512" if has_avx512 else "haswell"
    wrong = ("generic", "znver3", "alderlake") if has_avx512 else ("generic",)
    if "X86_V3" not in features or handle.platform.version != _PLATFORM:
        return
    with suppress(OSError, OverflowError):  # PoCL then reports that kernels do not compile
        if _LIBRARY not in Path("/proc/self/maps").read_text():
            return
        memory = os.open("/proc/self/mem", os.O_RDWR)
        try:
            _rename(memory, handle.int_ptr + _OFFSET, wrong, name)
        finally:
            os.close(memory)


def _rename(memory: int, pointer: int, wrong: tuple[str, ...], name: str) -> None:
    (address,) = _POINTER.unpack(os.pread(memory, _POINTER.size, pointer))
    texts = (text.encode() + b"\0" for text in wrong)
    if any(os.pread(memory, len(text), address) == text for text in texts):
        libc = ctypes.CDLL(None)
        libc.strdup.restype = ctypes.c_void_p  # the copy lives as long as the process
        os.pwrite(memory, _POINTER.pack(libc.strdup(name.encode())), pointer)
