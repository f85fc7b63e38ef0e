"""MobileNet v1, width 1.0.

Howard et al., "MobileNets: efficient convolutional neural networks for mobile vision applications"
(2017), arXiv:1704.04861, table 1; ReLU stops at 6, as in the authors' published code.

x [1, 3, 224, 224] -> logits [1, 1000]
4 221 032 parameters (batch normalisation folded), 568 740 352 multiply-accumulates
"""

from __future__ import annotations

import onnx_ir as ir

from coexec.research.zoo.builder import Builder, dims

BLOCKS = (
    (64, 1),
    (128, 2),
    (128, 1),
    (256, 2),
    (256, 1),
    (512, 2),
    *[(512, 1)] * 5,
    (1024, 2),
    (1024, 1),
)
"""Output channels and stride of each depthwise separable block."""


def build() -> ir.Model:
    b = Builder("mobilenet_v1", [1, 3, 224, 224])
    # The gains here and in `separable` let one to eight percent of the activations reach 6.
    y = b.conv(b.input, "stem/conv", 32, 3, stride=2, pad=1, gain=3.0)
    y = b.relu6(y, "stem/relu6")
    for number, (channels, stride) in enumerate(BLOCKS, start=1):
        y = separable(b, y, f"block{number}", channels, stride)
    y = b.flatten(b.global_average_pool(y, "avgpool"), "flatten")
    return b.finish(b.gemm(y, "fc", 1000), "logits")


def separable(b: Builder, x: ir.Value, name: str, channels: int, stride: int) -> ir.Value:
    """Section 3.1: a 3x3 filter for each channel, then a 1x1 layer that mixes the channels."""
    group = dims(x)[1]
    y = b.conv(x, f"{name}/depthwise/conv", group, 3, stride=stride, pad=1, group=group)
    y = b.relu6(y, f"{name}/depthwise/relu6")
    y = b.conv(y, f"{name}/pointwise/conv", channels, 1, gain=1.2)
    return b.relu6(y, f"{name}/pointwise/relu6")
