"""Generated networks: predictors learn from the times of their tasks.

Each network consists of chains of layers; a layer reads the layer before it, and some chains begin
in the middle of other chains. So tensors have the same layouts as in a real network, and caches are
as cold. Sizes are drawn log-uniformly from the range of real networks.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import helper, numpy_helper

__all__ = ["sample_network"]

_OPSET, _IR_VERSION = 17, 8
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


class _Image(NamedTuple):
    """A feature map."""

    name: str
    channels: int
    height: int
    width: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (1, self.channels, self.height, self.width)

    @property
    def fits(self) -> bool:
        return 4 * math.prod(self.shape) <= _MOST_BYTES and min(self.shape) > 0


class _Conv(NamedTuple):
    """Kernel, stride and dilation of a convolution."""

    kernel: tuple[int, int]
    stride: int = 1
    dilation: int = 1

    @property
    def pads(self) -> tuple[int, int]:
        """Padding on each side, by axis; at stride 1 it keeps the size."""
        return tuple(self.dilation * (k - 1) // 2 for k in self.kernel)  # type: ignore[return-value]

    def sizes(self, image: _Image) -> tuple[int, int]:
        """Height and width of the result."""
        return tuple(  # type: ignore[return-value]
            (size + 2 * pad - self.dilation * (k - 1) - 1) // self.stride + 1
            for size, pad, k in zip(
                (image.height, image.width), self.pads, self.kernel, strict=True
            )
        )


def sample_network(seed: int, layers: int) -> onnx.ModelProto:
    """A network of at least ``layers`` layers; the same for the same arguments."""
    return _SampleNetwork(np.random.default_rng(seed)).finished(seed, layers)


class _SampleNetwork:
    """A network under construction. A layer that would be too large or too small is left out."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._ends: list[str] = []
        self._images: list[_Image] = []
        # Values do not change the time. A short random row is repeated, because drawing is slow.
        self._values = rng.standard_normal(1 << 16, np.float32)

    def finished(self, seed: int, layers: int) -> onnx.ModelProto:
        while len(self._nodes) < layers:
            self._chain()
        outputs = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(self._ends)]
        graph = helper.make_graph(
            self._nodes, f"samples {seed}", self._inputs, outputs, self._weights
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", _OPSET)], ir_version=_IR_VERSION
        )
        return onnx.shape_inference.infer_shapes(model, strict_mode=True)

    def _chain(self) -> None:
        kinds, shares = zip(*_LAYERS, strict=True)
        chances = np.array(shares) / sum(shares)
        image = self._start()
        for _ in range(self._rng.integers(4, _LONGEST + 1)):
            layer: Callable[[_SampleNetwork, _Image], _Image | None] = kinds[
                self._rng.choice(len(kinds), p=chances)
            ]
            image = layer(self, image) or image
            self._images.append(image)
            if min(image.height, image.width) < _SMALLEST:
                break
        self._head(image)

    def _start(self) -> _Image:
        """A new input, or a feature map of another chain: most layers read results of layers."""
        if not self._images or self._rng.random() < _INPUTS:
            return self._input()
        return self._images[self._rng.integers(len(self._images))]

    def _input(self) -> _Image:
        while True:
            height = self._size(12, 400)
            width = height if self._rng.random() < 0.6 else self._size(12, 400)
            channels = 3 if self._rng.random() < 0.5 else self._channels()
            image = _Image(f"x{len(self._inputs)}", channels, height, width)
            if image.fits:
                kind = onnx.TensorProto.FLOAT
                info = helper.make_tensor_value_info(image.name, kind, image.shape)
                self._inputs.append(info)
                return image

    def _size(self, low: float, high: float) -> int:
        """A log-uniform random number from ``low`` to ``high``."""
        return round(math.exp(self._rng.uniform(math.log(low), math.log(high))))

    def _channels(self) -> int:
        """A random number of channels, mostly whole blocks, as in real networks."""
        multiple = int(self._rng.choice([16, 8, 4], p=[0.65, 0.2, 0.15]))
        return max(1, round(self._size(12, 1024) / multiple)) * multiple

    def conv(self, image: _Image) -> _Image | None:
        """A convolution that mixes channels, with a random addition and activation after it."""
        kinds, shares = zip(*_FILTERS, strict=True)
        conv: _Conv = kinds[self._rng.choice(len(kinds), p=np.array(shares) / sum(shares))]
        same = conv.stride == 1 and image.channels > 3 and self._rng.random() < 0.2
        return self._convolved(image, conv, image.channels if same else self._channels())

    def depthwise(self, image: _Image) -> _Image | None:
        edge, stride = int(self._rng.choice([3, 5, 7], p=[0.6, 0.3, 0.1])), self._stride()
        conv = _Conv((edge, edge), stride)
        return self._convolved(image, conv, image.channels, image.channels)

    def _stride(self) -> int:
        return 2 if self._rng.random() < 0.25 else 1

    def _convolved(
        self, image: _Image, conv: _Conv, channels: int, groups: int = 1
    ) -> _Image | None:
        height, width = conv.sizes(image)
        shape = (channels, image.channels // groups, *conv.kernel)
        result = _Image(self._next(), channels, height, width)
        macs = math.prod(shape) * height * width
        least = _LEAST_MACS if groups == 1 else _LEAST_DEPTHWISE_MACS
        if not result.fits or not least <= macs <= _MOST_MACS:
            return None
        if 4 * math.prod(shape) > _MOST_BYTES or (groups > 1 and image.channels % 4):
            return None
        weights = [self._weight(shape, math.prod(shape[1:])), self._weight((channels,), 100)]
        self._node(
            "Conv",
            [image.name, *weights],
            result.name,
            group=groups,
            pads=[*conv.pads] * 2,
            strides=[conv.stride] * 2,
            dilations=[conv.dilation] * 2,
            kernel_shape=conv.kernel,
        )
        if result.shape == image.shape and self._rng.random() < 0.3:
            result = self._added(result, image)
        return self._activated(result)

    def _activated(self, image: _Image) -> _Image:
        kind = self._rng.choice(
            ["Relu", "", "Clip", "LeakyRelu", "HardSwish", "Sigmoid"],
            p=[0.5, 0.3, 0.08, 0.06, 0.03, 0.03],
        )
        if not kind:
            return image
        bounds = [self._constant(np.float32(0)), self._constant(np.float32(6))]
        inputs = [image.name, *(bounds if kind == "Clip" else [])]
        return image._replace(name=self._node(str(kind), inputs, self._next()))

    def _added(self, image: _Image, other: _Image) -> _Image:
        return image._replace(name=self._node("Add", [image.name, other.name], self._next()))

    def pool(self, image: _Image) -> _Image | None:
        edge, stride = int(self._rng.choice([2, 3])), int(self._rng.choice([1, 2], p=[0.3, 0.7]))
        conv = _Conv((edge, edge), stride)
        kind = "MaxPool" if self._rng.random() < 0.6 else "AveragePool"
        height, width = conv.sizes(image)
        if min(height, width) < 1:
            return None
        name = self._node(
            kind,
            [image.name],
            self._next(),
            kernel_shape=[edge] * 2,
            strides=[stride] * 2,
            pads=[*conv.pads] * 2,
        )
        return _Image(name, image.channels, height, width)

    def elementwise(self, image: _Image) -> _Image | None:
        """An elementwise operator that is not fused, because another operator reads its input."""
        self._head(image)
        kind = str(self._rng.choice(["Relu", "Sigmoid", "Tanh", "Mul", "Add"]))
        if kind in ("Mul", "Add"):
            # An operand with a value for each channel, as in squeeze-and-excitation.
            small = self._weight((1, image.channels, 1, 1), 1)
            return image._replace(name=self._node(kind, [image.name, small], self._next()))
        return image._replace(name=self._node(kind, [image.name], self._next()))

    def concat(self, image: _Image) -> _Image | None:
        other = self._convolved(image, _Conv((1, 1)), self._channels())
        if other is None:
            return None
        joined = other._replace(channels=other.channels + image.channels)
        if not joined.fits:
            return other
        name = self._node("Concat", [image.name, other.name], self._next(), axis=1)
        return joined._replace(name=name)

    def transposed(self, image: _Image) -> _Image | None:
        channels, edge = self._channels(), int(self._rng.choice([2, 4]))
        pad = (edge - 2) // 2
        shape = (image.channels, channels, edge, edge)
        result = _Image(self._next(), channels, 2 * image.height, 2 * image.width)
        macs = math.prod(shape) * image.height * image.width
        if not result.fits or macs > _MOST_MACS / 4 or 4 * math.prod(shape) > _MOST_BYTES:
            return None
        weights = [self._weight(shape, math.prod(shape[1:])), self._weight((channels,), 100)]
        self._node(
            "ConvTranspose",
            [image.name, *weights],
            result.name,
            strides=[2, 2],
            pads=[pad] * 4,
            kernel_shape=[edge] * 2,
        )
        return self._activated(result)

    def _head(self, image: _Image) -> None:
        """Global pooling and up to two fully connected layers, as at the end of real networks. So
        the outputs are small: little to write, and little to change in layout."""
        pooled = self._node("GlobalAveragePool", [image.name], self._next())
        flat = self._node("Flatten", [pooled], self._next(), axis=1)
        features = image.channels
        for _ in range(self._rng.integers(0, 3)):
            count = self._size(10, 4096)
            if 4 * features * count > _MOST_BYTES:
                break
            weights = [self._weight((count, features), features), self._weight((count,), 100)]
            flat = self._node("Gemm", [flat, *weights], self._next(), transB=1)
            features = count
        self._ends.append(flat)

    def _next(self) -> str:
        return f"v{len(self._nodes)}"

    def _node(self, kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self._nodes.append(helper.make_node(kind, inputs, [output], output, **attributes))
        return output

    def _weight(self, shape: tuple[int, ...], fan_in: int) -> str:
        """Random numbers that keep activations in range."""
        first = int(self._rng.integers(len(self._values)))
        array = np.resize(np.roll(self._values, first), shape) * np.float32(fan_in**-0.5)
        return self._constant(array)

    def _constant(self, array: Any) -> str:
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(array), name))
        return name


_FILTERS: Sequence[tuple[_Conv, float]] = [
    (_Conv((1, 1)), 0.36),
    (_Conv((3, 3)), 0.32),
    (_Conv((3, 3), 2), 0.08),
    (_Conv((1, 1), 2), 0.03),
    (_Conv((5, 5)), 0.05),
    (_Conv((7, 7), 2), 0.03),
    (_Conv((7, 7)), 0.02),
    (_Conv((1, 7)), 0.025),
    (_Conv((7, 1)), 0.025),
    (_Conv((1, 3)), 0.02),
    (_Conv((3, 1)), 0.02),
    (_Conv((3, 3), 1, 2), 0.02),
]
"""Filters of the convolutions that mix channels, each with its share."""

_LAYERS: Sequence[tuple[Callable[[_SampleNetwork, _Image], _Image | None], float]] = [
    (_SampleNetwork.conv, 0.72),
    (_SampleNetwork.depthwise, 0.12),
    (_SampleNetwork.pool, 0.06),
    (_SampleNetwork.elementwise, 0.05),
    (_SampleNetwork.concat, 0.02),
    (_SampleNetwork.transposed, 0.03),
]
"""Kinds of layers, each with its share."""
