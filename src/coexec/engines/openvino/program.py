"""A compiled model of OpenVINO on memory of the caller."""

from collections.abc import Callable, Mapping
from typing import Any

from coexec.engines.openvino.cores import CoreGroup
from coexec.engines.openvino.failures import execution_error
from coexec.engines.openvino.reading import writable
from coexec.frontend.module import Array, Module

__all__ = ["OpenVinoProgram"]


class OpenVinoProgram:
    """One `openvino.CompiledModel`."""

    def __init__(
        self,
        module: Module,
        compiled: Any,
        inputs: Mapping[str, int],
        device: str,
        group: CoreGroup | None,
    ) -> None:
        """Wrap a compiled model.

        Args:
            module: what it was compiled from.
            compiled: the `openvino.CompiledModel`.
            inputs: the numbers of the inputs that it has, by name.
            device: its name, for messages.
            group: where its threads belong, if it has several.
        """
        self.compiled = compiled
        self._inputs = inputs
        self._outputs = {tensor.name: number for number, tensor in enumerate(module.outputs)}
        self._module = module  # the compiled model borrows its weights
        self._device = device
        self._group = group

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> "_OpenVinoBound":
        if self._group is not None:
            self._group.bind()
        bound = _OpenVinoBound(
            self.compiled.create_infer_request(), self._inputs, self._outputs, self._device
        )
        for tensor in self._module.inputs:
            bound.set_input(tensor.name, inputs[tensor.name])
        for tensor in self._module.outputs:
            bound.set_output(tensor.name, outputs[tensor.name])
        return bound


class _OpenVinoBound:
    """An infer request that reads and writes arrays of the caller: nothing is copied."""

    def __init__(
        self, request: Any, inputs: Mapping[str, int], outputs: Mapping[str, int], device: str
    ) -> None:
        import openvino

        self._request = request
        self._tensor = openvino.Tensor
        self._inputs, self._outputs = inputs, outputs
        self._device = device
        self._held: dict[str, Array] = {}

    def set_input(self, name: str, tensor: Array) -> None:
        if self._held.get(name) is tensor or name not in self._inputs:
            return  # a caller that fills one array again and again; or no operator reads it
        self._held[name] = tensor
        self._share(self._request.set_input_tensor, self._inputs[name], writable(tensor))

    def set_output(self, name: str, tensor: Array) -> None:
        self._held[name] = tensor
        self._share(self._request.set_output_tensor, self._outputs[name], tensor)

    def _share(self, setter: Callable[[int, Any], None], number: int, array: Array) -> None:
        try:
            setter(number, self._tensor(array, shared_memory=True))
        except Exception as error:
            if (ours := execution_error(self._device, error)) is None:
                raise
            raise ours from error

    def run(self) -> None:
        try:
            # Without share_outputs, the outputs would be copied into a dictionary of results.
            self._request.infer(None, share_outputs=True)
        except Exception as error:
            if (ours := execution_error(self._device, error)) is None:
                raise
            raise ours from error
