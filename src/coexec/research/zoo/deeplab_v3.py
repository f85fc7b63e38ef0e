"""DeepLab v3 on MobileNet v3 large: a class for each pixel.

Chen et al., "Rethinking atrous convolution for semantic image segmentation" (2017),
arXiv:1706.05587, figure 5 with the backbone of Howard et al. 2019, arXiv:1905.02244. As in
torchvision, not in the paper: atrous rates 12, 24 and 36 where the backbone leaves 1/16 of the
resolution (the paper has half of them), and a 3x3 layer before the classes.

x [1, 3, 257, 257] -> logits [1, 21, 257, 257]
11 011 485 parameters (batch normalisation folded), 2 765 149 704 multiply-accumulates
"""

from __future__ import annotations

import onnx_ir as ir

from coexec.research.zoo.builder import Builder, dims
from coexec.research.zoo.mobilenet_v3 import backbone

RATES = (12, 24, 36)
"""Distances between the elements that the 3x3 filters of the pyramid read."""


def build() -> ir.Model:
    b = Builder("deeplab_v3", [1, 3, 257, 257])
    y = pyramid(b, backbone(b, atrous=True), "aspp", 256)
    y = b.conv_relu(y, "classifier", 256, 3, pad=1)
    y = b.conv(y, "classes/conv", 21, 1)
    return b.finish(b.resize(y, "resize", *dims(b.input)[2:]), "logits")


def pyramid(b: Builder, x: ir.Value, name: str, channels: int) -> ir.Value:
    """Section 3.3: layers of different receptive fields side by side; the last one reads the mean
    of x."""
    branches = [b.conv_relu(x, f"{name}/rate1", channels, 1)]
    for rate in RATES:
        at = f"{name}/rate{rate}"
        y = b.conv(x, f"{at}/conv", channels, 3, pad=rate, dilation=rate)
        branches.append(b.relu(y, f"{at}/relu"))
    mean = b.conv_relu(b.global_average_pool(x, f"{name}/avgpool"), f"{name}/mean", channels, 1)
    branches.append(b.resize(mean, f"{name}/resize", *dims(x)[2:]))
    return b.conv_relu(b.concat(branches, f"{name}/concat"), f"{name}/project", channels, 1)
