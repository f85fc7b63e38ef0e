"""Layers of convolutional and recurrent networks, recorded as an `onnx_ir` graph.

Each method of `Builder` records one layer and returns the tensor it makes, float32 and of static
shape.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from coexec.research.zoo.recording import dims
from coexec.research.zoo.simple_layers import SimpleLayers
from coexec.research.zoo.weights import BIAS_STD

__all__ = ["Builder", "Pair", "dims"]

Pair = int | tuple[int, int]
"""One number for height and width, or (height, width)."""


class Builder(SimpleLayers):
    """All layers of a network; `finish` turns the record into a model.

    `input` is the only input, "x". Layer names are paths such as "fire2/squeeze1x1/conv"; the
    layer's output tensor has the same name, its weights are "<layer>/weight" and "<layer>/bias".
    `gain` multiplies the default scale of weights (`weights.filter_std`).
    """

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

    def conv_relu(
        self, x: ir.Value, name: str, channels: int, kernel: Pair, stride: int = 1, pad: Pair = 0
    ) -> ir.Value:
        """Conv "<name>/conv", then Relu "<name>/relu"."""
        y = self.conv(x, f"{name}/conv", channels, kernel, stride=stride, pad=pad)
        return self.relu(y, f"{name}/relu")

    def conv_leaky_relu(
        self, x: ir.Value, name: str, channels: int, kernel: int, slope: float
    ) -> ir.Value:
        """Conv "<name>/conv" that keeps the resolution, then LeakyRelu "<name>/leaky_relu"."""
        y = self.conv(x, f"{name}/conv", channels, kernel, pad=kernel // 2)
        return self.leaky_relu(y, f"{name}/leaky_relu", slope)

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
        """[1, C, H, W] -> [1, C, H', W']; `ceil_mode` keeps a last window beyond the edge."""
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
        """[1, C, H, W] -> [1, C, H', W']; `count_include_pad`: padding counts as zeros."""
        window = _window(kernel, stride, pad)
        out = [*dims(x)[:2], *_slide(dims(x), window)]
        count = int(count_include_pad and pad > 0)
        return self._layer("AveragePool", [x], name, out, **window, count_include_pad=count)

    def global_average_pool(self, x: ir.Value, name: str) -> ir.Value:
        """[1, C, H, W] -> [1, C, 1, 1]."""
        return self._layer("GlobalAveragePool", [x], name, [*dims(x)[:2], 1, 1])

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
    """Height and width of the output of a window that slides over [1, C, H, W]."""
    round_ = math.ceil if ceil_mode else math.floor
    kernel, stride, pad = window["kernel_shape"], window["strides"], window["pads"]
    dilation = window.get("dilations", [1, 1])
    extent = [dilation[i] * (kernel[i] - 1) + 1 for i in range(2)]
    return [round_((shape[2 + i] + 2 * pad[i] - extent[i]) / stride[i]) + 1 for i in range(2)]
