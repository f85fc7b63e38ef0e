"""Layers of the cells of NASNet and PNASNet."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from coexec.research.zoo.builder import Builder, dims
from coexec.research.zoo.weights import BIAS_STD

SHARE = 0.64
"""Gain of layers whose outputs are added up, and of layers that read such sums."""


class CellBuilder(Builder):
    """A `Builder` of square tensors with the separable layers and joins of both networks.

    Layers of stride two pad their input such that the size is halved, rounded up; the odd row and
    column are below and to the right (TensorFlow's "same" padding). As in the exports of timm, the
    padding is a layer of its own even where it adds nothing, and an average counts it as zeros.
    """

    def __init__(self, name: str, input_shape: Sequence[int]) -> None:
        super().__init__(name, input_shape)
        self._activated: dict[ir.Value, ir.Value] = {}

    def activated(self, x: ir.Value) -> ir.Value:
        """max(x, 0): one Relu, however many layers read it."""
        if x not in self._activated:
            self._activated[x] = self.relu(x, f"{x.name}/relu")
        return self._activated[x]

    def relu_conv(self, x: ir.Value, name: str, channels: int, stride: int = 1) -> ir.Value:
        """Relu, then a 1x1 layer "<name>/conv"."""
        y, _ = self._same(self.activated(x), name, 1, stride)
        return self.conv(y, f"{name}/conv", channels, 1, stride=stride, gain=SHARE)

    def separable(
        self, x: ir.Value, name: str, channels: int, kernel: int, stride: int = 1
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

    def max_pool_3x3(self, x: ir.Value, name: str, stride: int = 1) -> ir.Value:
        """The largest of 3x3 elements."""
        y, pad = self._same(x, name, 3, stride, -math.inf)
        return self.max_pool(y, name, 3, stride, pad)

    def average_pool_3x3(self, x: ir.Value, name: str, stride: int = 1) -> ir.Value:
        """The mean of 3x3 elements."""
        y, pad = self._same(x, name, 3, stride)
        return self.average_pool(y, name, 3, stride, pad, count_include_pad=False)

    def fit(self, x: ir.Value, name: str, channels: int, like: ir.Value) -> ir.Value:
        """Relu, then 1x1 layers to `channels` and the resolution of `like`."""
        if dims(x)[2] == dims(like)[2]:
            return self.relu_conv(x, name, channels)
        return self._factorized_reduction(self.activated(x), name, channels)

    def classify(self, x: ir.Value) -> ir.Model:
        """Relu, the mean of each channel, and a layer of 1000 "logits": the end of the network."""
        y = self.global_average_pool(self.activated(x), "avgpool")
        return self.finish(self.gemm(self.flatten(y, "flatten"), "fc", 1000), "logits")

    def _factorized_reduction(self, x: ir.Value, name: str, channels: int) -> ir.Value:
        """Half the resolution without loss: half of the channels read x, the others read x moved by
        one.

        Both halves are normalised together, so the normalisation cannot be folded into a layer.
        """
        near = self.average_pool(x, f"{name}/path1/avgpool", 1, stride=2)
        near = self.conv(near, f"{name}/path1/conv", channels // 2, 1, bias=False)
        far = self._pad(x, f"{name}/path2/pad", -1, 1)
        far = self.average_pool(far, f"{name}/path2/avgpool", 1, stride=2)
        far = self.conv(far, f"{name}/path2/conv", channels - channels // 2, 1, bias=False)
        return self._batch_norm(self.concat([near, far], f"{name}/concat"), f"{name}/bn")

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
        return self._layer("Pad", [x, pads, value], name, out)

    def _batch_norm(self, x: ir.Value, name: str) -> ir.Value:
        """Batch normalisation of [1, C, H, W] with running statistics."""
        means = {"scale": 1, "bias": 0, "mean": 0, "var": 1}
        shape = dims(x)[1:2]
        reads = [self._weight(f"{name}/{k}", shape, BIAS_STD, mean=m) for k, m in means.items()]
        return self._layer("BatchNormalization", [x, *reads], name, dims(x), epsilon=1e-3)
