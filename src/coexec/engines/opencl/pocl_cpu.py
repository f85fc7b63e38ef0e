"""PoCL told which CPU it compiles for, where its LLVM is older than the CPU.

The PoCL of the wheel pocl-binary-distribution 3.0 contains LLVM 14 (2022), which does not know CPUs
that are newer, and names them wrongly:

* AMD's Zen 5 is "generic", and every build ends with "unknown target CPU 'generic'".
* AMD's Zen 4 is "znver3", a CPU without AVX-512. PoCL takes its library of functions by the
  extensions that the CPU has, so it is the one for AVX-512, and the compiler crashes at the first
  function of 16 numbers, as it has to compile that for a CPU without such registers. Intel's Alder
  Lake is the same where AVX-512 is switched on.

No option or environment variable sets another name. PoCL keeps a pointer to the name in its
structure of the device. This module sets the pointer to the name of an older CPU whose instructions
this one has.

The offset of the pointer belongs to one build. Nothing is changed unless that build is loaded, and
the pointer leads to exactly one of these names. Memory is read and written through /proc/self/mem,
where an address that is not mapped is an error and not a crash. Whether kernels then compute the
right numbers is found out by the trial (`coexec.engines.opencl.trial`), as for any device.
"""

import ctypes
import os
import struct
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from coexec.engines import detect

__all__ = ["known_cpu", "tell_cpu"]

_PLATFORM = "OpenCL 3.0 PoCL 3.0-rc2  Linux, Release, RELOC, LLVM 14.0.6, SLEEF, DISTRO, POCL_DEBUG"
_LIBRARY = "libpocl-21062cec.so"
"""The wheel's library; the digits are a digest of its content."""
_OFFSET = 640
"""Bytes from the start of a device's structure to the pointer to its CPU's name, in that build."""
_UNKNOWN = ("generic",)
"""Names of no CPU at all."""
_LESS = ("znver3", "alderlake")
"""Names that CPUs with AVX-512 get, of CPUs without it."""
_POINTER = struct.Struct("@P")


def tell_cpu(handle: Any) -> str | None:
    """The name of a CPU that a PoCL device was told to compile for, None if it was told nothing.

    Args:
        handle: a ``pyopencl.Device``. It must not have compiled anything yet. A device that was
            told before is left as it is.
    """
    features = detect.features()
    name = known_cpu(features)
    wrong = _UNKNOWN + _LESS if "X86_V4" in features else _UNKNOWN
    if name is None or handle.platform.version != _PLATFORM or not _is_loaded(_LIBRARY):
        return None
    try:
        memory = os.open("/proc/self/mem", os.O_RDWR)
    except OSError:
        return None  # forbidden here; the trial then says that kernels do not compile
    try:
        return _tell(memory, handle.int_ptr + _OFFSET, wrong, name)
    except (OSError, OverflowError):
        return None  # not the structure that was expected: nothing was written
    finally:
        os.close(memory)


def known_cpu(features: Collection[str]) -> str | None:
    """A CPU that LLVM 14 knows, with no instruction that a CPU with ``features`` lacks."""
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
    """Let the pointer at the address ``pointer`` point to ``name``, if it points to a wrong one.

    Args:
        memory: this process's memory as a file.
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
