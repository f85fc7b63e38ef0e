"""Compiled kernels: one shared library for the kernels of a program, and the cache of both.

A library is found by the texts of its kernels, and a kernel by its text, so that programs with
common kernels compile them once. The keys contain the compiler, its version, and the instruction
set for which it compiles: no other machine's code is loaded.
"""

import ctypes
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from coexec.cache import Cache, Entry
from coexec.cache.files import in_scratch
from coexec.engines.cpp.compiler import CompilerError, CppCompiler
from coexec.engines.cpp.dialect import in_cpp, symbol
from coexec.engines.kernels.base import KernelLaunch
from coexec.errors import DeviceError, first_line
from coexec.keys import digest

_T = TypeVar("_T")

_SCRATCH_BYTES = 64 << 20
"""Room for the files of one library and its compilation."""
_loaded: dict[str, dict[str, int]] = {}
"""Addresses of functions by name, by key of the library. A library stays loaded."""


class Libraries:
    """The compiled kernels in the cache ``folder``; None: nothing is stored."""

    def __init__(self, device: str, compiler: CppCompiler, folder: Path | None) -> None:
        """``device``: its name, for messages."""
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
            DeviceError: a kernel does not compile, or the library cannot be made or loaded.
        """
        if not launches:
            return []
        names = [symbol(launch.name, launch.source) for launch in launches]
        texts = {
            n: in_cpp(x.name, x.source) for n, x in dict(zip(names, launches, strict=True)).items()
        }
        keys = {name: digest(text, "cpp", self._compiler.identity) for name, text in texts.items()}
        key = digest(sorted(keys.values()))
        if key not in _loaded:
            try:
                _loaded[key] = self._stored(key, texts) or self._made(key, keys, texts)
            except CompilerError as error:
                raise DeviceError(self._words(error, launches, names, tasks)) from error
            except OSError as error:
                raise DeviceError(
                    f"{self._device} cannot compile kernels: no disk can be written "
                    f"({first_line(error)})"
                ) from error
        return [_loaded[key][name] for name in names]

    def _stored(self, key: str, names: Mapping[str, str]) -> dict[str, int] | None:
        """The functions of a library of the cache; None if it is missing or cannot be loaded."""
        entry = None if self._cache is None else self._cache.find("kernels", key)
        if entry is None:
            return None
        try:
            return self._in_scratch(
                lambda folder: _functions(entry.files["kernels.so"], names, folder)
            )
        except (CompilerError, OSError):
            return None

    def _made(self, key: str, keys: Mapping[str, str], texts: Mapping[str, str]) -> dict[str, int]:
        """The functions of a new library. Kernels are stored as soon as they are compiled."""

        def work(folder: Path) -> dict[str, int]:
            objects = {}
            for name in texts:
                entry = None if self._cache is None else self._cache.find("kernels", keys[name])
                if entry is not None:
                    objects[name] = entry.files["kernel.o"]
            missing = {name: text for name, text in texts.items() if name not in objects}
            for name, code in self._compiler.objects(missing, folder):
                objects[name] = code
                self.compiled += 1
                self._add(keys[name], "kernel.o", code)
            library = self._compiler.library(objects, folder)
            found = _functions(library, texts, folder)
            self._add(key, "kernels.so", library)
            return found

        return self._in_scratch(work)

    def _add(self, key: str, file: str, content: bytes) -> None:
        if self._cache is not None:
            self._cache.add("kernels", key, Entry({file: content}))

    def _in_scratch(self, work: Callable[[Path], _T]) -> _T:
        if self._cache is not None:
            return self._cache.with_scratch(_SCRATCH_BYTES, work)
        return in_scratch(Path(tempfile.gettempdir()), _SCRATCH_BYTES, work)

    def _words(
        self,
        error: CompilerError,
        launches: Sequence[KernelLaunch],
        names: Sequence[str],
        tasks: Sequence[str],
    ) -> str:
        """The message for a failure; its first argument may be the name of a kernel."""
        what, why = "the library of kernels", str(error.args[-1])
        if error.args[0] in names:
            number = names.index(error.args[0])
            what = f"the kernel {launches[number].name} of {tasks[number]!r}"
        return (
            f"{self._device} cannot compile {what} with {self._compiler.title}: {why}; name "
            f"another compiler by the variable CXX, or leave the engine cpp out"
        )


def _functions(library: bytes, names: Mapping[str, str], folder: Path) -> dict[str, int]:
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
