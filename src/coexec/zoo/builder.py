"""Layers of convolutional and recurrent networks, recorded as an `onnx_ir` graph.

Each method of `Builder` records one layer and returns the tensor it makes, float32 and of static
shape. Weights are made from their names when first read: building a graph costs milliseconds.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from onnx_ir import tape

OPSET = 17
IR_VERSION = 8
BIAS_STD = 0.1
CENTRING = 0.5
"""The part of its mean that a filter behind a ReLU loses.

ReLU outputs are positive. Plain random filters pass on what they have in common and average the
rest away: after fifty layers all inputs give nearly the same output, and no test sees a wrong
kernel. Filters of mean zero make rounding errors grow until no comparison holds. Half of the mean
keeps both in bounds.
"""

Pair = int | tuple[int, int]
"""One number for height and width, or (height, width)."""


class Builder:
    """Records the layers of one network; `finish` turns the record into a model.

    `input` is the only input, "x". Layer names are paths such as "fire2/squeeze1x1/conv"; the
    layer's output tensor has the same name, its weights are "<layer>/weight" and "<layer>/bias".
    `gain` multiplies the default weight scale, which keeps the variance of what lies before the
    ReLUs (He et al. 2015, arXiv:1502.01852).
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
        group: int = 1,
        gain: float = 1.0,
    ) -> ir.Value:
        """Conv with bias: [1, C, H, W] -> [1, channels, H', W']; `pad` is symmetric."""
        window = _window(kernel, stride, pad)
        shape = (channels, dims(x)[1] // group, *_pair(kernel))
        weight, bias = self._weights(name, shape, gain, centred=group == 1 and x is not self.input)
        out = [1, channels, *_slide(dims(x), window)]
        return self._layer("Conv", [x, weight, bias], name, out, **window, group=group)

    def relu(self, x: ir.Value, name: str) -> ir.Value:
        """max(x, 0), any shape."""
        return self._layer("Relu", [x], name, dims(x))

    def relu6(self, x: ir.Value, name: str) -> ir.Value:
        """Clip to [0, 6], any shape; all Clips of a network share the two bounds."""
        low = self._constant("relu6/min", np.array(0, np.float32))
        high = self._constant("relu6/max", np.array(6, np.float32))
        return self._layer("Clip", [x, low, high], name, dims(x))

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
        self, x: ir.Value, name: str, kernel: int, stride: int, pad: int = 0
    ) -> ir.Value:
        """[1, C, H, W] -> [1, C, H', W']; padding counts as zeros, as PyTorch's default does."""
        window = _window(kernel, stride, pad)
        out = [*dims(x)[:2], *_slide(dims(x), window)]
        return self._layer("AveragePool", [x], name, out, **window, count_include_pad=int(pad > 0))

    def global_average_pool(self, x: ir.Value, name: str) -> ir.Value:
        """[1, C, H, W] -> [1, C, 1, 1]."""
        return self._layer("GlobalAveragePool", [x], name, [*dims(x)[:2], 1, 1])

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

    def gemm(self, x: ir.Value, name: str, features: int, *, gain: float = 1.0) -> ir.Value:
        """Fully connected layer: [1, K] -> [1, features]; weight [features, K]."""
        weight, bias = self._weights(name, (features, dims(x)[1]), gain, centred=True)
        return self._layer("Gemm", [x, weight, bias], name, [1, features], transB=1)

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
        inputs: Sequence[ir.Value],
        name: str,
        shape: Sequence[int],
        **attributes: int | list[int],
    ) -> ir.Value:
        output = ir.val(name, ir.DataType.FLOAT, shape)
        return self._tape.op(op_type, inputs, attributes, name=name, output=output)

    def _weights(
        self, name: str, shape: Sequence[int], gain: float, *, centred: bool
    ) -> tuple[ir.Value, ir.Value]:
        centring = CENTRING if centred else 0
        # a = relu(unit normal): E[a^2] = 1/2, E[a]^2 = 1/(2 pi); (1 - centring)^2 of that stays
        passed = 1 - (1 - (1 - centring) ** 2) / math.pi
        std = gain * math.sqrt(2 / passed / math.prod(shape[1:]))
        weight = self._weight(f"{name}/weight", shape, std, centring)
        return weight, self._weight(f"{name}/bias", shape[:1], BIAS_STD)

    def _weight(self, name: str, shape: Sequence[int], std: float, centring: float = 0) -> ir.Value:
        make = partial(random_tensor, name, tuple(shape), std, centring)
        lazy = ir.LazyTensor(make, ir.DataType.FLOAT, ir.Shape(shape), cache=True, name=name)
        return self._tape.initializer(lazy)

    def _constant(self, name: str, value: npt.NDArray[np.generic]) -> ir.Value:
        if name not in self._constants:
            self._constants[name] = self._tape.initializer(ir.tensor(value, name=name))
        return self._constants[name]


def random_tensor(
    name: str, shape: tuple[int, ...], std: float, centring: float
) -> ir.TensorProtocol:
    """Uniform float32 numbers of mean zero that depend on nothing but the arguments.

    Each filter (index of the first axis) loses the part `centring` of its own mean.
    """
    values = np.random.default_rng(zlib.crc32(name.encode())).random(shape, dtype=np.float32)
    filters = values.reshape(shape[0], -1)
    mean = filters.mean(axis=1, keepdims=True, dtype=np.float64)
    filters -= (0.5 + centring * (mean - 0.5)).astype(np.float32)
    filters *= np.float32(std * math.sqrt(12))  # numbers uniform in [0, 1) have variance 1/12
    return ir.tensor(values, name=name)


def dims(x: ir.Value) -> tuple[int, ...]:
    """The static shape of a tensor that a `Builder` made."""
    assert x.shape is not None
    return x.shape.numpy()


def _pair(value: Pair) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def _window(kernel: Pair, stride: int, pad: Pair) -> dict[str, list[int]]:
    """The ONNX attributes of a sliding window with equal padding at both ends."""
    return {
        "kernel_shape": [*_pair(kernel)],
        "strides": [stride, stride],
        "pads": [*_pair(pad), *_pair(pad)],
    }


def _slide(
    shape: Sequence[int], window: dict[str, list[int]], *, ceil_mode: bool = False
) -> list[int]:
    """Height and width of what a window makes of [1, C, H, W]."""
    round_ = math.ceil if ceil_mode else math.floor
    kernel, stride, pad = window["kernel_shape"], window["strides"], window["pads"]
    return [round_((shape[2 + i] + 2 * pad[i] - kernel[i]) / stride[i]) + 1 for i in range(2)]
