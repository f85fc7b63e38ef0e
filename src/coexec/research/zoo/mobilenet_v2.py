"""MobileNet v2, width 1.0.

Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks" (2018), arXiv:1801.04381,
table 2.

x [1, 3, 224, 224] -> logits [1, 1000]
3 487 816 parameters (batch normalisation folded), 300 774 272 multiply-accumulates
"""

from __future__ import annotations

import onnx_ir as ir

from coexec.research.zoo.builder import Builder, dims

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, output channels, number of blocks, and stride of the first block."""


def build() -> ir.Model:
    b = Builder("mobilenet_v2", [1, 3, 224, 224])
    y = b.conv(b.input, "stem/conv", 32, 3, stride=2, pad=1, gain=3.0)
    y = b.relu6(y, "stem/relu6")
    for number, (expansion, channels, depth, stride) in enumerate(STAGES, start=1):
        for block in range(depth):
            name, step = f"stage{number}/block{block}", 1 if block else stride
            y = inverted_residual(b, y, name, expansion, channels, step)
    y = b.conv(y, "head/conv", 1280, 1)
    y = b.global_average_pool(b.relu6(y, "head/relu6"), "avgpool")
    return b.finish(b.gemm(b.flatten(y, "flatten"), "fc", 1000), "logits")


def inverted_residual(
    b: Builder, x: ir.Value, name: str, expansion: int, channels: int, stride: int
) -> ir.Value:
    """Table 1: to more channels, a 3x3 filter for each, and back; no activation at the end."""
    group, keeps_shape = expansion * dims(x)[1], (channels, stride) == (dims(x)[1], 1)
    y = x
    if expansion > 1:
        y = b.conv(x, f"{name}/expand/conv", group, 1, gain=0.8)
        y = b.relu6(y, f"{name}/expand/relu6")
    y = b.conv(y, f"{name}/depthwise/conv", group, 3, stride=stride, pad=1, group=group)
    y = b.relu6(y, f"{name}/depthwise/relu6")
    # A block adds little to its shortcut, so that the sum does not grow from block to block.
    y = b.conv(y, f"{name}/project/conv", channels, 1, gain=0.5 if keeps_shape else 1.0)
    return b.add(x, y, f"{name}/add") if keeps_shape else y
