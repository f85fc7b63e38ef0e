"""Compiled kernels on disk.

An entry is keyed by its source, the options, the device, its driver and our own format, so a new
driver compiles anew; PoCL's also by the instructions that the CPU has, which its code may use. An
entry carries a digest of itself: what is cut off or damaged is compiled anew, never trusted.
Binaries are taken after the kernels exist, because PoCL generates code only then.
"""

import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coexec.devices.opencl.platforms import Found

__all__ = ["OPTIONS", "Binaries"]

OPTIONS = "-cl-std=CL1.2 -cl-mad-enable -cl-no-signed-zeros"
"""Contraction to fused multiply-adds; no shortcut that could turn a number into another."""
_FORMAT = b"coexec kernel 1\n"


class Binaries:
    """The compiled kernels of one device. ``folder`` None: nothing is kept."""

    def __init__(self, found: Found, context: Any, folder: Path | None) -> None:
        self.found = found
        self.folder = folder
        self._context = context
        self.compiled = 0
        """How many kernels were compiled and not read."""

    def has(self, source: str, options: str) -> bool:
        """Whether a source is compiled and kept, as far as can be told without reading it."""
        path = self._path(source, options)
        return path is not None and path.exists()

    def program(self, source: str, options: str) -> Any:
        """The built program of a source.

        Raises:
            pyopencl.Error: it does not compile.
        """
        path = self._path(source, options)
        program = None if path is None else self._read(path)
        if program is None:
            program = self._built(source, options)
            self.compiled += 1
            if path is not None:
                self._write(path, program)
        return program

    def _built(self, source: str, options: str) -> Any:
        import pyopencl

        with _quiet():
            return pyopencl.Program(self._context, source).build(options)

    def _path(self, source: str, options: str) -> Path | None:
        if self.folder is None:
            return None
        text = "\0".join([source, options, self.found.name, self.found.compiles_for])
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.bin"

    def _read(self, path: Path) -> Any:
        import pyopencl

        try:
            data = path.read_bytes()
        except OSError:
            return None
        head, digest, binary = data[: len(_FORMAT)], data[len(_FORMAT) :][:32], (
            data[len(_FORMAT) + 32 :])  # fmt: skip
        if head != _FORMAT or hashlib.sha256(binary).digest() != digest:
            return None
        try:
            with _quiet():
                return pyopencl.Program(self._context, [self.found.handle], [binary]).build()
        except pyopencl.Error:
            return None  # the driver does not know it any more

    def _write(self, path: Path, program: Any) -> None:
        program.all_kernels()
        binary = program.get_info(_binaries_info())[0]
        if not binary:
            return
        handle, draft = tempfile.mkstemp(dir=path.parent, prefix=".draft")
        with os.fdopen(handle, "wb") as file:
            file.write(_FORMAT + hashlib.sha256(binary).digest() + binary)
        os.replace(draft, path)


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
