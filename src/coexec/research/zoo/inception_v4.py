"""Inception v4.

Szegedy et al., "Inception-v4, Inception-ResNet and the impact of residual connections on learning"
(2016), arXiv:1602.07261, figures 3 to 9. Names of blocks are from the authors' published code, and
so is the order of each pair of 1x7 and 7x1 or 1x3 and 3x1 layers; the paper has some in reverse.

x [1, 3, 299, 299] -> logits [1, 1000]
42 648 232 parameters (batch normalisation folded), 12 253 974 624 multiply-accumulates
"""

from __future__ import annotations

import onnx_ir as ir

from coexec.research.zoo.builder import Builder
from coexec.research.zoo.inception_v3 import chain, fork

ROW, COLUMN = (1, 7), (7, 1)


def build() -> ir.Model:
    b = Builder("inception_v4", [1, 3, 299, 299])
    y = stem(b, b.input)
    for letter in "bcde":
        y = inception_a(b, y, f"mixed_5{letter}")
    y = reduction_a(b, y, "mixed_6a")
    for letter in "bcdefgh":
        y = inception_b(b, y, f"mixed_6{letter}")
    y = reduction_b(b, y, "mixed_7a")
    for letter in "bcd":
        y = inception_c(b, y, f"mixed_7{letter}")
    y = b.flatten(b.global_average_pool(y, "avgpool"), "flatten")
    return b.finish(b.gemm(y, "fc", 1000), "logits")


def stem(b: Builder, x: ir.Value) -> ir.Value:
    """Figure 3: [1, 3, 299, 299] -> [1, 384, 35, 35]."""
    y = b.conv_relu(x, "conv_1a_3x3", 32, 3, stride=2)
    y = b.conv_relu(y, "conv_2a_3x3", 32, 3)
    y = b.conv_relu(y, "conv_2b_3x3", 64, 3, pad=1)
    pool = b.max_pool(y, "mixed_3a/maxpool", 3, stride=2)
    y = b.concat([pool, b.conv_relu(y, "mixed_3a/branch3x3", 96, 3, stride=2)], "mixed_3a/concat")
    short = chain(b, y, "mixed_4a/branch3x3", (64, 1))
    short = b.conv_relu(short, "mixed_4a/branch3x3_2", 96, 3)
    long = chain(b, y, "mixed_4a/branch7x7", (64, 1), (64, ROW), (64, COLUMN))
    long = b.conv_relu(long, "mixed_4a/branch7x7_4", 96, 3)
    y = b.concat([short, long], "mixed_4a/concat")
    conv = b.conv_relu(y, "mixed_5a/branch3x3", 192, 3, stride=2)
    return b.concat([conv, b.max_pool(y, "mixed_5a/maxpool", 3, stride=2)], "mixed_5a/concat")


def inception_a(b: Builder, x: ir.Value, name: str) -> ir.Value:
    """Figure 4, at 35x35."""
    branch1x1 = b.conv_relu(x, f"{name}/branch1x1", 96, 1)
    branch3x3 = chain(b, x, f"{name}/branch3x3", (64, 1), (96, 3))
    branch3x3dbl = chain(b, x, f"{name}/branch3x3dbl", (64, 1), (96, 3), (96, 3))
    branch_pool = pool_branch(b, x, name, 96)
    return b.concat([branch1x1, branch3x3, branch3x3dbl, branch_pool], f"{name}/concat")


def reduction_a(b: Builder, x: ir.Value, name: str) -> ir.Value:
    """Figure 7 with table 1, from 35x35 to 17x17."""
    branch3x3 = b.conv_relu(x, f"{name}/branch3x3", 384, 3, stride=2)
    branch3x3dbl = chain(b, x, f"{name}/branch3x3dbl", (192, 1), (224, 3))
    branch3x3dbl = b.conv_relu(branch3x3dbl, f"{name}/branch3x3dbl_3", 256, 3, stride=2)
    branch_pool = b.max_pool(x, f"{name}/maxpool", 3, stride=2)
    return b.concat([branch3x3, branch3x3dbl, branch_pool], f"{name}/concat")


def inception_b(b: Builder, x: ir.Value, name: str) -> ir.Value:
    """Figure 5, at 17x17."""
    branch1x1 = b.conv_relu(x, f"{name}/branch1x1", 384, 1)
    branch7x7 = chain(b, x, f"{name}/branch7x7", (192, 1), (224, ROW), (256, COLUMN))
    branch7x7dbl = chain(
        b,
        x,
        f"{name}/branch7x7dbl",
        (192, 1),
        (192, COLUMN),
        (224, ROW),
        (224, COLUMN),
        (256, ROW),
    )
    branch_pool = pool_branch(b, x, name, 128)
    return b.concat([branch1x1, branch7x7, branch7x7dbl, branch_pool], f"{name}/concat")


def reduction_b(b: Builder, x: ir.Value, name: str) -> ir.Value:
    """Figure 8, from 17x17 to 8x8."""
    branch3x3 = chain(b, x, f"{name}/branch3x3", (192, 1))
    branch3x3 = b.conv_relu(branch3x3, f"{name}/branch3x3_2", 192, 3, stride=2)
    branch7x7x3 = chain(b, x, f"{name}/branch7x7x3", (256, 1), (256, ROW), (320, COLUMN))
    branch7x7x3 = b.conv_relu(branch7x7x3, f"{name}/branch7x7x3_4", 320, 3, stride=2)
    branch_pool = b.max_pool(x, f"{name}/maxpool", 3, stride=2)
    return b.concat([branch3x3, branch7x7x3, branch_pool], f"{name}/concat")


def inception_c(b: Builder, x: ir.Value, name: str) -> ir.Value:
    """Figure 6, at 8x8: two branches end in a 1x3 and a 3x1 layer side by side."""
    branch1x1 = b.conv_relu(x, f"{name}/branch1x1", 256, 1)
    y = chain(b, x, f"{name}/branch3x3", (384, 1))
    branch3x3 = fork(b, y, f"{name}/branch3x3_2", 256)
    y = chain(b, x, f"{name}/branch3x3dbl", (384, 1), (448, (3, 1)), (512, (1, 3)))
    branch3x3dbl = fork(b, y, f"{name}/branch3x3dbl_4", 256)
    branch_pool = pool_branch(b, x, name, 256)
    return b.concat([branch1x1, *branch3x3, *branch3x3dbl, branch_pool], f"{name}/concat")


def pool_branch(b: Builder, x: ir.Value, name: str, channels: int) -> ir.Value:
    """A 3x3 average that does not count the padding, then a 1x1 layer."""
    y = b.average_pool(x, f"{name}/avgpool", 3, stride=1, pad=1, count_include_pad=False)
    return b.conv_relu(y, f"{name}/branch_pool", channels, 1)
