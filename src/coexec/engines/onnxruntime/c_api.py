"""ONNX Runtime's C API: the functions that a run without Python needs, from the package's library.

The functions stand in a table, ``OrtApi`` in onnxruntime_c_api.h. New functions are only added at
its end, so the index of a function holds for all later versions.
"""

import ctypes
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import Any
from weakref import finalize

import onnxruntime as ort

from coexec.arrays import Array, address_of
from coexec.errors import CoexecError
from coexec.model.values import FOREIGN

_VERSION = 8
"""The version of the table that has all functions below."""
_INDEX = {
    "GetErrorMessage": 2,
    "CreateEnv": 3,
    "CreateSessionFromArray": 8,
    "CreateSessionOptions": 10,
    "SetSessionLogSeverityLevel": 22,
    "SetSessionGraphOptimizationLevel": 23,
    "SetIntraOpNumThreads": 24,
    "SetInterOpNumThreads": 25,
    "CreateTensorWithDataAsOrtValue": 49,
    "CreateCpuMemoryInfo": 69,
    "ReleaseEnv": 92,
    "ReleaseStatus": 93,
    "ReleaseMemoryInfo": 94,
    "ReleaseSession": 95,
    "ReleaseValue": 96,
    "ReleaseSessionOptions": 100,
    "AddSessionConfigEntry": 130,
    "RunWithBinding": 133,
    "CreateIoBinding": 134,
    "ReleaseIoBinding": 135,
    "BindInput": 136,
    "BindOutput": 137,
    "CreateAndRegisterAllocator": 144,
    "AddInitializer": 150,
}
_ELEMENTS: dict[str, int] = {
    "float32": 1,
    "uint8": 2,
    "int8": 3,
    "uint16": 4,
    "int16": 5,
    "int32": 6,
    "int64": 7,
    "bool": 9,
    "float16": 10,
    "float64": 11,
    "uint32": 12,
    "uint64": 13,
    **FOREIGN,
}
"""The numbers of element types in ONNX."""
_ARENA, _DEFAULT_MEMORY = 1, 0  # OrtArenaAllocator, OrtMemTypeDefault
_SILENT = 4  # ORT_LOGGING_LEVEL_FATAL: every error is raised, too


class OrtApiError(CoexecError, RuntimeError):
    """An error of ONNX Runtime's C API, or the reason why the API cannot be used."""


class OrtObject:
    """An object of ONNX Runtime. It is released with this one."""

    def __init__(self, pointer: int, release: Callable[[int], Any], kept: Any = None) -> None:
        """``kept``: is kept alive as long as the object."""
        self.pointer = pointer
        released = finalize(self, _release, release, pointer, kept)
        released.atexit = False  # threads may still run in it when the program ends


def _release(release: Callable[[int], Any], pointer: int, kept: Any) -> None:
    release(pointer)


class OrtApi:
    """The functions of the library, and the objects that all sessions share."""

    def __init__(self, library: Path) -> None:
        """
        Raises:
            OrtApiError: the library is of another version than the package, or has no such
                functions.
            OSError: it cannot be loaded.
        """
        base = ctypes.CDLL(str(library)).OrtGetApiBase
        base.restype = ctypes.POINTER(ctypes.c_void_p * 2)
        get_api, get_version = base().contents
        version = ctypes.CFUNCTYPE(ctypes.c_char_p)(get_version)().decode()
        if version != ort.__version__:
            raise OrtApiError(f"{library.name} is version {version}, the package {ort.__version__}")
        table = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)(get_api)(_VERSION)
        if not table:
            raise OrtApiError(f"{library.name} has no C API of version {_VERSION}")
        self._table = ctypes.cast(table, ctypes.POINTER(ctypes.c_void_p))
        self._functions: dict[str, Any] = {}
        self._release_status = self.releases("Status")
        self._release_value = self.releases("Value")
        self._message = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_void_p)(
            self.address("GetErrorMessage")
        )
        self.environment = self.create("Env", "CreateEnv", _SILENT, b"coexec")
        self.memory = self.create("MemoryInfo", "CreateCpuMemoryInfo", _ARENA, _DEFAULT_MEMORY)
        self.call("CreateAndRegisterAllocator", self.environment, self.memory, 0)

    def address(self, name: str) -> int:
        """The address of a function."""
        return self._table[_INDEX[name]] or 0

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function. Arguments are numbers, bytes, ctypes' pointers and objects of ONNX
        Runtime.

        Raises:
            OrtApiError: with the message of ONNX Runtime.
        """
        passed = [a.pointer if isinstance(a, OrtObject) else a for a in arguments]
        function = self._functions.get(name)
        if function is None:
            kinds = [_kind(argument) for argument in passed]
            function = ctypes.CFUNCTYPE(ctypes.c_void_p, *kinds)(self.address(name))
            self._functions[name] = function
        status = function(*passed)
        if status:
            raise self.error(status)

    def error(self, status: int) -> OrtApiError:
        """The error that a function has returned, which is released."""
        error = OrtApiError(self._message(status).decode(errors="replace"))
        self._release_status(status)
        return error

    def create(self, kind: str, name: str, *arguments: Any, kept: Any = None) -> OrtObject:
        """The object of this kind that a function makes, whose last argument is a pointer to it."""
        return OrtObject(self._made(name, *arguments), self.releases(kind), kept)

    def _made(self, name: str, *arguments: Any) -> int:
        made = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(made))
        return made.value or 0

    def releases(self, kind: str) -> Callable[[int], Any]:
        return ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.address(f"Release{kind}"))

    def takes(self, dtypes: Iterable[str]) -> bool:
        """Whether it knows these element types."""
        return all(dtype in _ELEMENTS for dtype in dtypes)

    def tensor(self, array: Array) -> OrtObject:
        """An OrtValue on the memory of an array, which it keeps alive."""
        return OrtObject(self._value(array), self._release_value, array)

    def bind(self, function: str, binding: OrtObject, name: bytes, array: Array) -> None:
        """Bind an input or an output to the memory of an array.

        The OrtValue is released here and not by a destructor, in which Python would swallow what a
        signal handler raises.
        """
        value = self._value(array)
        try:
            self.call(function, binding, name, value)
        finally:
            self._release_value(value)

    def _value(self, array: Array) -> int:
        shape = (ctypes.c_int64 * array.ndim)(*array.shape)
        return self._made(
            "CreateTensorWithDataAsOrtValue",
            self.memory,
            address_of(array),
            array.nbytes,
            ctypes.addressof(shape),
            array.ndim,
            _ELEMENTS[array.dtype.name],
        )


def _kind(argument: Any) -> Any:
    if isinstance(argument, bytes):
        return ctypes.c_char_p
    return ctypes.c_ssize_t if isinstance(argument, int) else ctypes.c_void_p


@cache
def ort_api() -> OrtApi:
    """The C API of the installed package.

    Raises:
        OrtApiError: it cannot be used; the message says why.
    """
    found = libraries()
    if not found:
        raise OrtApiError(f"onnxruntime {ort.__version__} has no library with a C API")
    return opened(found[0])


def libraries() -> list[Path]:
    """The libraries with a C API in the installed package."""
    folder = Path(ort.__file__).parent / "capi"
    names = ("libonnxruntime.so*", "libonnxruntime.*.dylib", "onnxruntime.dll")
    return [path for name in names for path in sorted(folder.glob(name))]


def opened(library: Path) -> OrtApi:
    """The C API of a library.

    Raises:
        OrtApiError: it cannot be used; the message says why.
    """
    try:
        return OrtApi(library)
    except (OSError, AttributeError) as error:
        raise OrtApiError(f"{library.name} cannot be used: {error}") from None
