"""ResNet-34.

He et al., "Deep residual learning for image recognition" (2015), arXiv:1512.03385, table 1, with
projections where the shape changes (option B).

x [1, 3, 224, 224] -> logits [1, 1000]
21 789 160 parameters (batch normalisation folded), 3 663 761 408 multiply-accumulates
"""

from __future__ import annotations

import onnx_ir as ir

from coexec.research.zoo.builder import Builder

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Channels and number of blocks of each stage; all but the first stage halve the resolution."""


def build() -> ir.Model:
    b = Builder("resnet34", [1, 3, 224, 224])
    y = b.conv_relu(b.input, "conv1", 64, 7, stride=2, pad=3)
    y = b.max_pool(y, "maxpool", 3, stride=2, pad=1)
    for number, (channels, depth) in enumerate(STAGES, start=1):
        for block in range(depth):
            stride = 2 if number > 1 and block == 0 else 1
            y = basic_block(b, y, f"layer{number}/block{block}", channels, stride)
    y = b.flatten(b.global_average_pool(y, "avgpool"), "flatten")
    return b.finish(b.gemm(y, "fc", 1000), "logits")


def basic_block(b: Builder, x: ir.Value, name: str, channels: int, stride: int) -> ir.Value:
    """Figure 2: two 3x3 layers and a shortcut, which is a 1x1 layer where the shape changes.

    A block adds little to its shortcut, so that the sum does not grow from block to block.
    """
    y = b.conv_relu(x, f"{name}/conv1", channels, 3, stride=stride, pad=1)
    y = b.conv(y, f"{name}/conv2", channels, 3, pad=1, gain=0.4)
    shortcut = x if stride == 1 else b.conv(x, f"{name}/downsample", channels, 1, stride=stride)
    return b.relu(b.add(y, shortcut, f"{name}/add"), f"{name}/relu")
