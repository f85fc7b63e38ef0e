"""Layers of convolutional and recurrent networks, recorded as an `onnx_ir` graph.

Each method of `Layers` that has a name as an argument records one layer, or a few, and returns the
tensor it makes, float32 and of static shape. The files of networks call these methods by name.
"""

import math
import zlib
from collections.abc import Mapping, Sequence
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

ReLU outputs are positive. Plain random filters keep their common mean and average the differences
away: after fifty layers all inputs give nearly the same output, and no test detects a wrong kernel.
Filters of mean zero make rounding errors grow until no comparison holds. Half of the mean keeps
both effects small.
"""
SHARE = 0.64
"""Gain of layers whose outputs are added up, and of layers that read such sums, in the cells of
NASNet and PNASNet."""

Pair = int | tuple[int, int]
"""One number for height and width, or (height, width)."""


class Layers:
    """The layers so far; `finish` turns them into a model.

    Layer names are paths such as "fire2/squeeze1x1/conv"; the layer's output tensor has the same
    name, its weights are "<layer>/weight" and "<layer>/bias". Weights are made from their names
    when first read: recording a network costs milliseconds. `gain` multiplies the default scale of
    weights (`filter_std`).
    """

    def __init__(self, name: str, input_shape: Sequence[int] = ()) -> None:
        """Without ``input_shape`` there is no input yet; `add_input` makes one."""
        self.inputs: list[ir.Value] = []
        if input_shape:
            self.add_input("x", input_shape)
        self._name = name
        self._tape = tape.Tape()
        self._constants: dict[str, ir.Value] = {}
        self._activated: dict[ir.Value, ir.Value] = {}

    @property
    def input(self) -> ir.Value:
        """The first input."""
        return self.inputs[0]

    def add_input(self, name: str, shape: Sequence[int]) -> ir.Value:
        """A further input of the network."""
        self.inputs.append(ir.val(name, ir.DataType.FLOAT, shape))
        return self.inputs[-1]

    @property
    def count(self) -> int:
        """Number of layers so far."""
        return len(self._tape.nodes)

    def finish(self, y: ir.Value, output_name: str) -> ir.Model:
        """The model whose only output is `y`, renamed to `output_name`."""
        y.name = output_name
        return self.model([y])

    def model(self, outputs: Sequence[ir.Value]) -> ir.Model:
        """The model with these outputs."""
        graph = ir.Graph(
            self.inputs,
            list(dict.fromkeys(outputs)),
            nodes=self._tape.nodes,
            initializers=self._tape.initializers,
            opset_imports={"": OPSET},
            name=self._name,
        )
        return ir.Model(graph, ir_version=IR_VERSION, producer_name="coexec.research.zoo")

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
        window = window_of(kernel, stride, pad, dilation)
        shape = (channels, dims(x)[1] // group, *_pair(kernel))
        if centred is None:
            centred = group == 1 and x not in self.inputs
        weights = self._weights(name, shape, gain, centred=centred, bias=bias)
        out = [1, channels, *slide(dims(x), window)]
        return self.layer("Conv", [x, *weights], name, out, **window, group=group)

    def conv_relu(
        self, x: ir.Value, name: str, channels: int, kernel: Pair, *, stride: int = 1, pad: Pair = 0
    ) -> ir.Value:
        """Conv "<name>/conv", then Relu "<name>/relu"."""
        y = self.conv(x, f"{name}/conv", channels, kernel, stride=stride, pad=pad)
        return self.relu(y, f"{name}/relu")

    def conv_leaky_relu(
        self, x: ir.Value, name: str, channels: int, kernel: int, slope: float
    ) -> ir.Value:
        """Conv "<name>/conv" that keeps the resolution, then LeakyRelu "<name>/leaky_relu"."""
        y = self.conv(x, f"{name}/conv", channels, kernel, pad=kernel // 2)
        return self.layer("LeakyRelu", [y], f"{name}/leaky_relu", dims(y), alpha=slope)

    def conv_norm(
        self, x: ir.Value, name: str, channels: int, kernel: int, *, stride: int = 1
    ) -> ir.Value:
        """Conv without bias "<name>/conv", then instance normalisation "<name>/norm"."""
        pad = kernel // 2
        y = self.conv(x, f"{name}/conv", channels, kernel, stride=stride, pad=pad, bias=False)
        return self._norm("InstanceNormalization", y, f"{name}/norm", {"scale": 1, "bias": 0})

    def depthwise(
        self, x: ir.Value, name: str, kernel: int, *, stride: int = 1, dilation: int = 1
    ) -> ir.Value:
        """A filter for each channel; padded by half of the kernel."""
        group, pad = dims(x)[1], kernel // 2 * dilation
        return self.conv(
            x, name, group, kernel, stride=stride, pad=pad, dilation=dilation, group=group
        )

    def doubled(self, x: ir.Value, name: str, channels: int) -> ir.Value:
        """[1, C, H, W] -> [1, channels, 2 H, 2 W]: 3x3 ConvTranspose, normalised, then Relu."""
        before, (height, width) = dims(x)[1], dims(x)[2:]
        # With stride 2, an output element is computed by a quarter of the filter's elements.
        std = filter_std(before * 9 // 4, centring=0)
        weight = self.weight(f"{name}/conv/weight", (before, channels, 3, 3), std)
        window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
        out = [1, channels, 2 * height, 2 * width]
        y = self.layer(
            "ConvTranspose", [x, weight], f"{name}/conv", out, **window, output_padding=[1, 1]
        )
        y = self._norm("InstanceNormalization", y, f"{name}/norm", {"scale": 1, "bias": 0})
        return self.relu(y, f"{name}/relu")

    def max_pool(
        self, x: ir.Value, name: str, kernel: int, *, stride: int, pad: int = 0, ceil: bool = False
    ) -> ir.Value:
        """[1, C, H, W] -> [1, C, H', W']; `ceil` keeps a last window beyond the edge."""
        window = window_of(kernel, stride, pad)
        out = [*dims(x)[:2], *slide(dims(x), window, ceil=ceil)]
        return self.layer("MaxPool", [x], name, out, **window, ceil_mode=int(ceil))

    def average_pool(
        self,
        x: ir.Value,
        name: str,
        kernel: int,
        *,
        stride: int,
        pad: int = 0,
        count_pad: bool = True,
    ) -> ir.Value:
        """[1, C, H, W] -> [1, C, H', W']; `count_pad`: padding counts as zeros."""
        window = window_of(kernel, stride, pad)
        out = [*dims(x)[:2], *slide(dims(x), window)]
        count = int(count_pad and pad > 0)
        return self.layer("AveragePool", [x], name, out, **window, count_include_pad=count)

    def global_average_pool(self, x: ir.Value, name: str) -> ir.Value:
        """[1, C, H, W] -> [1, C, 1, 1]."""
        return self.layer("GlobalAveragePool", [x], name, [*dims(x)[:2], 1, 1])

    def gemm(self, x: ir.Value, name: str, features: int) -> ir.Value:
        """Fully connected layer: [1, K] -> [1, features]; weight [features, K]."""
        weights = self._weights(name, (features, dims(x)[1]), 1.0, centred=True)
        return self.layer("Gemm", [x, *weights], name, [1, features], transB=1)

    def lstm(self, x: ir.Value, name: str, hidden: int) -> ir.Value:
        """One forward LSTM: [steps, batch, features] -> [steps, 1, batch, hidden].

        The state starts at zero: the ONNX default for the omitted `initial_h` and `initial_c`.
        """
        steps, batch, features = dims(x)
        w = self.weight(f"{name}/w", (1, 4 * hidden, features), 1 / math.sqrt(features))
        r = self.weight(f"{name}/r", (1, 4 * hidden, hidden), 1 / math.sqrt(hidden))
        b = self.weight(f"{name}/b", (1, 8 * hidden), BIAS_STD)
        out = [steps, 1, batch, hidden]
        return self.layer("LSTM", [x, w, r, b], name, out, hidden_size=hidden)

    def relu(self, x: ir.Value, name: str) -> ir.Value:
        """max(x, 0), any shape."""
        return self.layer("Relu", [x], name, dims(x))

    def relu6(self, x: ir.Value, name: str) -> ir.Value:
        """Clip to [0, 6], any shape; all Clips of a network share the two bounds."""
        low = self._constant("relu6/min", np.array(0, np.float32))
        high = self._constant("relu6/max", np.array(6, np.float32))
        return self.layer("Clip", [x, low, high], name, dims(x))

    def hswish(self, x: ir.Value, name: str) -> ir.Value:
        """x * min(max(x + 3, 0), 6) / 6, any shape."""
        return self.layer("HardSwish", [x], name, dims(x))

    def hsigmoid(self, x: ir.Value, name: str) -> ir.Value:
        """min(max(x + 3, 0), 6) / 6, any shape."""
        return self.layer("HardSigmoid", [x], name, dims(x), alpha=1 / 6)

    def tanh(self, x: ir.Value, name: str) -> ir.Value:
        """tanh(x), any shape."""
        return self.layer("Tanh", [x], name, dims(x))

    def resize(self, x: ir.Value, like: ir.Value, name: str, mode: str = "linear") -> ir.Value:
        """[1, C, H, W] -> [1, C, height and width of `like`]; "linear" or "nearest"."""
        out = [*dims(x)[:2], *dims(like)[2:]]
        sizes = self._constant(f"{name}/sizes", np.array(out, np.int64))
        return self.layer("Resize", [x, None, None, sizes], name, out, mode=mode)

    def space_to_depth(self, x: ir.Value, name: str, block: int) -> ir.Value:
        """[1, C, H, W] -> [1, C * block^2, H / block, W / block]: squares become channels."""
        batch, channels, height, width = dims(x)
        out = [batch, channels * block**2, height // block, width // block]
        return self.layer("SpaceToDepth", [x], name, out, blocksize=block)

    def flatten(self, x: ir.Value, name: str) -> ir.Value:
        """[1, ...] -> [1, product of the rest]."""
        return self.layer("Flatten", [x], name, [1, math.prod(dims(x)[1:])], axis=1)

    def concat(self, xs: Sequence[ir.Value], name: str) -> ir.Value:
        """Joins [1, C1, H, W], [1, C2, H, W], ... to [1, C1 + C2 + ..., H, W]."""
        out = list(dims(xs[0]))
        out[1] = sum(dims(x)[1] for x in xs)
        return self.layer("Concat", xs, name, out, axis=1)

    def add(self, a: ir.Value, b: ir.Value, name: str) -> ir.Value:
        """Sum of two tensors of the same shape."""
        return self.layer("Add", [a, b], name, dims(a))

    def mul(self, gate: ir.Value, x: ir.Value, name: str) -> ir.Value:
        """[1, C, 1, 1] times [1, C, H, W] -> [1, C, H, W]."""
        return self.layer("Mul", [gate, x], name, dims(x))

    def squeeze(self, x: ir.Value, name: str, axis: int) -> ir.Value:
        """Drops `axis`, whose size is 1."""
        axes = self._constant(f"{name}/axes", np.array([axis], np.int64))
        out = [d for i, d in enumerate(dims(x)) if i != axis]
        return self.layer("Squeeze", [x, axes], name, out)

    # Layers of the cells of NASNet and PNASNet, on square tensors. Layers of stride two pad their
    # input such that the size is halved, rounded up; the odd row and column are below and to the
    # right (TensorFlow's "same" padding). As in the exports of timm, the padding is a layer of its
    # own even where it adds nothing, and an average counts it as zeros.

    def activated(self, x: ir.Value) -> ir.Value:
        """max(x, 0): one Relu, however many layers read it."""
        if x not in self._activated:
            self._activated[x] = self.relu(x, f"{x.name}/relu")
        return self._activated[x]

    def relu_conv(self, x: ir.Value, name: str, channels: int, *, stride: int = 1) -> ir.Value:
        """Relu, then a 1x1 layer "<name>/conv"."""
        y, _ = self._same(self.activated(x), name, 1, stride)
        return self.conv(y, f"{name}/conv", channels, 1, stride=stride, gain=SHARE)

    def relu_pool(self, x: ir.Value, name: str) -> ir.Value:
        """Relu, then the mean of each channel."""
        return self.global_average_pool(self.activated(x), name)

    def separable(
        self, x: ir.Value, name: str, channels: int, kernel: int, *, stride: int = 1
    ) -> ir.Value:
        """Twice: Relu, a filter for each channel, a 1x1 layer; the first time with the stride."""
        for number, step in enumerate((stride, 1), start=1):
            at, group = f"{name}/separable{number}", dims(x)[1]
            y, pad = self._same(self.activated(x), at, kernel, step)
            y = self.conv(
                y,
                f"{at}/depthwise/conv",
                group,
                kernel,
                stride=step,
                pad=pad,
                group=group,
                bias=False,
                centred=True,
            )
            x = self.conv(y, f"{at}/pointwise/conv", channels, 1, gain=SHARE)
        return x

    def max_pool_3x3(self, x: ir.Value, name: str, *, stride: int = 1) -> ir.Value:
        """The largest of 3x3 elements."""
        y, pad = self._same(x, name, 3, stride, -math.inf)
        return self.max_pool(y, name, 3, stride=stride, pad=pad)

    def average_pool_3x3(self, x: ir.Value, name: str, *, stride: int = 1) -> ir.Value:
        """The mean of 3x3 elements."""
        y, pad = self._same(x, name, 3, stride)
        return self.average_pool(y, name, 3, stride=stride, pad=pad, count_pad=False)

    def fit(self, x: ir.Value, like: ir.Value, name: str, channels: int) -> ir.Value:
        """Relu, then 1x1 layers to `channels` and the resolution of `like`.

        Half the resolution is made without loss: half of the channels read x, the others read x
        moved by one. Both halves are normalised together, so the normalisation cannot be folded
        into a layer.
        """
        if dims(x)[2] == dims(like)[2]:
            return self.relu_conv(x, name, channels)
        x = self.activated(x)
        near = self.average_pool(x, f"{name}/path1/avgpool", 1, stride=2)
        near = self.conv(near, f"{name}/path1/conv", channels // 2, 1, bias=False)
        far = self._pad(x, f"{name}/path2/pad", -1, 1)
        far = self.average_pool(far, f"{name}/path2/avgpool", 1, stride=2)
        far = self.conv(far, f"{name}/path2/conv", channels - channels // 2, 1, bias=False)
        return self.batch_norm(self.concat([near, far], f"{name}/concat"), f"{name}/bn")

    def project(self, x: ir.Value, name: str, channels: int) -> ir.Value:
        """x, or a 1x1 layer "<name>/conv" of it if its number of channels is another one."""
        if dims(x)[1] == channels:
            return x
        return self.conv(x, f"{name}/conv", channels, 1, gain=SHARE)

    def batch_norm(self, x: ir.Value, name: str) -> ir.Value:
        """Batch normalisation of [1, C, H, W] with running statistics."""
        means = {"scale": 1, "bias": 0, "mean": 0, "var": 1}
        return self._norm("BatchNormalization", x, name, means)

    def _norm(self, kind: str, x: ir.Value, name: str, means: Mapping[str, float]) -> ir.Value:
        """Each channel normalised, then scaled and shifted; `means`: of the weights, by name."""
        shape = dims(x)[1:2]
        reads = [self.weight(f"{name}/{k}", shape, BIAS_STD, mean=m) for k, m in means.items()]
        return self.layer(kind, [x, *reads], name, dims(x), epsilon=1e-3)

    def _same(
        self, x: ir.Value, name: str, kernel: int, stride: int, fill: float = 0.0
    ) -> tuple[ir.Value, int]:
        """Input of a strided window after padding, and the padding that is left to the window
        itself."""
        if stride == 1:
            return x, kernel // 2
        size = dims(x)[2]
        missing = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
        return self._pad(x, f"{name}/pad", missing // 2, missing - missing // 2, fill), 0

    def _pad(self, x: ir.Value, name: str, before: int, after: int, fill: float = 0.0) -> ir.Value:
        """x with `before` rows and columns of `fill` above and to the left, and `after` below and
        to the right; negative numbers cut off."""
        ends = np.array([0, 0, before, before, 0, 0, after, after], np.int64)
        pads = self._constant(f"pads/{before},{after}", ends)
        value = self._constant(f"pads/{fill}", np.array(fill, np.float32))
        batch, channels, *size = dims(x)
        out = [batch, channels, *(d + before + after for d in size)]
        return self.layer("Pad", [x, pads, value], name, out)

    def layer(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        name: str,
        shape: Sequence[int],
        **attributes: int | float | str | list[int],
    ) -> ir.Value:
        """Record one operator with an output of this shape."""
        output = ir.val(name, ir.DataType.FLOAT, shape)
        return self._tape.op(op_type, inputs, attributes, name=name, output=output)

    def weight(
        self, name: str, shape: Sequence[int], std: float, centring: float = 0, mean: float = 0
    ) -> ir.Value:
        """A tensor of random numbers, made when it is first read (`random_tensor`)."""
        make = partial(random_tensor, name, tuple(shape), std, centring, mean)
        lazy = ir.LazyTensor(make, ir.DataType.FLOAT, ir.Shape(shape), cache=True, name=name)
        return self._tape.initializer(lazy)

    def _weights(
        self, name: str, shape: Sequence[int], gain: float, *, centred: bool, bias: bool = True
    ) -> list[ir.Value]:
        centring = CENTRING if centred else 0
        std = gain * filter_std(math.prod(shape[1:]), centring)
        weights = [self.weight(f"{name}/weight", shape, std, centring)]
        return [*weights, self.weight(f"{name}/bias", shape[:1], BIAS_STD)] if bias else weights

    def _constant(self, name: str, value: npt.NDArray[np.generic]) -> ir.Value:
        if name not in self._constants:
            self._constants[name] = self._tape.initializer(ir.tensor(value, name=name))
        return self._constants[name]


def dims(x: ir.Value) -> tuple[int, ...]:
    """The static shape of a tensor that `Layers` made."""
    assert x.shape is not None
    return x.shape.numpy()


def filter_std(fan_in: int, centring: float) -> float:
    """Scale of weights that keeps the variance of the values before the ReLUs.

    He et al. 2015, arXiv:1502.01852, for filters that lose the part `centring` of their mean.
    """
    # a = relu(unit normal): E[a^2] = 1/2, E[a]^2 = 1/(2 pi); (1 - centring)^2 of that stays
    passed = 1 - (1 - (1 - centring) ** 2) / math.pi
    return math.sqrt(2 / passed / fan_in)


def random_tensor(
    name: str, shape: tuple[int, ...], std: float, centring: float = 0, mean: float = 0
) -> ir.TensorProtocol:
    """Uniform float32 numbers that depend only on the arguments.

    Each filter (index of the first axis) loses the part `centring` of its own mean.
    """
    values = np.random.default_rng(zlib.crc32(name.encode())).random(shape, dtype=np.float32)
    filters = values.reshape(shape[0], -1)
    filter_means = filters.mean(axis=1, keepdims=True, dtype=np.float64)
    filters -= (0.5 + centring * (filter_means - 0.5)).astype(np.float32)
    filters *= np.float32(std * math.sqrt(12))  # numbers uniform in [0, 1) have variance 1/12
    if mean:
        filters += np.float32(mean)
    return ir.tensor(values, name=name)


def _pair(value: Pair) -> tuple[int, int]:
    return value if isinstance(value, tuple) else (value, value)


def window_of(kernel: Pair, stride: int, pad: Pair, dilation: int = 1) -> dict[str, list[int]]:
    """The ONNX attributes of a sliding window with equal padding at both ends."""
    window = {
        "kernel_shape": [*_pair(kernel)],
        "strides": [stride, stride],
        "pads": [*_pair(pad), *_pair(pad)],
    }
    # AveragePool has no dilations before opset 19.
    return window if dilation == 1 else window | {"dilations": [dilation, dilation]}


def slide(
    shape: Sequence[int], window: Mapping[str, list[int]], *, ceil: bool = False
) -> list[int]:
    """Height and width of the output of a window that slides over [1, C, H, W]."""
    round_ = math.ceil if ceil else math.floor
    kernel, stride, pad = window["kernel_shape"], window["strides"], window["pads"]
    dilation = window.get("dilations", [1, 1])
    extent = [dilation[i] * (kernel[i] - 1) + 1 for i in range(2)]
    return [round_((shape[2 + i] + 2 * pad[i] - extent[i]) / stride[i]) + 1 for i in range(2)]
