"""A compiled model of OpenVINO that computes on the caller's memory."""

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coexec.arrays import Array, address_of
from coexec.engines.base import Guard, NativeCall
from coexec.engines.openvino.c_api import NativeModel
from coexec.engines.openvino.cores import CoreGroup
from coexec.engines.openvino.failures import cause, execution_error
from coexec.engines.openvino.indices import Axis, check_computed, check_fed
from coexec.engines.openvino.reading import writable
from coexec.errors import ExecutionError
from coexec.lowering.module import Module

__all__ = ["Compiled", "OpenVinoProgram", "exceeds"]


@dataclass(frozen=True)
class Compiled:
    """A module that OpenVINO has compiled."""

    model: Any
    """An `openvino.CompiledModel`, or a `NativeModel`."""
    inputs: Mapping[str, int]
    """By name, the numbers of its inputs."""
    limited: bool
    """Whether its results are right only if no fed number exceeds the limit."""
    axes: tuple[Axis, ...]
    """The axes to which indices refer."""


class OpenVinoProgram:
    """A module that is compiled for numbers up to a limit. It is compiled again, for all numbers,
    when larger numbers are fed for the first time."""

    def __init__(
        self,
        module: Module,
        compiled: Callable[[float | None], Compiled],
        limit: float | None,
        device: str,
        group: CoreGroup | None,
    ) -> None:
        """Compile a module.

        Args:
            module: the operators, with their weights.
            compiled: compiles the module for numbers up to a limit; None: for all numbers.
            limit: the limit of the first compilation.
            device: its name, for messages.
            group: the cores of its threads, if it has several.
        """
        self._limit = limit
        self._first = compiled(limit)
        self._compile = compiled
        self._lock = threading.Lock()
        self._for_all: Compiled | None = None if self._first.limited else self._first
        self._outputs = {tensor.name: number for number, tensor in enumerate(module.outputs)}
        self._module = module  # the compiled model borrows its weights
        self._device = device
        self._group = group

    @property
    def compiled(self) -> Any:
        """The `openvino.CompiledModel` or `NativeModel` for numbers up to the limit."""
        return self._first.model

    @property
    def guarded(self) -> Mapping[str, float]:
        """By input, the limit for its numbers. None has one if the results are right for all."""
        if not self._first.limited or self._limit is None:
            return {}
        return dict.fromkeys(self._first.inputs, self._limit)

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> "_OpenVinoBound":
        if self._group is not None:
            self._group.bind()
        bound = _OpenVinoBound(self)
        for tensor in self._module.inputs:
            bound.set_input(tensor.name, inputs[tensor.name])
        for tensor in self._module.outputs:
            bound.set_output(tensor.name, outputs[tensor.name])
        return bound

    def request(self) -> "_InferRequest":
        """An infer request for numbers up to the limit."""
        return _InferRequest(self._first, self._outputs, self._device)

    def request_for_all(self) -> "_InferRequest":
        """An infer request for numbers of any size, NaN and infinities. Its model is compiled at
        the first call."""
        with self._lock:
            if self._for_all is None:
                self._for_all = self._compile(None)
        return _InferRequest(self._for_all, self._outputs, self._device)

    def fits(self, arrays: Mapping[str, Array]) -> bool:
        """Whether `request` computes the same results as ONNX Runtime for these inputs."""
        return not any(exceeds(arrays[name], limit) for name, limit in self.guarded.items())


def exceeds(values: Array, limit: float) -> bool:
    """Whether an element is larger than ``limit`` in magnitude, or NaN."""
    if values.dtype.kind != "f" or not values.size:
        return False
    # NumPy is slow for float16. Without their sign bits, such numbers are ordered like integers.
    if values.dtype.itemsize == 2:
        return bool((values.view(np.uint16) & 0x7FFF).max() > np.float16(limit).view(np.uint16))
    return not (values.max() <= limit and values.min() >= -limit)


class _OpenVinoBound:
    """Infer requests that read and write the caller's arrays: nothing is copied."""

    def __init__(self, program: OpenVinoProgram) -> None:
        self._program = program
        self._usual = program.request()
        self._unusual: _InferRequest | None = None
        self._read: dict[str, Array] = {}
        self._written: dict[str, Array] = {}
        self._cells: dict[str, ctypes.c_void_p] = {}
        """By input, a pointer to its numbers, which guards read."""

    @property
    def native(self) -> Sequence[NativeCall]:
        call = self._usual.native
        limits = {n: limit for n, limit in self._program.guarded.items() if _is_real(self._read[n])}
        if call is None or any(self._read[name].dtype != np.float32 for name in limits):
            return ()
        guards = [
            Guard(ctypes.addressof(self._cells[name]), self._read[name].size, limit)
            for name, limit in limits.items()
        ]
        function, argument = call
        return (NativeCall(function, (argument,), guards=tuple(guards), otherwise=self.run),)

    def failure(self, result: int) -> ExecutionError:
        return self._usual.failure(result)

    def set_input(self, name: str, tensor: Array) -> None:
        if self._read.get(name) is tensor:
            return  # the caller fills the same array again
        self._read[name] = tensor
        self._cells.setdefault(name, ctypes.c_void_p()).value = address_of(tensor)
        for request in self._requests():
            request.read(name, tensor)

    def set_output(self, name: str, tensor: Array) -> None:
        self._written[name] = tensor
        for request in self._requests():
            request.write(name, tensor)

    def _requests(self) -> list["_InferRequest"]:
        return [self._usual] if self._unusual is None else [self._usual, self._unusual]

    def run(self) -> None:
        if self._program.fits(self._read):
            self._usual.run(self._read)
            return
        if self._unusual is None:
            request = self._program.request_for_all()
            for name, tensor in self._read.items():
                request.read(name, tensor)
            for name, tensor in self._written.items():
                request.write(name, tensor)
            self._unusual = request
        self._unusual.run(self._read)


class _PythonRequest:
    """An `openvino.InferRequest` on the caller's arrays."""

    def __init__(self, model: Any) -> None:
        import openvino

        self._request, self._tensor = model.create_infer_request(), openvino.Tensor

    def set_input(self, number: int, array: Array) -> None:
        self._request.set_input_tensor(number, self._tensor(array, shared_memory=True))

    def set_output(self, number: int, array: Array) -> None:
        self._request.set_output_tensor(number, self._tensor(array, shared_memory=True))

    def infer(self) -> None:
        # Without share_outputs, the outputs would be copied into a dictionary of results.
        self._request.infer(None, share_outputs=True)

    def output(self, number: int) -> Any:
        """The array of an output that the caller has not set."""
        return self._request.get_output_tensor(number).data


class _InferRequest:
    """A request for a compiled module, with checks of its indices."""

    def __init__(self, compiled: Compiled, outputs: Mapping[str, int], device: str) -> None:
        model = compiled.model
        is_native = isinstance(model, NativeModel)
        self._request = model.request() if is_native else _PythonRequest(model)
        self._inputs, self._outputs, self._axes = compiled.inputs, outputs, compiled.axes
        self._device = device

    @property
    def native(self) -> tuple[int, int] | None:
        """The C function that does what `run` does, and its argument; None if there is none."""
        return None if isinstance(self._request, _PythonRequest) else self._request.call

    def failure(self, status: int) -> ExecutionError:
        """The error for a status that this function has returned."""
        assert not isinstance(self._request, _PythonRequest)  # `native` says so
        return ExecutionError(f"{self._device}: {cause(self._request.error(status))}")

    def read(self, name: str, array: Array) -> None:
        if name in self._inputs:  # else no operator reads it
            self._share(self._request.set_input, self._inputs[name], writable(array))

    def write(self, name: str, array: Array) -> None:
        self._share(self._request.set_output, self._outputs[name], array)

    def _share(self, setter: Callable[[int, Array], None], number: int, array: Array) -> None:
        try:
            setter(number, array)
        except Exception as error:
            if (failure := execution_error(self._device, error)) is None:
                raise
            raise failure from error

    def run(self, arrays: Mapping[str, Array]) -> None:
        try:
            if self._axes:
                check_fed(self._axes, arrays)
            self._request.infer()
            if self._axes:
                check_computed(self._axes, self._ends())
        except ExecutionError as error:
            raise ExecutionError(f"{self._device}: {error}") from None
        except Exception as error:
            if (failure := execution_error(self._device, error)) is None:
                raise
            raise failure from error

    def _ends(self) -> list[int]:
        """The least and the largest index for each axis with computed indices."""
        assert isinstance(self._request, _PythonRequest)  # others have no axes
        count = 2 * sum(axis.fed is None for axis in self._axes)
        first = len(self._outputs)
        return [int(self._request.output(first + number).item()) for number in range(count)]


def _is_real(array: Array) -> bool:
    return array.dtype.kind == "f"
