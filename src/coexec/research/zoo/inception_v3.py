"""Inception v3.

Szegedy et al., "Rethinking the Inception architecture for computer vision" (2015),
arXiv:1512.00567. Table 1 without the auxiliary classifier; blocks have the names, and details that
the paper leaves open the values, of the authors' published code.

x [1, 3, 299, 299] -> logits [1, 1000]
23 817 352 parameters (batch normalisation folded), 5 713 216 096 multiply-accumulates
"""

from __future__ import annotations

import onnx_ir as ir

from coexec.research.zoo.builder import Builder, Pair

Layer = tuple[int, Pair]
"""Channels and kernel (height, width) of a layer that keeps the resolution."""


def build() -> ir.Model:
    b = Builder("inception_v3", [1, 3, 299, 299])
    y = stem(b, b.input)
    y = inception_a(b, y, "mixed_5b", pool_channels=32)
    y = inception_a(b, y, "mixed_5c", pool_channels=64)
    y = inception_a(b, y, "mixed_5d", pool_channels=64)
    y = reduction_a(b, y, "mixed_6a")
    y = inception_b(b, y, "mixed_6b", width=128)
    y = inception_b(b, y, "mixed_6c", width=160)
    y = inception_b(b, y, "mixed_6d", width=160)
    y = inception_b(b, y, "mixed_6e", width=192)
    y = reduction_b(b, y, "mixed_7a")
    y = inception_c(b, y, "mixed_7b")
    y = inception_c(b, y, "mixed_7c")
    y = b.flatten(b.global_average_pool(y, "avgpool"), "flatten")
    return b.finish(b.gemm(y, "fc", 1000), "logits")


def stem(b: Builder, x: ir.Value) -> ir.Value:
    """[1, 3, 299, 299] -> [1, 192, 35, 35]."""
    y = b.conv_relu(x, "conv_1a_3x3", 32, 3, stride=2)
    y = b.conv_relu(y, "conv_2a_3x3", 32, 3)
    y = b.conv_relu(y, "conv_2b_3x3", 64, 3, pad=1)
    y = b.max_pool(y, "maxpool1", 3, stride=2)
    y = b.conv_relu(y, "conv_3b_1x1", 80, 1)
    y = b.conv_relu(y, "conv_4a_3x3", 192, 3)
    return b.max_pool(y, "maxpool2", 3, stride=2)


def inception_a(b: Builder, x: ir.Value, name: str, *, pool_channels: int) -> ir.Value:
    """Figure 5, at 35x35, with one branch of two 3x3 layers and one that keeps its 5x5 layer."""
    branch1x1 = b.conv_relu(x, f"{name}/branch1x1", 64, 1)
    branch5x5 = chain(b, x, f"{name}/branch5x5", (48, 1), (64, 5))
    branch3x3dbl = chain(b, x, f"{name}/branch3x3dbl", (64, 1), (96, 3), (96, 3))
    branch_pool = pool_branch(b, x, name, pool_channels)
    return b.concat([branch1x1, branch5x5, branch3x3dbl, branch_pool], f"{name}/concat")


def reduction_a(b: Builder, x: ir.Value, name: str) -> ir.Value:
    """Figure 10, from 35x35 to 17x17: strided layers beside a strided pool."""
    branch3x3 = b.conv_relu(x, f"{name}/branch3x3", 384, 3, stride=2)
    branch3x3dbl = chain(b, x, f"{name}/branch3x3dbl", (64, 1), (96, 3))
    branch3x3dbl = b.conv_relu(branch3x3dbl, f"{name}/branch3x3dbl_3", 96, 3, stride=2)
    branch_pool = b.max_pool(x, f"{name}/maxpool", 3, stride=2)
    return b.concat([branch3x3, branch3x3dbl, branch_pool], f"{name}/concat")


def inception_b(b: Builder, x: ir.Value, name: str, *, width: int) -> ir.Value:
    """Figure 6, at 17x17: each 7x7 layer is a 1x7 and a 7x1 layer."""
    row, column = (1, 7), (7, 1)
    branch1x1 = b.conv_relu(x, f"{name}/branch1x1", 192, 1)
    branch7x7 = chain(b, x, f"{name}/branch7x7", (width, 1), (width, row), (192, column))
    twice: list[Layer] = [(width, column), (width, row), (width, column), (192, row)]
    branch7x7dbl = chain(b, x, f"{name}/branch7x7dbl", (width, 1), *twice)
    branch_pool = pool_branch(b, x, name, 192)
    return b.concat([branch1x1, branch7x7, branch7x7dbl, branch_pool], f"{name}/concat")


def reduction_b(b: Builder, x: ir.Value, name: str) -> ir.Value:
    """Figure 10 with 7x7 layers, from 17x17 to 8x8."""
    branch3x3 = b.conv_relu(x, f"{name}/branch3x3_1", 192, 1)
    branch3x3 = b.conv_relu(branch3x3, f"{name}/branch3x3_2", 320, 3, stride=2)
    branch7x7x3 = chain(b, x, f"{name}/branch7x7x3", (192, 1), (192, (1, 7)), (192, (7, 1)))
    branch7x7x3 = b.conv_relu(branch7x7x3, f"{name}/branch7x7x3_4", 192, 3, stride=2)
    branch_pool = b.max_pool(x, f"{name}/maxpool", 3, stride=2)
    return b.concat([branch3x3, branch7x7x3, branch_pool], f"{name}/concat")


def inception_c(b: Builder, x: ir.Value, name: str) -> ir.Value:
    """Figure 7, at 8x8: the last 3x3 layer of a branch is a 1x3 and a 3x1 layer side by side."""
    branch1x1 = b.conv_relu(x, f"{name}/branch1x1", 320, 1)
    y = chain(b, x, f"{name}/branch3x3", (384, 1))
    branch3x3 = fork(b, y, f"{name}/branch3x3_2", 384)
    y = chain(b, x, f"{name}/branch3x3dbl", (448, 1), (384, 3))
    branch3x3dbl = fork(b, y, f"{name}/branch3x3dbl_3", 384)
    branch_pool = pool_branch(b, x, name, 192)
    return b.concat([branch1x1, *branch3x3, *branch3x3dbl, branch_pool], f"{name}/concat")


def chain(b: Builder, x: ir.Value, name: str, *layers: Layer) -> ir.Value:
    """Layers "<name>_1", "<name>_2", ... in a row, padded so that the resolution stays."""
    for number, (channels, kernel) in enumerate(layers, start=1):
        x = b.conv_relu(x, f"{name}_{number}", channels, kernel, pad=same(kernel))
    return x


def fork(b: Builder, x: ir.Value, name: str, channels: int) -> list[ir.Value]:
    """A 1x3 layer "<name>a" and a 3x1 layer "<name>b" of the same input."""
    row = b.conv_relu(x, f"{name}a", channels, (1, 3), pad=(0, 1))
    column = b.conv_relu(x, f"{name}b", channels, (3, 1), pad=(1, 0))
    return [row, column]


def pool_branch(b: Builder, x: ir.Value, name: str, channels: int) -> ir.Value:
    """A 3x3 average, then a 1x1 layer."""
    y = b.average_pool(x, f"{name}/avgpool", 3, stride=1, pad=1)
    return b.conv_relu(y, f"{name}/branch_pool", channels, 1)


def same(kernel: Pair) -> Pair:
    """The padding with which an odd kernel keeps the resolution."""
    return (kernel[0] // 2, kernel[1] // 2) if isinstance(kernel, tuple) else kernel // 2
