"""Fast style transfer, at the size of CoDL's measurements.

Johnson, Alahi and Fei-Fei, "Perceptual losses for real-time style transfer and super-resolution"
(2016), arXiv:1603.08155, and its supplement, table 1, with the instance normalisation of Ulyanov
et al. 2016, arXiv:1607.08022. Layers as in the implementation that MACE's model zoo exports at this
size (github.com/XiaoMi/mace-models, fast-style-transfer; github.com/lengstrom/fast-style-transfer):
zeros as padding, transposed convolutions, 32 to 128 channels. Padding is symmetric here, as in
PyTorch; the scaling of the last tanh to 0 ... 255 is left out.

Jia et al., "CoDL" (MobiSys 2022) states 35.89 * 10^9 multiply-accumulates. Its public code lists
the 14 convolutions below (github.com/csu-eis/CoDL, dataset_conv2d_large_cnn.csv), which have
35.92 * 10^9, and not the two transposed convolutions, which have another 2.83 * 10^9 here. So the
paper's figure counts the convolutions only, and the network as it runs has 8 % more.

Exports for 224 x 224 pixels in which each transposed convolution is a Resize and a convolution have
7.72 * 10^9.

x [1, 3, 480, 640] -> logits [1, 3, 480, 640]: colours, -1 ... 1
1 677 638 parameters, 38 751 436 800 multiply-accumulates
"""

from __future__ import annotations

import onnx_ir as ir

from coexec.research.zoo.builder import Builder, dims
from coexec.research.zoo.weights import BIAS_STD, filter_std

BLOCKS = 5
"""Residual blocks between the layers that lower the resolution and those that raise it."""


class StyleBuilder(Builder):
    """Layers that only this network uses."""

    def conv_norm(
        self, x: ir.Value, name: str, channels: int, kernel: int, stride: int = 1
    ) -> ir.Value:
        """Conv without bias "<name>/conv", then instance normalisation "<name>/norm"."""
        pad = kernel // 2
        y = self.conv(x, f"{name}/conv", channels, kernel, stride=stride, pad=pad, bias=False)
        return self._instance_norm(y, f"{name}/norm")

    def doubled(self, x: ir.Value, name: str, channels: int) -> ir.Value:
        """[1, C, H, W] -> [1, channels, 2 H, 2 W]: 3x3 ConvTranspose, normalised, then Relu."""
        before, (height, width) = dims(x)[1], dims(x)[2:]
        # With stride 2, an output element is computed by a quarter of the filter's elements.
        std = filter_std(before * 9 // 4, centring=0)
        weight = self._weight(f"{name}/conv/weight", (before, channels, 3, 3), std)
        window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
        out = [1, channels, 2 * height, 2 * width]
        y = self._layer(
            "ConvTranspose", [x, weight], f"{name}/conv", out, **window, output_padding=[1, 1]
        )
        return self.relu(self._instance_norm(y, f"{name}/norm"), f"{name}/relu")

    def tanh(self, x: ir.Value, name: str) -> ir.Value:
        """tanh(x), any shape."""
        return self._layer("Tanh", [x], name, dims(x))

    def _instance_norm(self, x: ir.Value, name: str) -> ir.Value:
        """Each channel of [1, C, H, W] with mean 0 and variance 1, then scaled and shifted."""
        means = {"scale": 1, "bias": 0}
        shape = dims(x)[1:2]
        reads = [self._weight(f"{name}/{k}", shape, BIAS_STD, mean=m) for k, m in means.items()]
        return self._layer("InstanceNormalization", [x, *reads], name, dims(x), epsilon=1e-3)


def build(height: int = 480, width: int = 640) -> ir.Model:
    """The network for `height` x `width` pixels, multiples of 4."""
    b = StyleBuilder("style_transfer", [1, 3, height, width])
    y = b.relu(b.conv_norm(b.input, "conv1", 32, 9), "conv1/relu")
    y = b.relu(b.conv_norm(y, "conv2", 64, 3, stride=2), "conv2/relu")
    y = b.relu(b.conv_norm(y, "conv3", 128, 3, stride=2), "conv3/relu")
    for number in range(1, BLOCKS + 1):
        y = residual(b, y, f"block{number}")
    y = b.doubled(b.doubled(y, "up1", 64), "up2", 32)
    return b.finish(b.tanh(b.conv_norm(y, "colours", 3, 9), "tanh"), "logits")


def residual(b: StyleBuilder, x: ir.Value, name: str) -> ir.Value:
    """Two 3x3 layers beside a shortcut; no ReLU behind the sum."""
    channels = dims(x)[1]
    y = b.relu(b.conv_norm(x, f"{name}/conv1", channels, 3), f"{name}/conv1/relu")
    return b.add(x, b.conv_norm(y, f"{name}/conv2", channels, 3), f"{name}/add")
