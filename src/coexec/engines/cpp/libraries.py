"""Compiled kernels: one shared library for the kernels of a program, and the cache of both.

A library is found by the texts of its kernels, and a kernel by its text, so that programs with
common kernels compile them once. The keys contain the compiler's options and the instruction sets
of the processor: no other machine's code is loaded. They contain the compiler with its version,
too, except those of libraries that any compiler may have made.
"""

import ctypes
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from coexec.cache import Cache, Entry
from coexec.cache.files import in_scratch
from coexec.engines.cpp import compiler as compilers
from coexec.engines.cpp.compiler import FLAGS, CompilerError, CppCompiler, instruction_sets
from coexec.engines.cpp.dialect import in_cpp, symbol
from coexec.engines.kernels.base import KernelLaunch
from coexec.errors import DeviceError, first_line
from coexec.keys import digest

_T = TypeVar("_T")

_SCRATCH_BYTES = 64 << 20
"""Room for the files of one library and its compilation."""
_loaded: dict[tuple[Path | None, str], dict[str, int]] = {}
"""Addresses of functions by name, by folder and key of the library. A library stays loaded."""


class Libraries:
    """The compiled kernels in the cache ``folder``; None: nothing is stored."""

    def __init__(self, device: str, compiler: CppCompiler | None, folder: Path | None) -> None:
        """
        Args:
            device: its name, for messages.
            compiler: whose kernels are used. None: those of any compiler in the cache, and this
                machine's compiler makes those that are missing.
        """
        self._device = device
        self._compiler = compiler
        self._cache = None if folder is None else Cache(folder)
        self.compiled = 0
        """Number of kernels that were compiled and not read from the cache."""

    def functions(self, launches: Sequence[KernelLaunch], tasks: Sequence[str]) -> list[int]:
        """The address of the function of each launch, see `dialect`.

        Args:
            tasks: the name of each launch's result, for messages.

        Raises:
            DeviceError: a kernel does not compile, there is no compiler for those that are missing,
                or the library cannot be made or loaded.
        """
        if not launches:
            return []
        names = [symbol(launch.name, launch.source) for launch in launches]
        texts = {
            n: in_cpp(x.name, x.source) for n, x in dict(zip(names, launches, strict=True)).items()
        }
        by = "any" if self._compiler is None else self._compiler.identity
        key = digest(sorted(texts.values()), "cpp", FLAGS, instruction_sets(), by)
        # An export gets the entries that a start finds, so the library of a second start counts.
        entry = None if self._cache is None else self._cache.find("kernels", key)
        place = None if self._cache is None else self._cache.root, key
        if place not in _loaded or (entry is None and self._cache is not None):
            found = None if entry is None else self._stored(entry, texts)
            _loaded[place] = found or self._made(key, texts, launches, tasks)
        return [_loaded[place][name] for name in names]

    def _stored(self, entry: Entry, names: Collection[str]) -> dict[str, int] | None:
        """The functions of a library of the cache; None if it cannot be loaded."""
        try:
            return self._in_scratch(
                lambda folder: _functions(entry.files["kernels.so"], names, folder)
            )
        except (CompilerError, OSError):
            return None

    def _made(
        self,
        key: str,
        texts: Mapping[str, str],
        launches: Sequence[KernelLaunch],
        tasks: Sequence[str],
    ) -> dict[str, int]:
        """The functions of a new library. Kernels are stored as soon as they are compiled."""
        compiler = self._compiler or self._any_compiler()
        keys = {name: digest(text, "cpp", compiler.identity) for name, text in texts.items()}

        def work(folder: Path) -> dict[str, int]:
            objects = {}
            for name in texts:
                entry = None if self._cache is None else self._cache.find("kernels", keys[name])
                if entry is not None:
                    objects[name] = entry.files["kernel.o"]
            missing = {name: text for name, text in texts.items() if name not in objects}
            for name, code in compiler.objects(missing, folder):
                objects[name] = code
                self.compiled += 1
                self._add(keys[name], "kernel.o", code)
            library = compiler.library(objects, folder)
            found = _functions(library, texts, folder)
            self._add(key, "kernels.so", library)
            return found

        try:
            return self._in_scratch(work)
        except CompilerError as error:
            what = "the library of kernels"
            for launch, task in zip(launches, tasks, strict=True):
                if symbol(launch.name, launch.source) == error.args[0]:
                    what = f"the kernel {launch.name} of {task!r}"
                    break
            raise DeviceError(
                f"{self._device} cannot compile {what} with {compiler.title}: {error.args[-1]}; "
                f"name another compiler by the variable CXX, or leave the engine cpp out"
            ) from error
        except OSError as error:
            raise DeviceError(
                f"{self._device} cannot compile kernels: no disk can be written "
                f"({first_line(error)})"
            ) from error

    def _any_compiler(self) -> CppCompiler:
        try:
            return compilers.compiler()
        except DeviceError as error:
            raise DeviceError(
                f"{self._device} finds no compiled kernels that this machine can load, "
                f"and {error}; or export the model on a machine with this processor and system"
            ) from None

    def _add(self, key: str, file: str, content: bytes) -> None:
        if self._cache is not None:
            self._cache.add("kernels", key, Entry({file: content}))

    def _in_scratch(self, work: Callable[[Path], _T]) -> _T:
        if self._cache is not None:
            return self._cache.with_scratch(_SCRATCH_BYTES, work)
        return in_scratch(Path(tempfile.gettempdir()), _SCRATCH_BYTES, work)


def _functions(library: bytes, names: Collection[str], folder: Path) -> dict[str, int]:
    """Load a library. Its file is needed no longer than that.

    Raises:
        CompilerError: it is no library, or lacks one of the functions ``names``.
        OSError: its file cannot be written.
    """
    # The name of the file is new in each call: the loader takes equal names for the same library.
    path = folder / f"{digest(str(folder), library, digits=16)}.so"
    path.write_bytes(library)
    try:
        loaded = ctypes.CDLL(str(path))
        return {n: ctypes.cast(getattr(loaded, n), ctypes.c_void_p).value or 0 for n in names}
    except (OSError, AttributeError) as error:
        if "failed to map" in str(error):  # the disk allows no code: another one may
            raise
        raise CompilerError(f"the library cannot be loaded ({first_line(error)})") from error
