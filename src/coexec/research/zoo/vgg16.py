"""VGG-16.

Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition" (2014),
arXiv:1409.1556, table 1, configuration D.

x [1, 3, 224, 224] -> logits [1, 1000]
138 357 544 parameters, 15 470 264 320 multiply-accumulates
"""

from __future__ import annotations

import onnx_ir as ir

from coexec.research.zoo.builder import Builder

STAGES = ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3))
"""Channels and number of 3x3 layers of each stage."""


def build() -> ir.Model:
    b = Builder("vgg16", [1, 3, 224, 224])
    y = b.input
    for number, (channels, depth) in enumerate(STAGES, start=1):
        y = stage(b, y, f"stage{number}", channels, depth)
    y = b.average_pool(y, "avgpool", 1, stride=1)  # PyTorch's adaptive pool to 7x7: no change
    y = b.flatten(y, "flatten")
    y = b.relu(b.gemm(y, "fc6", 4096), "fc6/relu")
    y = b.relu(b.gemm(y, "fc7", 4096), "fc7/relu")
    return b.finish(b.gemm(y, "fc8", 1000), "logits")


def stage(b: Builder, x: ir.Value, name: str, channels: int, depth: int) -> ir.Value:
    """`depth` 3x3 layers, then half the resolution."""
    for number in range(1, depth + 1):
        x = b.conv_relu(x, f"{name}/layer{number}", channels, 3, pad=1)
    return b.max_pool(x, f"{name}/pool", 2, stride=2)
