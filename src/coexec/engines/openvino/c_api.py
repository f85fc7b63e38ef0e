"""OpenVINO's C API, whose requests a run loop infers without Python.

The library lies in OpenVINO's package, beside the C++ library that Python uses:
https://docs.openvino.ai/2025/api/c_cpp_api/group__ov__c__api.html
"""

import ctypes
import importlib.util
import logging
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any
from weakref import finalize

from coexec.arrays import Array, address_of
from coexec.engines.openvino.library import core
from coexec.errors import CoexecError

_log = logging.getLogger("coexec")

_MOST_BYTES = 1 << 30
"""Most bytes of weights that are passed to the C API in a file."""


class OvApiError(CoexecError, RuntimeError):
    """An error of OpenVINO's C API, or the reason why the API cannot be used."""


class _Shape(ctypes.Structure):
    """``ov_shape_t``"""

    _fields_ = (("rank", ctypes.c_int64), ("dims", ctypes.c_void_p))


class _Version(ctypes.Structure):
    """``ov_version_t``"""

    _fields_ = (("build", ctypes.c_char_p), ("description", ctypes.c_char_p))


class OvApi:
    """The functions of the library, and its core."""

    def __init__(self, library: Path) -> None:
        """
        Raises:
            OvApiError: the library is of another build than the package.
            OSError, AttributeError: it cannot be loaded, or lacks a function.
        """
        import openvino

        self._library = ctypes.CDLL(str(library))
        for name in ("ov_get_last_err_msg", "ov_get_error_info"):
            getattr(self._library, name).restype = ctypes.c_char_p
        version = _Version()
        self.call("ov_get_openvino_version", ctypes.byref(version))
        build = (version.build or b"").decode()
        if build != openvino.get_version():
            raise OvApiError(f"{library.name} is build {build}, not {openvino.get_version()}")
        self._core = self.create("ov_core_free", "ov_core_create")

    def address(self, name: str) -> int:
        """The address of a function."""
        return ctypes.cast(getattr(self._library, name), ctypes.c_void_p).value or 0

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function that returns a status.

        Raises:
            OvApiError: with OpenVINO's message.
        """
        passed = [a.pointer if isinstance(a, _Object) else a for a in arguments]
        status = getattr(self._library, name)(*passed)
        if status:
            raise self.error(status)

    def error(self, status: int) -> OvApiError:
        """The error for a status that a function has returned."""
        text = self._library.ov_get_last_err_msg() or self._library.ov_get_error_info(status)
        return OvApiError((text or b"").decode(errors="replace") or f"status {status}")

    def create(self, free: str, name: str, *arguments: Any, kept: Any = None) -> "_Object":
        """The object that a function makes, whose next argument is a pointer to it.

        Args:
            free: the function that frees it.
            kept: is kept alive as long as the object.
        """
        made = ctypes.c_void_p()
        self.call(name, *arguments, ctypes.byref(made))
        return _Object(made, getattr(self._library, free), kept)

    def compiled(self, model: Any, plugin: str, properties: Mapping[str, Any]) -> "_Object":
        """Compile an `openvino.Model`. It is passed in files: Python and C share no objects.

        Raises:
            OvApiError: OpenVINO does not compile it.
            OSError: the files cannot be written.
        """
        import openvino

        with tempfile.TemporaryDirectory(prefix="coexec-openvino-") as folder:
            file = Path(folder) / "model.xml"
            openvino.serialize(model, file)
            read = self.create(
                "ov_model_free", "ov_core_read_model", self._core, str(file).encode(), None
            )
            texts = [t.encode() for pair in properties.items() for t in map(_text, pair)]
            made = ctypes.c_void_p()
            arguments = plugin.encode(), ctypes.c_size_t(len(texts)), ctypes.byref(made)
            self.call("ov_core_compile_model", self._core, read, *arguments, *texts)
        return _Object(made, self._library.ov_compiled_model_free)

    def text(self, pointer: ctypes.c_char_p) -> str:
        """A text of the library, which is freed."""
        text = (pointer.value or b"").decode()
        self._library.ov_free(pointer)
        return text


class _Object:
    """An object of OpenVINO. It is freed with this one."""

    def __init__(self, pointer: ctypes.c_void_p, free: Any, kept: Any = None) -> None:
        self.pointer = pointer
        freed = finalize(self, _free, free, pointer, kept)
        freed.atexit = False  # threads may still run in it when the program ends


def _free(free: Any, pointer: ctypes.c_void_p, kept: Any) -> None:
    free(pointer)


def _text(value: Any) -> str:
    """A property as a text."""
    return {True: "YES", False: "NO"}[value] if isinstance(value, bool) else str(value)


class NativeModel:
    """A model that the C API has compiled."""

    def __init__(self, api: OvApi, compiled: _Object, inputs: int, outputs: int) -> None:
        """``inputs``, ``outputs``: how many it has."""
        self._api, self._compiled = api, compiled
        self.input_types = [self._type("input", number) for number in range(inputs)]
        self.output_types = [self._type("output", number) for number in range(outputs)]

    def get_property(self, name: str) -> str:
        """A property of the compiled model, as `openvino.CompiledModel` has it."""
        text = ctypes.c_char_p()
        self._api.call(
            "ov_compiled_model_get_property", self._compiled, name.encode(), ctypes.byref(text)
        )
        return self._api.text(text)

    def request(self) -> "NativeRequest":
        """A request for it."""
        made = self._api.create(
            "ov_infer_request_free",
            "ov_compiled_model_create_infer_request",
            self._compiled,
            kept=self._compiled,
        )
        return NativeRequest(self._api, self, made)

    def names(self, end: str, count: int) -> list[str]:
        """The first names of its inputs or outputs."""
        names = []
        for number in range(count):
            text = ctypes.c_char_p()
            self._api.call("ov_port_get_any_name", self._port(end, number), ctypes.byref(text))
            names.append(self._api.text(text))
        return names

    def _port(self, end: str, number: int) -> _Object:
        return self._api.create(
            "ov_output_const_port_free",
            f"ov_compiled_model_{end}_by_index",
            self._compiled,
            ctypes.c_size_t(number),
        )

    def _type(self, end: str, number: int) -> int:
        """The number of an element type, which another version may have for another type."""
        found = ctypes.c_int()
        self._api.call("ov_port_get_element_type", self._port(end, number), ctypes.byref(found))
        return found.value


class NativeRequest:
    """An infer request on the caller's C-contiguous arrays: nothing is copied."""

    def __init__(self, api: OvApi, model: NativeModel, request: _Object) -> None:
        self._api, self._model, self._request = api, model, request
        self._held: dict[tuple[str, int], Any] = {}

    @property
    def call(self) -> tuple[int, int]:
        """The address of the function that infers, and its argument."""
        return self._api.address("ov_infer_request_infer"), self._request.pointer.value or 0

    def set_input(self, number: int, array: Array) -> None:
        self._set("input", number, self._model.input_types[number], array)

    def set_output(self, number: int, array: Array) -> None:
        self._set("output", number, self._model.output_types[number], array)

    def infer(self) -> None:
        """
        Raises:
            OvApiError: OpenVINO has failed.
        """
        self._api.call("ov_infer_request_infer", self._request)

    def error(self, status: int) -> OvApiError:
        """The error for a status that the function of `call` has returned."""
        return self._api.error(status)

    def _set(self, end: str, number: int, kind: int, array: Array) -> None:
        dims = (ctypes.c_int64 * array.ndim)(*array.shape)
        tensor = self._api.create(
            "ov_tensor_free",
            "ov_tensor_create_from_host_ptr",
            ctypes.c_int(kind),
            _Shape(array.ndim, ctypes.addressof(dims)),
            ctypes.c_void_p(address_of(array)),
        )
        self._api.call(
            f"ov_infer_request_set_{end}_tensor_by_index",
            self._request,
            ctypes.c_size_t(number),
            tensor,
        )
        self._held[end, number] = tensor, array


@cache
def native_api() -> OvApi | None:
    """OpenVINO's C API; None if it cannot be used, which is logged."""
    core()  # loads the library with which the C API is linked
    try:
        spec = importlib.util.find_spec("openvino")
        folder = Path(spec.origin or "").parent / "libs" if spec is not None else Path()
        found = sorted(folder.glob("libopenvino_c.so.*"))
        if not found:
            raise OvApiError("the package has no library with a C API")
        return OvApi(found[0])
    except (OSError, AttributeError, OvApiError) as error:
        _log.info("segments of OpenVINO are called through Python: %s", error)
        return None


def native_model(
    model: Any, weights_bytes: int, plugin: str, properties: Mapping[str, Any]
) -> NativeModel | None:
    """An `openvino.Model`, compiled by the C API; None if that is not possible.

    Args:
        weights_bytes: the size of its weights, which are written into a file.
    """
    api = native_api() if weights_bytes <= _MOST_BYTES else None
    if api is None:
        return None
    ends = [[port.get_names() for port in ports] for ports in (model.inputs, model.outputs)]
    if not all(names for end in ends for names in end):
        return None
    try:
        compiled = api.compiled(model, plugin, properties)
        native = NativeModel(api, compiled, len(ends[0]), len(ends[1]))
        for end, kind in zip(ends, ("input", "output"), strict=True):
            found = native.names(kind, len(end))
            if any(name not in names for name, names in zip(found, end, strict=True)):
                raise OvApiError(f"its {kind}s have another order")
    except (OSError, RuntimeError) as error:
        _log.info("%s is called through Python: %s", model.get_friendly_name(), error)
        return None
    return native
