"""A network while it is recorded as an `onnx_ir` graph: nodes, weights and constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir import tape

from coexec.research.zoo.weights import BIAS_STD, CENTRING, filter_std, random_tensor

__all__ = ["Recording", "dims"]

OPSET = 17
IR_VERSION = 8


class Recording:
    """The nodes and tensors so far; `finish` turns them into a model.

    `input` is the only input, "x". Weights are made from their names when first read: recording a
    network costs milliseconds.
    """

    def __init__(self, name: str, input_shape: Sequence[int]) -> None:
        self.input = ir.val("x", ir.DataType.FLOAT, input_shape)
        self._name = name
        self._tape = tape.Tape()
        self._constants: dict[str, ir.Value] = {}

    def finish(self, y: ir.Value, output_name: str) -> ir.Model:
        """The model whose only output is `y`, renamed to `output_name`."""
        y.name = output_name
        graph = ir.Graph(
            [self.input],
            [y],
            nodes=self._tape.nodes,
            initializers=self._tape.initializers,
            opset_imports={"": OPSET},
            name=self._name,
        )
        return ir.Model(graph, ir_version=IR_VERSION, producer_name="coexec.research.zoo")

    def _layer(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        shape: Sequence[int],
        **attributes: int | float | str | list[int],
    ) -> ir.Value:
        output = ir.val(name, ir.DataType.FLOAT, shape)
        return self._tape.op(op_type, inputs, attributes, name=name, output=output)

    def _weights(
        self, name: str, shape: Sequence[int], gain: float, *, centred: bool, bias: bool = True
    ) -> list[ir.Value]:
        centring = CENTRING if centred else 0
        std = gain * filter_std(math.prod(shape[1:]), centring)
        weights = [self._weight(f"{name}/weight", shape, std, centring)]
        return [*weights, self._weight(f"{name}/bias", shape[:1], BIAS_STD)] if bias else weights

    def _weight(
        self, name: str, shape: Sequence[int], std: float, centring: float = 0, mean: float = 0
    ) -> ir.Value:
        make = partial(random_tensor, name, tuple(shape), std, centring, mean)
        lazy = ir.LazyTensor(make, ir.DataType.FLOAT, ir.Shape(shape), cache=True, name=name)
        return self._tape.initializer(lazy)

    def _constant(self, name: str, value: npt.NDArray[np.generic]) -> ir.Value:
        if name not in self._constants:
            self._constants[name] = self._tape.initializer(ir.tensor(value, name=name))
        return self._constants[name]


def dims(x: ir.Value) -> tuple[int, ...]:
    """The static shape of a tensor that a `Recording` made."""
    assert x.shape is not None
    return x.shape.numpy()
