"""RetinaFace on ResNet-50, at the size of CoDL's measurements.

Deng et al., "RetinaFace: single-stage dense face localisation in the wild" (2019),
arXiv:1905.00641, section 3.2: a feature pyramid of five levels with a context module and heads on
each. The variant is the one of Jia et al., "CoDL" (MobiSys 2022), whose public code lists every
convolution and pool (github.com/csu-eis/CoDL, dataset_conv2d_large_cnn.csv): 640 x 640 pixels; a
ResNet-50 whose stages lower the resolution in their last block, as in TensorFlow's slim; all pools
2x2; three boxes for each cell, without landmarks. The list does not say what each layer reads. That
is inferred from channels, sizes and order: the 128 + 64 + 64 channels of three layers make the 256
that the last layer of the context module reads, and a level of the pyramid is a 3x3 layer over the
next coarser one, enlarged, plus a 1x1 layer over the backbone.

x [1, 3, 640, 640] -> logits [1, 613800]: 12 numbers of boxes for each cell of the levels, finest
level first, then 6 scores for each
32 737 498 parameters (batch normalisation folded)
92 443 699 200 multiply-accumulates; 92.43 * 10^9 in the paper
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from coexec.research.zoo.builder import Builder, dims

STAGES = ((64, 3), (128, 4), (256, 6), (512, 3))
"""Inner channels and number of blocks of each stage; the last block of each stage but the last one
halves the resolution."""
FEATURES = ((1, 2), (1, 3), (2, 4), (4, 3))
"""Stage and block whose results the pyramid reads."""
WIDTH = 256
"""Channels of each level of the pyramid."""
BOXES, SCORES = 12, 6
"""Numbers for each cell: four coordinates of each of three boxes, and for each box two scores, face
or not."""


def build(size: int = 640) -> ir.Model:
    """The network for `size` x `size` pixels, a multiple of 64."""
    b = Builder("retinaface", [1, 3, size, size])
    levels = pyramid(b, backbone(b))
    seen = [context(b, level, f"context{n}") for n, level in enumerate(levels)]
    boxes = [head(b, y, f"boxes{n}", BOXES) for n, y in enumerate(seen)]
    scores = [head(b, y, f"scores{n}", SCORES) for n, y in enumerate(seen)]
    return b.finish(b.concat([*boxes, *scores], "concat"), "logits")


def backbone(b: Builder) -> list[ir.Value]:
    """ResNet-50; its features at 1/4, 1/8, 1/16 and 1/32 of the resolution."""
    y = b.conv_relu(b.input, "conv1", 64, 7, stride=2, pad=3)
    y = b.max_pool(y, "pool1", 2, stride=2)
    made = {}
    for number, (channels, depth) in enumerate(STAGES, start=1):
        for block in range(1, depth + 1):
            stride = 2 if block == depth and number < len(STAGES) else 1
            y = bottleneck(b, y, f"stage{number}/block{block}", channels, stride)
            made[number, block] = y
    return [made[at] for at in FEATURES]


def bottleneck(b: Builder, x: ir.Value, name: str, channels: int, stride: int) -> ir.Value:
    """A 1x1, a 3x3 and a 1x1 layer of four times the channels, beside a shortcut.

    A block adds little to its shortcut, so that the sum does not grow from block to block.
    """
    y = b.conv_relu(x, f"{name}/layer1", channels, 1)
    y = b.conv_relu(y, f"{name}/layer2", channels, 3, stride=stride, pad=1)
    y = b.conv(y, f"{name}/layer3/conv", 4 * channels, 1, gain=0.3)
    if dims(x)[1] != 4 * channels:
        x = b.conv(x, f"{name}/shortcut/conv", 4 * channels, 1, gain=0.8)
    elif stride == 2:
        x = b.max_pool(x, f"{name}/shortcut/pool", 2, stride=2)
    return b.relu(b.add(y, x, f"{name}/add"), f"{name}/relu")


def pyramid(b: Builder, features: Sequence[ir.Value]) -> list[ir.Value]:
    """Levels of `WIDTH` channels, finest first; the last one is coarser than all features."""
    *finer, top = features
    y = b.conv(top, "pyramid/top/conv", WIDTH, 1, gain=0.7)
    levels = [b.conv(y, "pyramid/extra/conv", WIDTH, 3, stride=2, pad=1, gain=0.7), y]
    for number, x in reversed([*enumerate(finer)]):
        name = f"pyramid/level{number}"
        y = b.resize(y, f"{name}/resize", *dims(x)[2:], mode="nearest")
        y = b.conv(y, f"{name}/above/conv", WIDTH, 3, pad=1, gain=0.5)
        lateral = b.conv(x, f"{name}/lateral/conv", WIDTH, 1, gain=0.7)
        y = b.add(y, lateral, f"{name}/add")
        levels.append(y)
    return levels[::-1]


def context(b: Builder, x: ir.Value, name: str) -> ir.Value:
    """Features of the surroundings of each cell: three 3x3 layers side by side, and one over all of
    them."""
    branches = [
        b.conv_relu(x, f"{name}/branch{number}", channels, 3, pad=1)
        for number, channels in enumerate((WIDTH // 2, WIDTH // 4, WIDTH // 4), start=1)
    ]
    return b.conv_relu(b.concat(branches, f"{name}/concat"), f"{name}/join", WIDTH, 3, pad=1)


def head(b: Builder, x: ir.Value, name: str, channels: int) -> ir.Value:
    """`channels` numbers for each cell: [1, channels * H * W]."""
    y = b.conv(x, f"{name}/conv", channels, 3, pad=1, gain=0.7)
    return b.flatten(y, f"{name}/flatten")
