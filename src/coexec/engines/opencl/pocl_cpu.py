"""Sets the CPU for which PoCL compiles, where PoCL's LLVM is older than the CPU.

The PoCL of the wheel pocl-binary-distribution 3.0 contains LLVM 14 (2022). It does not support
newer CPUs, and gives them wrong names:

* AMD's Zen 5 is "generic", and every build ends with "unknown target CPU 'generic'".
* AMD's Zen 4 is "znver3", a CPU without AVX-512. PoCL selects its library of functions by the
  extensions of the CPU, so it takes the one for AVX-512. The compiler crashes at the first function
  of 16 numbers, which it has to compile for a CPU without such registers. The same happens on
  Intel's Alder Lake if AVX-512 is switched on.

No option or environment variable sets another name. PoCL's structure of the device contains a
pointer to the name. This module sets the pointer to the name of an older CPU whose instructions
this CPU has.

The offset of the pointer is valid for one build. Nothing is changed unless that build is loaded,
and the pointer leads to exactly one of these names. Memory is read and written through
/proc/self/mem, where an address that is not mapped is an error and not a crash. The trial
(`coexec.engines.opencl.tried`) then tests whether kernels compute the right numbers, as for
any device."""

import ctypes
import os
import struct
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from coexec.engines import detect

_PLATFORM = "OpenCL 3.0 PoCL 3.0-rc2  Linux, Release, RELOC, LLVM 14.0.6, SLEEF, DISTRO, POCL_DEBUG"
_LIBRARY = "libpocl-21062cec.so"
"""The wheel's library; the digits are a digest of its content."""
_OFFSET = 640
"""Bytes from the start of a device's structure to the pointer to its CPU name, in that build."""
_UNKNOWN = ("generic",)
"""Names that stand for no CPU."""
_LESS = ("znver3", "alderlake")
"""Names of CPUs without AVX-512 that CPUs with AVX-512 get."""
_POINTER = struct.Struct("@P")


def override_cpu_name(handle: Any) -> str | None:
    """Set the CPU name of a PoCL device if it is wrong.

    Returns the name that is set, also if an earlier call has set it. None: nothing was changed.

    Args:
        handle: a ``pyopencl.Device`` that has not compiled anything yet.
    """
    features = detect.features()
    name = known_cpu(features)
    wrong = _UNKNOWN + _LESS if "X86_V4" in features else _UNKNOWN
    if name is None or handle.platform.version != _PLATFORM or not _is_loaded(_LIBRARY):
        return None
    try:
        memory = os.open("/proc/self/mem", os.O_RDWR)
    except OSError:
        return None  # not permitted; the trial then reports that kernels do not compile
    try:
        return _tell(memory, handle.int_ptr + _OFFSET, wrong, name)
    except (OSError, OverflowError):
        return None  # not the structure that was expected: nothing was written
    finally:
        os.close(memory)


def known_cpu(features: Collection[str]) -> str | None:
    """A CPU that LLVM 14 supports, and all of whose instructions a CPU with ``features`` has."""
    if "X86_V4" in features:
        return "skylake-avx512"
    return "haswell" if "X86_V3" in features else None


def _is_loaded(library: str) -> bool:
    """Whether this process has loaded a file of this name."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return False
    return any(line.endswith(f"/{library}") for line in lines)


def _tell(memory: int, pointer: int, wrong: Sequence[str], name: str) -> str | None:
    """Set the pointer at the address ``pointer`` to ``name``, if it leads to a wrong name.

    Args:
        memory: file descriptor of this process's memory.
    """
    (address,) = _POINTER.unpack(os.pread(memory, _POINTER.size, pointer))
    if _holds(memory, address, name):
        return name
    if not any(_holds(memory, address, text) for text in wrong):
        return None
    libc = ctypes.CDLL(None)
    libc.strdup.restype = ctypes.c_void_p
    copy = libc.strdup(name.encode())  # lives as long as the process, as PoCL may use it at its end
    os.pwrite(memory, _POINTER.pack(copy), pointer)
    return name


def _holds(memory: int, address: int, text: str) -> bool:
    """Whether the C string at ``address`` is ``text``."""
    expected = text.encode() + b"\0"
    return os.pread(memory, len(expected), address) == expected
