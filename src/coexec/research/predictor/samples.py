"""Generated networks: predictors learn from the times of their tasks.

Each network consists of chains of layers; a layer reads the layer before it, and some chains begin
in the middle of other chains. So tensors have the same layouts as in a real network, and caches are
as cold. Sizes are drawn log-uniformly from the range of real networks.
"""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from coexec.research.zoo.layers import BIAS_STD, Layers, dims, filter_std, slide, window_of

_MOST_MACS = 2e9
"""Largest number of multiply-accumulates of a layer: 15 to 30 ms on a core."""
_LEAST_MACS, _LEAST_DEPTHWISE_MACS = 1e6, 1e5
"""Smallest number for a convolution: a smaller one takes little more than its launch, and it is
never divided."""
_MOST_BYTES = 16e6
"""Largest size of a tensor or weight: a larger layer takes too long for what it adds."""
_LONGEST = 12
"""Largest number of layers in a chain."""
_INPUTS = 0.25
"""Share of chains that begin with an input."""
_SMALLEST = 4
"""Smallest number of rows and columns of a feature map on which a chain continues."""


class _Filter(NamedTuple):
    """Kernel, stride and dilation of a convolution. At stride 1 it keeps the size."""

    kernel: tuple[int, int]
    stride: int = 1
    dilation: int = 1

    @property
    def pad(self) -> tuple[int, int]:
        height, width = self.kernel
        return self.dilation * (height - 1) // 2, self.dilation * (width - 1) // 2


def sample_network(seed: int, layers: int) -> ir.Model:
    """A network of at least ``layers`` layers; the same for the same arguments."""
    return _SampleNetwork(np.random.default_rng(seed), f"samples {seed}").finished(layers)


def _fits(*shape: int) -> bool:
    return 4 * math.prod(shape) <= _MOST_BYTES and min(shape) > 0


class _SampleNetwork:
    """A network under construction. A layer that would be too large or too small is left out."""

    def __init__(self, rng: np.random.Generator, name: str) -> None:
        self._rng, self._layers = rng, Layers(name)
        self._ends: list[ir.Value] = []
        self._images: list[ir.Value] = []

    def finished(self, layers: int) -> ir.Model:
        while self._layers.count < layers:
            self._chain()
        return self._layers.model(self._ends)

    def _chain(self) -> None:
        kinds, shares = zip(*_LAYERS, strict=True)
        chances = np.array(shares) / sum(shares)
        image = self._start()
        for _ in range(self._rng.integers(4, _LONGEST + 1)):
            layer: Callable[[_SampleNetwork, ir.Value], ir.Value | None] = kinds[
                self._rng.choice(len(kinds), p=chances)
            ]
            image = layer(self, image) or image
            self._images.append(image)
            if min(dims(image)[2:]) < _SMALLEST:
                break
        self._head(image)

    def _start(self) -> ir.Value:
        """A new input, or a feature map of another chain: most layers read results of layers."""
        if not self._images or self._rng.random() < _INPUTS:
            return self._input()
        return self._images[self._rng.integers(len(self._images))]

    def _input(self) -> ir.Value:
        while True:
            height = self._size(12, 400)
            width = height if self._rng.random() < 0.6 else self._size(12, 400)
            channels = 3 if self._rng.random() < 0.5 else self._channels()
            if _fits(channels, height, width):
                name = f"x{len(self._layers.inputs)}"
                return self._layers.add_input(name, [1, channels, height, width])

    def _size(self, low: float, high: float) -> int:
        """A log-uniform random number from ``low`` to ``high``."""
        return round(math.exp(self._rng.uniform(math.log(low), math.log(high))))

    def _channels(self) -> int:
        """A random number of channels, mostly whole blocks, as in real networks."""
        multiple = int(self._rng.choice([16, 8, 4], p=[0.65, 0.2, 0.15]))
        return max(1, round(self._size(12, 1024) / multiple)) * multiple

    def conv(self, image: ir.Value) -> ir.Value | None:
        """A convolution that mixes channels, with a random addition and activation after it."""
        kinds, shares = zip(*_FILTERS, strict=True)
        chosen: _Filter = kinds[self._rng.choice(len(kinds), p=np.array(shares) / sum(shares))]
        channels = dims(image)[1]
        same = chosen.stride == 1 and channels > 3 and self._rng.random() < 0.2
        return self._convolved(image, chosen, channels if same else self._channels())

    def depthwise(self, image: ir.Value) -> ir.Value | None:
        edge = int(self._rng.choice([3, 5, 7], p=[0.6, 0.3, 0.1]))
        stride = 2 if self._rng.random() < 0.25 else 1
        channels = dims(image)[1]
        return self._convolved(image, _Filter((edge, edge), stride), channels, channels)

    def _convolved(
        self, image: ir.Value, chosen: _Filter, channels: int, groups: int = 1
    ) -> ir.Value | None:
        kernel, stride, dilation = chosen
        size = slide(dims(image), window_of(kernel, stride, chosen.pad, dilation))
        weight = (channels, dims(image)[1] // groups, *kernel)
        macs = math.prod(weight) * math.prod(size)
        least = _LEAST_MACS if groups == 1 else _LEAST_DEPTHWISE_MACS
        if not _fits(channels, *size) or not least <= macs <= _MOST_MACS:
            return None
        if not _fits(*weight) or (groups > 1 and channels % 4):
            return None
        result = self._layers.conv(
            image,
            self._next(),
            channels,
            kernel,
            stride=stride,
            pad=chosen.pad,
            dilation=dilation,
            group=groups,
        )
        if dims(result) == dims(image) and self._rng.random() < 0.3:
            result = self._layers.add(result, image, self._next())
        return self._activated(result)

    def _activated(self, image: ir.Value) -> ir.Value:
        kind = self._rng.choice(
            ["Relu", "", "Clip", "LeakyRelu", "HardSwish", "Sigmoid"],
            p=[0.5, 0.3, 0.08, 0.06, 0.03, 0.03],
        )
        if kind == "Clip":
            return self._layers.relu6(image, self._next())
        return self._alike(str(kind), image) if kind else image

    def _alike(self, kind: str, *inputs: ir.Value) -> ir.Value:
        """An operator whose result has the shape of its first input."""
        return self._layers.layer(kind, inputs, self._next(), dims(inputs[0]))

    def pool(self, image: ir.Value) -> ir.Value | None:
        edge, stride = int(self._rng.choice([2, 3])), int(self._rng.choice([1, 2], p=[0.3, 0.7]))
        largest, pad = self._rng.random() < 0.6, (edge - 1) // 2
        if min(slide(dims(image), window_of(edge, stride, pad))) < 1:
            return None
        if largest:
            return self._layers.max_pool(image, self._next(), edge, stride=stride, pad=pad)
        return self._layers.average_pool(
            image, self._next(), edge, stride=stride, pad=pad, count_pad=False
        )

    def elementwise(self, image: ir.Value) -> ir.Value | None:
        """An elementwise operator that is not fused, because another operator reads its input."""
        self._head(image)
        kind = str(self._rng.choice(["Relu", "Sigmoid", "Tanh", "Mul", "Add"]))
        if kind not in ("Mul", "Add"):
            return self._alike(kind, image)
        # An operand with a value for each channel, as in squeeze-and-excitation.
        small = self._layers.weight(f"{self._next()}/weight", (1, dims(image)[1], 1, 1), 1.0)
        return self._alike(kind, image, small)

    def concat(self, image: ir.Value) -> ir.Value | None:
        other = self._convolved(image, _Filter((1, 1)), self._channels())
        if other is None or not _fits(dims(other)[1] + dims(image)[1], *dims(image)[2:]):
            return other
        return self._layers.concat([image, other], self._next())

    def transposed(self, image: ir.Value) -> ir.Value | None:
        channels, edge = self._channels(), int(self._rng.choice([2, 4]))
        _, before, height, width = dims(image)
        shape, name = (before, channels, edge, edge), self._next()
        macs = math.prod(shape) * height * width
        if not _fits(channels, 2 * height, 2 * width) or not _fits(*shape) or macs > _MOST_MACS / 4:
            return None
        std = filter_std(math.prod(shape[1:]), centring=0)
        weight = self._layers.weight(f"{name}/weight", shape, std)
        bias = self._layers.weight(f"{name}/bias", (channels,), BIAS_STD)
        attributes = window_of(edge, 2, (edge - 2) // 2)
        out = [1, channels, 2 * height, 2 * width]
        inputs = [image, weight, bias]
        return self._activated(self._layers.layer("ConvTranspose", inputs, name, out, **attributes))

    def _head(self, image: ir.Value) -> None:
        """Global pooling and up to two fully connected layers, as at the end of real networks. So
        the outputs are small: little to write, and little to change in layout."""
        flat = self._layers.global_average_pool(image, self._next())
        flat = self._layers.flatten(flat, self._next())
        for _ in range(self._rng.integers(0, 3)):
            count = self._size(10, 4096)
            if not _fits(dims(flat)[1], count):
                break
            flat = self._layers.gemm(flat, self._next(), count)
        self._ends.append(flat)

    def _next(self) -> str:
        return f"v{self._layers.count}"


_FILTERS: Sequence[tuple[_Filter, float]] = [
    (_Filter((1, 1)), 0.36),
    (_Filter((3, 3)), 0.32),
    (_Filter((3, 3), 2), 0.08),
    (_Filter((1, 1), 2), 0.03),
    (_Filter((5, 5)), 0.05),
    (_Filter((7, 7), 2), 0.03),
    (_Filter((7, 7)), 0.02),
    (_Filter((1, 7)), 0.025),
    (_Filter((7, 1)), 0.025),
    (_Filter((1, 3)), 0.02),
    (_Filter((3, 1)), 0.02),
    (_Filter((3, 3), 1, 2), 0.02),
]
"""Filters of the convolutions that mix channels, each with its share."""

_LAYERS: Sequence[tuple[Callable[[_SampleNetwork, ir.Value], ir.Value | None], float]] = [
    (_SampleNetwork.conv, 0.72),
    (_SampleNetwork.depthwise, 0.12),
    (_SampleNetwork.pool, 0.06),
    (_SampleNetwork.elementwise, 0.05),
    (_SampleNetwork.concat, 0.02),
    (_SampleNetwork.transposed, 0.03),
]
"""Kinds of layers, each with its share."""
