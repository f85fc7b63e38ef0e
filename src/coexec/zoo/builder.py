"""Layers of convolutional and recurrent networks, recorded as an `onnx_ir` graph.

Each method of `Builder` records one layer and returns the tensor it makes, float32 and of static
shape. Weights are made from their names when first read: building a graph costs milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir import tape

from coexec.zoo.weights import BIAS_STD, CENTRING, filter_std, random_tensor

OPSET = 17
IR_VERSION = 8

Pair = int | tuple[int, int]
"""One number for height and width, or (height, width)."""


class Builder:
    """Records the layers of one network; `finish` turns the record into a model.

    `input` is the only input, "x". Layer names are paths such as "fire2/squeeze1x1/conv"; the
    layer's output tensor has the same name, its weights are "<layer>/weight" and "<layer>/bias".
    `gain` multiplies the default scale of weights (`weights.filter_std`).
    """

    def __init__(self, name: str, input_shape: Sequence[int]) -> None:
        self.input = ir.val("x", ir.DataType.FLOAT, input_shape)
        self._name = name
        self._tape = tape.Tape()
        self._constants: dict[str, ir.Value] = {}

    def conv(
        self,
        x: ir.Value,
        name: str,
        channels: int,
        kernel: Pair,
        *,
        stride: int = 1,
        pad: Pair = 0,
        dilation: int = 1,
        group: int = 1,
        bias: bool = True,
        gain: float = 1.0,
        centred: bool | None = None,
    ) -> ir.Value:
        """[1, C, H, W] -> [1, channels, H', W']; `pad` is symmetric.

        Filters lose part of their mean if `centred`; by default, if they mix inner channels.
        """
        window = _window(kernel, stride, pad, dilation)
        shape = (channels, dims(x)[1] // group, *_pair(kernel))
        if centred is None:
            centred = group == 1 and x is not self.input
        weights = self._weights(name, shape, gain, centred=centred, bias=bias)
        out = [1, channels, *_slide(dims(x), window)]
        return self._layer("Conv", [x, *weights], name, out, **window, group=group)

    def relu(self, x: ir.Value, name: str) -> ir.Value:
        """max(x, 0), any shape."""
        return self._layer("Relu", [x], name, dims(x))

    def relu6(self, x: ir.Value, name: str) -> ir.Value:
        """Clip to [0, 6], any shape; all Clips of a network share the two bounds."""
        low = self._constant("relu6/min", np.array(0, np.float32))
        high = self._constant("relu6/max", np.array(6, np.float32))
        return self._layer("Clip", [x, low, high], name, dims(x))

    def hard_swish(self, x: ir.Value, name: str) -> ir.Value:
        """x * min(max(x + 3, 0), 6) / 6, any shape."""
        return self._layer("HardSwish", [x], name, dims(x))

    def hard_sigmoid(self, x: ir.Value, name: str) -> ir.Value:
        """min(max(x + 3, 0), 6) / 6, any shape."""
        return self._layer("HardSigmoid", [x], name, dims(x), alpha=1 / 6)

    def conv_relu(
        self, x: ir.Value, name: str, channels: int, kernel: Pair, stride: int = 1, pad: Pair = 0
    ) -> ir.Value:
        """Conv "<name>/conv", then Relu "<name>/relu"."""
        y = self.conv(x, f"{name}/conv", channels, kernel, stride=stride, pad=pad)
        return self.relu(y, f"{name}/relu")

    def max_pool(
        self,
        x: ir.Value,
        name: str,
        kernel: int,
        stride: int,
        pad: int = 0,
        *,
        ceil_mode: bool = False,
    ) -> ir.Value:
        """[1, C, H, W] -> [1, C, H', W']; `ceil_mode` keeps a last window that hangs over."""
        window = _window(kernel, stride, pad)
        out = [*dims(x)[:2], *_slide(dims(x), window, ceil_mode=ceil_mode)]
        return self._layer("MaxPool", [x], name, out, **window, ceil_mode=int(ceil_mode))

    def average_pool(
        self,
        x: ir.Value,
        name: str,
        kernel: int,
        stride: int,
        pad: int = 0,
        *,
        count_include_pad: bool = True,
    ) -> ir.Value:
        """[1, C, H, W] -> [1, C, H', W']; padding counts as zeros, or does not count."""
        window = _window(kernel, stride, pad)
        out = [*dims(x)[:2], *_slide(dims(x), window)]
        count = int(count_include_pad and pad > 0)
        return self._layer("AveragePool", [x], name, out, **window, count_include_pad=count)

    def global_average_pool(self, x: ir.Value, name: str) -> ir.Value:
        """[1, C, H, W] -> [1, C, 1, 1]."""
        return self._layer("GlobalAveragePool", [x], name, [*dims(x)[:2], 1, 1])

    def resize(self, x: ir.Value, name: str, height: int, width: int) -> ir.Value:
        """[1, C, H, W] -> [1, C, height, width], bilinear."""
        out = [*dims(x)[:2], height, width]
        sizes = self._constant(f"{name}/sizes", np.array(out, np.int64))
        return self._layer("Resize", [x, None, None, sizes], name, out, mode="linear")

    def flatten(self, x: ir.Value, name: str) -> ir.Value:
        """[1, ...] -> [1, product of the rest]."""
        return self._layer("Flatten", [x], name, [1, math.prod(dims(x)[1:])], axis=1)

    def concat(self, xs: Sequence[ir.Value], name: str) -> ir.Value:
        """Joins [1, C1, H, W], [1, C2, H, W], ... to [1, C1 + C2 + ..., H, W]."""
        out = list(dims(xs[0]))
        out[1] = sum(dims(x)[1] for x in xs)
        return self._layer("Concat", xs, name, out, axis=1)

    def add(self, a: ir.Value, b: ir.Value, name: str) -> ir.Value:
        """Sum of two tensors of the same shape."""
        return self._layer("Add", [a, b], name, dims(a))

    def mul(self, gate: ir.Value, x: ir.Value, name: str) -> ir.Value:
        """[1, C, 1, 1] times [1, C, H, W] -> [1, C, H, W]."""
        return self._layer("Mul", [gate, x], name, dims(x))

    def gemm(self, x: ir.Value, name: str, features: int, *, gain: float = 1.0) -> ir.Value:
        """Fully connected layer: [1, K] -> [1, features]; weight [features, K]."""
        weights = self._weights(name, (features, dims(x)[1]), gain, centred=True)
        return self._layer("Gemm", [x, *weights], name, [1, features], transB=1)

    def lstm(self, x: ir.Value, name: str, hidden: int) -> ir.Value:
        """One forward LSTM: [steps, batch, features] -> [steps, 1, batch, hidden].

        The state starts at zero: the ONNX default for the omitted `initial_h` and `initial_c`.
        """
        steps, batch, features = dims(x)
        w = self._weight(f"{name}/w", (1, 4 * hidden, features), 1 / math.sqrt(features))
        r = self._weight(f"{name}/r", (1, 4 * hidden, hidden), 1 / math.sqrt(hidden))
        b = self._weight(f"{name}/b", (1, 8 * hidden), BIAS_STD)
        out = [steps, 1, batch, hidden]
        return self._layer("LSTM", [x, w, r, b], name, out, hidden_size=hidden)

    def squeeze(self, x: ir.Value, name: str, axis: int) -> ir.Value:
        """Drops `axis`, whose size is 1."""
        axes = self._constant(f"{name}/axes", np.array([axis], np.int64))
        out = [d for i, d in enumerate(dims(x)) if i != axis]
        return self._layer("Squeeze", [x, axes], name, out)

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
        return ir.Model(graph, ir_version=IR_VERSION, producer_name="coexec.zoo")

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
    """The static shape of a tensor that a `Builder` made."""
    assert x.shape is not None
    return x.shape.numpy()


def _pair(value: Pair) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _window(kernel: Pair, stride: int, pad: Pair, dilation: int = 1) -> dict[str, list[int]]:
    """The ONNX attributes of a sliding window with equal padding at both ends."""
    window = {
        "kernel_shape": [*_pair(kernel)],
        "strides": [stride, stride],
        "pads": [*_pair(pad), *_pair(pad)],
    }
    # AveragePool has no dilations before opset 19.
    return window if dilation == 1 else window | {"dilations": [dilation, dilation]}


def _slide(
    shape: Sequence[int], window: dict[str, list[int]], *, ceil_mode: bool = False
) -> list[int]:
    """Height and width of what a window makes of [1, C, H, W]."""
    round_ = math.ceil if ceil_mode else math.floor
    kernel, stride, pad = window["kernel_shape"], window["strides"], window["pads"]
    dilation = window.get("dilations", [1, 1])
    span = [dilation[i] * (kernel[i] - 1) + 1 for i in range(2)]
    return [round_((shape[2 + i] + 2 * pad[i] - span[i]) / stride[i]) + 1 for i in range(2)]
