"""A compiled model of OpenVINO that computes on the caller's memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from coexec.arrays import Array
from coexec.engines.base import NativeCall
from coexec.engines.openvino.c_api import NativeModel
from coexec.engines.openvino.cores import CoreGroup
from coexec.engines.openvino.failures import cause, execution_error
from coexec.engines.openvino.reading import writable
from coexec.errors import ExecutionError
from coexec.lowering.module import Module


class OpenVinoProgram:
    """A module that OpenVINO has compiled."""

    def __init__(
        self,
        module: Module,
        compiled: Any,
        inputs: Mapping[str, int],
        *,
        device: str,
        group: CoreGroup | None,
    ) -> None:
        """
        Args:
            module: the operators, with their weights, which the compiled model borrows.
            compiled: an `openvino.CompiledModel`, or a `NativeModel`.
            inputs: by name, the numbers of its inputs.
            device: its name, for messages.
            group: the cores of its threads, if it has several.
        """
        self.module, self.compiled, self.inputs = module, compiled, inputs
        self.device, self._group = device, group

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> "_OpenVinoBound":
        if self._group is not None:
            self._group.bind()
        bound = _OpenVinoBound(self)
        for tensor in self.module.inputs:
            bound.set_input(tensor.name, inputs[tensor.name])
        for tensor in self.module.outputs:
            bound.set_output(tensor.name, outputs[tensor.name])
        return bound


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


class _OpenVinoBound:
    """An infer request that reads and writes the caller's arrays: nothing is copied."""

    def __init__(self, program: OpenVinoProgram) -> None:
        model = program.compiled
        is_native = isinstance(model, NativeModel)
        self._request = model.request() if is_native else _PythonRequest(model)
        self._inputs, self._device = program.inputs, program.device
        self._outputs = {tensor.name: i for i, tensor in enumerate(program.module.outputs)}
        self._read: dict[str, Array] = {}

    @property
    def native(self) -> Sequence[NativeCall]:
        if isinstance(self._request, _PythonRequest):
            return ()
        function, argument = self._request.call
        return (NativeCall(function, (argument,)),)

    def failure(self, result: int) -> ExecutionError:
        assert not isinstance(self._request, _PythonRequest)  # `native` says so
        return ExecutionError(f"{self._device}: {cause(self._request.error(result))}")

    def set_input(self, name: str, tensor: Array) -> None:
        if self._read.get(name) is tensor:
            return  # the caller fills the same array again
        self._read[name] = tensor
        if name in self._inputs:  # else no operator reads it
            self._share(self._request.set_input, self._inputs[name], writable(tensor))

    def set_output(self, name: str, tensor: Array) -> None:
        self._share(self._request.set_output, self._outputs[name], tensor)

    def _share(self, setter: Callable[[int, Array], None], number: int, array: Array) -> None:
        try:
            setter(number, array)
        except Exception as error:
            if (failure := execution_error(self._device, error)) is None:
                raise
            raise failure from error

    def run(self) -> None:
        try:
            self._request.infer()
        except Exception as error:
            if (failure := execution_error(self._device, error)) is None:
                raise
            raise failure from error
