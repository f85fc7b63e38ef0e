"""Compiled kernels on disk.

The key of a cache entry contains the source, the options, the device and its driver, so that a new
driver compiles again. On CPU cores it also contains the instructions of the CPU, which the code may
use. A damaged entry is compiled again, never trusted. A binary is taken after its kernels have been
created, because PoCL generates code only then.
"""

import math
import os
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from coexec.cache import Cache, Entry
from coexec.engines.kernels.base import OPENCL_PRELUDE
from coexec.engines.opencl.platforms import DeviceHandle
from coexec.keys import digest

OPTIONS = "-cl-std=CL1.2 -cl-mad-enable"
"""Compiler options: fused multiply-adds are allowed, but nothing that could turn a number into
another one, or 0 into -0, whose reciprocal is another infinity."""
_naming = threading.Lock()


class Binaries:
    """The compiled kernels of one device, in the cache ``folder``; None: nothing is stored.

    Args:
        launched: this process also launches the kernels that it compiles.
    """

    _requests: ClassVar[int] = 0
    """Number of binaries that this process has requested from its drivers."""

    def __init__(
        self, device: DeviceHandle, context: Any, folder: Path | None, launched: bool = True
    ) -> None:
        self.device = device
        self.folder = folder
        self._context = context
        self._cache = None if folder is None else Cache(folder)
        runtime = device.runtime if launched else None
        self._most = math.inf if runtime is None else runtime.most_binaries
        self.compiled = 0
        """Number of kernels that were compiled and not read from the cache."""

    def has(self, source: str, options: str) -> bool:
        """Whether the cache has a binary of the source. It is not read, so it may be damaged."""
        return self._cache is not None and self._cache.has("kernels", self._key(source, options))

    @property
    def written_folder(self) -> Path | None:
        """Folder in which helpers store the binaries that they compile."""
        return None if self._cache is None else self._cache.written_root

    @property
    def keeps_own(self) -> bool:
        """Whether this process stores its own binaries, and not only its helpers do."""
        return self.folder is not None and Binaries._requests < self._most

    def program(self, source: str, options: str) -> Any:
        """The built program of a source.

        Raises:
            pyopencl.Error: it does not compile.
            DeviceError: the driver cannot write the files that it needs for it.
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

        self.device.check_room()
        with _quiet():
            return pyopencl.Program(self._context, OPENCL_PRELUDE + source).build(options)

    def _key(self, source: str, options: str) -> str:
        return digest(OPENCL_PRELUDE, source, options, self.device.name, self.device.compiles_for)

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
        if self._cache is None or not self.keeps_own:
            return
        Binaries._requests += 1
        with _naming:
            program.all_kernels()
        binary = program.get_info(_binaries_info())[0]
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


def _renew() -> None:
    """Make a new lock in a forked child: the thread that holds the old one does not exist there."""
    global _naming
    _naming = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the compiler's warnings in the ``with`` block. They are frequent, also for binaries;
    failures are errors."""
    import pyopencl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pyopencl.CompilerWarning)
        yield


def _binaries_info() -> Any:
    import pyopencl

    return pyopencl.program_info.BINARIES
