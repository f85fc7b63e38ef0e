"""Compiled kernels on disk.

An entry of the cache is keyed by its source, the options, the device and its driver, so a new
driver compiles again; PoCL's also by the instructions that the CPU has, which its code may use.
What is damaged is compiled again, never trusted. Binaries are taken after the kernels exist,
because PoCL generates code only then.
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
from coexec.engines.opencl.platforms import DeviceHandle
from coexec.keys import digest

__all__ = ["OPTIONS", "Binaries", "kernel_of"]

OPTIONS = "-cl-std=CL1.2 -cl-mad-enable"
"""Contraction to fused multiply-adds; no shortcut that could turn a number into another, or 0 into
-0, of which the reciprocal is another infinity."""
_naming = threading.Lock()


class Binaries:
    """The compiled kernels of one device, in the cache ``folder``; None: nothing is kept.

    Args:
        launched: this process also launches the kernels that it compiles.
    """

    _asked: ClassVar[int] = 0
    """How many binaries this process has asked its drivers for."""

    def __init__(self, found: DeviceHandle, context: Any, folder: Path | None,
                 launched: bool = True) -> None:  # fmt: skip
        self.found = found
        self.folder = folder
        self._context = context
        self._cache = None if folder is None else Cache(folder)
        runtime = found.runtime if launched else None
        self._most = math.inf if runtime is None else runtime.most_binaries
        self.compiled = 0
        """How many kernels were compiled and not read."""

    def has(self, source: str, options: str) -> bool:
        """Whether a source is compiled and kept, as far as can be told without reading it."""
        return self._cache is not None and self._cache.has("kernels", self._key(source, options))

    @property
    def written_folder(self) -> Path | None:
        """Where helpers are to keep what they compile."""
        return None if self._cache is None else self._cache.written_root

    @property
    def keeps_own(self) -> bool:
        """Whether the folder gets what this process compiles, and not only what helpers do."""
        return self.folder is not None and Binaries._asked < self._most

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
            return pyopencl.Program(self._context, source).build(options)

    def _key(self, source: str, options: str) -> str:
        return digest(source, options, self.found.name, self.found.compiles_for)

    def _read(self, key: str) -> Any:
        import pyopencl

        entry = None if self._cache is None else self._cache.find("kernels", key)
        if entry is None:
            return None
        binary = entry.files["kernel.bin"]
        try:
            with _quiet():
                return pyopencl.Program(self._context, [self.found.handle], [binary]).build()
        except pyopencl.Error:
            return None  # the driver does not know it any more

    def _write(self, key: str, program: Any) -> None:
        if self._cache is None or not self.keeps_own:
            return
        Binaries._asked += 1
        with _naming:
            program.all_kernels()
        binary = program.get_info(_binaries_info())[0]
        if binary:
            self._cache.add("kernels", key, Entry({"kernel.bin": bytes(binary)}))


def kernel_of(program: Any, name: str) -> Any:
    """A kernel of a built program.

    For each, pyopencl generates a Python function with a name of its own. Two threads that do so at
    the same time may choose the same name, and get a warning from there.
    """
    import pyopencl

    with _naming:
        return pyopencl.Kernel(program, name)


def _renew() -> None:
    """In a forked child, no thread is left that would give the lock back."""
    global _naming
    _naming = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)


@contextmanager
def _quiet() -> Iterator[None]:
    """Compilers have much to say, also of binaries; what fails is an error."""
    import pyopencl

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pyopencl.CompilerWarning)
        yield


def _binaries_info() -> Any:
    import pyopencl

    return pyopencl.program_info.BINARIES
