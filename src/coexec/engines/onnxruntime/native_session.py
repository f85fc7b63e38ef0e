"""Modules as sessions of ONNX Runtime's C API, which a run loop calls without Python."""

import logging
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from coexec.arrays import Array
from coexec.engines.base import NativeCall
from coexec.engines.onnxruntime.c_api import OrtApi, OrtApiError, OrtObject, ort_api
from coexec.engines.onnxruntime.seeds import with_seeds
from coexec.errors import ExecutionError, first_line
from coexec.lowering.module import Module

_log = logging.getLogger("coexec")

_EXTERNAL = (
    "session.model_external_initializers_file_folder_path",
    str(Path(__file__).parent / "external"),
)
"""A folder with an empty file of weights. ONNX Runtime looks whether the file exists to which the
weights of a module refer, but takes their values from the memory of the module."""


class NativeSession:
    """One session that reads and writes the caller's tensors.

    The session computes with the weights in the memory of the module: they are not copied.
    """

    def __init__(
        self, api: OrtApi, module: Module, threads: int, entries: Mapping[str, str], device: str
    ) -> None:
        """
        Args:
            entries: configuration of the session, as for
                ``onnxruntime.SessionOptions.add_session_config_entry``.

        Raises:
            OrtApiError: ONNX Runtime does not take the module.
        """
        self._api, self._device = api, device
        options = api.create("SessionOptions", "CreateSessionOptions")
        api.call("SetSessionLogSeverityLevel", options, 4)
        api.call("SetSessionGraphOptimizationLevel", options, 0)  # optimized when it was lowered
        api.call("SetIntraOpNumThreads", options, threads)
        api.call("SetInterOpNumThreads", options, 1)
        for key, value in (*entries.items(), _EXTERNAL):
            api.call("AddSessionConfigEntry", options, key.encode(), value.encode())
        weights = {name: api.tensor(array) for name, array in module.weights.items()}
        for name, weight in weights.items():
            api.call("AddInitializer", options, name.encode(), weight)
        proto: bytes = with_seeds(module.proto)
        self._session = api.create(
            "Session", "CreateSessionFromArray", api.environment, proto, len(proto), options,
            kept=weights,
        )  # fmt: skip
        self._module = module

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> "_NativeBinding":
        bound = _NativeBinding(self._api, self._session, self._device)
        for tensor in self._module.inputs:
            bound.set_input(tensor.name, inputs[tensor.name])
        for tensor in self._module.outputs:
            bound.set_output(tensor.name, outputs[tensor.name])
        return bound


class _NativeBinding:
    """ONNX Runtime's IO binding on the caller's memory: nothing is copied."""

    def __init__(self, api: OrtApi, session: OrtObject, device: str) -> None:
        self._api, self._session, self._device = api, session, device
        self._binding = api.create("IoBinding", "CreateIoBinding", session, kept=session)
        self._held: dict[str, Array] = {}

    @property
    def native(self) -> Sequence[NativeCall]:
        run = self._api.address("RunWithBinding")
        arguments = (self._session.pointer, 0, self._binding.pointer)
        return (NativeCall(run, arguments, returns_pointer=True),)

    def failure(self, result: int) -> ExecutionError:
        return ExecutionError(f"{self._device}: {first_line(self._api.error(result))}")

    def set_input(self, name: str, tensor: Array) -> None:
        if self._held.get(name) is not tensor:  # else the caller fills the same array again
            self._bind("BindInput", name, tensor)

    def set_output(self, name: str, tensor: Array) -> None:
        self._bind("BindOutput", name, tensor)

    def _bind(self, function: str, name: str, tensor: Array) -> None:
        # A tensor is held for one that is bound only after it was: a signal handler may raise in
        # between, and the next request may bring the same array again.
        self._held.pop(name, None)
        self._api.bind(function, self._binding, name.encode(), tensor)
        self._held[name] = tensor

    def run(self) -> None:
        try:
            self._api.call("RunWithBinding", self._session, 0, self._binding)
        except OrtApiError as error:
            raise ExecutionError(f"{self._device}: {first_line(error)}") from error


@cache
def native_api() -> OrtApi | None:
    """ONNX Runtime's C API; None if it cannot be used, which is logged."""
    try:
        return ort_api()
    except OrtApiError as error:
        _log.info("segments of ONNX Runtime are called through Python: %s", error)
        return None
