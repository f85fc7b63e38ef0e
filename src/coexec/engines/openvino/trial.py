"""Measure with small models on which cores OpenVINO runs, and whether its integers saturate."""

import os
import threading
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import openvino
from openvino import opset14

from coexec.engines.openvino.library import core

_RUNS = 10
"""Runs of the model: enough to give every thread some work."""


class _Affinity(openvino.Op):  # type: ignore[misc]
    """An operator that returns its input and records which cores the computing thread may use."""

    def __init__(self, inputs: Any, noted: list[set[int]]) -> None:
        super().__init__(self)
        self.noted = noted
        self.set_arguments(inputs)
        self.constructor_validate_and_infer_types()

    def validate_and_infer_types(self) -> None:
        self.set_output_type(0, self.get_input_element_type(0), self.get_input_partial_shape(0))

    def clone_with_new_inputs(self, inputs: Any) -> "_Affinity":
        return _Affinity(inputs, self.noted)

    def has_evaluate(self) -> bool:
        return True

    def evaluate(self, outputs: Any, inputs: Any) -> bool:
        self.noted.append(os.sched_getaffinity(0))
        inputs[0].copy_to(outputs[0])
        return True


def affinity_inside(core_number: int, properties: Mapping[str, Any]) -> set[int]:
    """The cores that a thread bound to ``core_number`` may use while it runs a model.

    The model has a convolution that is large enough for all threads, so that they are started.

    Args:
        properties: the properties with which the model is compiled.
    """
    noted: list[set[int]] = []
    failures: list[BaseException] = []

    def work() -> None:
        os.sched_setaffinity(0, {core_number})
        try:
            compiled = core().compile_model(_model(noted), "CPU", dict(properties))
            request = compiled.create_infer_request()
            for _ in range(_RUNS):
                request.infer({0: np.zeros((1, 16, 64, 64), np.float32)})
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
    return set().union(*noted)


@cache
def saturates() -> bool:
    """Whether products of 8-bit integers are summed in 16 bits on this processor.

    Without VNNI, the sum of two products of 255 and 127 becomes 32767, also in OpenVINO's quantized
    convolutions. Processors with the same name may or may not have VNNI, and some virtual machines
    hide it. So this measures which kernels OpenVINO uses.
    """
    compiled = core().compile_model(_quantized(), "CPU", {"NUM_STREAMS": 0})
    result = compiled({0: np.full((1, 4, 8, 8), _SCALE * 255, np.float32)})[0]
    return bool(result.max() < 0.75 * 4 * 255 * 127 * _SCALE * _SCALE)


_SCALE = 0.5


def _quantized() -> Any:
    """A convolution whose inputs and weights are the largest integers of 8 bits."""
    x = opset14.parameter([1, 4, 8, 8], np.float32)
    scale, low, high = (opset14.constant(np.float32(v)) for v in (_SCALE, 0.0, _SCALE * 255))
    rounded = opset14.fake_quantize(x, low, high, low, high, 256)
    stored = opset14.constant(np.full((8, 4, 1, 1), 127, np.int8))
    weights = opset14.multiply(opset14.convert(stored, "f32"), scale)
    once, none = [1, 1], [0, 0]
    y = opset14.convolution(rounded, weights, once, none, none, once)
    return openvino.Model([y], [x], "integers")


def _model(noted: list[set[int]]) -> Any:
    x = opset14.parameter([1, 16, 64, 64], np.float32)
    weights = opset14.constant(np.zeros((16, 16, 3, 3), np.float32))
    ones = [1, 1]
    y = opset14.convolution(x, weights, ones, ones, ones, ones)
    return openvino.Model([_Affinity([y], noted)], [x], "affinity")
