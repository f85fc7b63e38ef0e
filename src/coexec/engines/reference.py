"""The slow engine that defines correct results: the ONNX project's own reference evaluator."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from coexec.arrays import Array
from coexec.engines.base import AfterFork, OpenEngine
from coexec.engines.null import Pretended
from coexec.errors import ExecutionError
from coexec.hardware.hardware import Device, EngineInfo
from coexec.lowering.module import Module


class ReferenceEngine(OpenEngine):
    """Runs each module in numpy, operator by operator, as the ONNX standard describes it."""

    after_fork: AfterFork = "works"

    def compile(self, module: Module) -> Any:
        return _ReferenceProgram(module, self.device.name)


class Reference(Pretended):
    """Devices "reference:0" to "reference:15"."""

    name = "reference"
    kinds = ("reference",)
    distributions = ("onnx",)

    def open(
        self, device: Device, info: EngineInfo, options: Any, folder: Path | None
    ) -> OpenEngine:
        return ReferenceEngine(device, info)


def evaluator_of(module: Module) -> Any:
    """The ONNX project's evaluator of a module: its ``run(names, inputs)`` returns the outputs."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    proto = onnx.load_model_from_string(module.proto)
    for i, initializer in enumerate(proto.graph.initializer):
        if initializer.name in module.weights:
            value = onnx.numpy_helper.from_array(
                np.asarray(module.weights[initializer.name]), initializer.name
            )
            proto.graph.initializer[i].CopyFrom(value)
    return ReferenceEvaluator(proto)


class _ReferenceProgram:
    def __init__(self, module: Module, device: str) -> None:
        self._evaluator = evaluator_of(module)
        self._device = device

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> "_BoundEvaluator":
        return _BoundEvaluator(self._evaluator, self._device, dict(inputs), dict(outputs))


class _BoundEvaluator:
    def __init__(
        self,
        evaluator: Any,
        device: str,
        inputs: dict[str, Array],
        outputs: dict[str, Array],
    ) -> None:
        self._evaluator, self._device = evaluator, device
        self._inputs, self._outputs = inputs, outputs

    def set_input(self, name: str, tensor: Array) -> None:
        self._inputs[name] = tensor

    def set_output(self, name: str, tensor: Array) -> None:
        self._outputs[name] = tensor

    def run(self) -> None:
        try:
            results = self._evaluator.run(list(self._outputs), self._inputs)
        except Exception as error:
            raise ExecutionError(f"{self._device}: {error}") from error
        for tensor, result in zip(self._outputs.values(), results, strict=True):
            tensor[...] = result
