"""Compiled kernels on disk.

The key of a cache entry contains the source, the options, the device and its driver, so that a new
driver compiles again. A damaged entry is compiled again, never trusted.
"""

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coexec.cache import Cache, Entry
from coexec.engines.kernels.base import OPENCL_PRELUDE
from coexec.engines.opencl.platforms import DeviceHandle
from coexec.keys import digest

OPTIONS = "-cl-std=CL1.2 -cl-mad-enable"
"""Compiler options: fused multiply-adds are allowed, but nothing that could turn a number into
another one, or 0 into -0, whose reciprocal is another infinity."""
_naming = threading.Lock()


class Binaries:
    """The compiled kernels of one device, in the cache ``folder``; None: nothing is stored."""

    def __init__(self, device: DeviceHandle, context: Any, folder: Path | None) -> None:
        self.device = device
        self._context = context
        self._cache = None if folder is None else Cache(folder)
        self.compiled = 0
        """Number of kernels that were compiled and not read from the cache."""

    def program(self, source: str, options: str) -> Any:
        """The built program of a source.

        Raises:
            pyopencl.Error: it does not compile.
        """
        key = self._key(source, options)
        program = self._read(key)
        if program is None:
            program = self._built(source, options)
            self.compiled += 1
            self._write(key, program)
        return program

    def _built(self, source: str, options: str) -> Any:
        import pyopencl

        with _quiet():
            return pyopencl.Program(self._context, OPENCL_PRELUDE + source).build(options)

    def _key(self, source: str, options: str) -> str:
        return digest(OPENCL_PRELUDE, source, options, self.device.name, self.device.driver)

    def _read(self, key: str) -> Any:
        import pyopencl

        entry = None if self._cache is None else self._cache.find("kernels", key)
        if entry is None:
            return None
        binary = entry.files["kernel.bin"]
        try:
            with _quiet():
                return pyopencl.Program(self._context, [self.device.handle], [binary]).build()
        except pyopencl.Error:
            return None  # the driver does not accept it any more

    def _write(self, key: str, program: Any) -> None:
        if self._cache is None:
            return
        import pyopencl

        binary = program.get_info(pyopencl.program_info.BINARIES)[0]
        if binary:
            self._cache.add("kernels", key, Entry({"kernel.bin": bytes(binary)}))


def kernel_of(program: Any, name: str) -> Any:
    """A kernel of a built program.

    For each kernel, pyopencl generates a Python function with a unique name. Two threads that do
    this at the same time may choose the same name, and pyopencl then emits a warning. A lock
    prevents this.
    """
    import pyopencl

    with _naming:
        return pyopencl.Kernel(program, name)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the compiler's warnings in the ``with`` block. They are frequent, also for binaries;
    failures are errors."""
    import pyopencl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pyopencl.CompilerWarning)
        yield
