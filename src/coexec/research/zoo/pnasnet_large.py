"""PNASNet-5 (4, 216), called PNASNet large.

Liu et al., "Progressive neural architecture search" (2017), arXiv:1712.00559, figure 1. Details
that the paper leaves open are as in the authors' published code: two strided cells as a stem, and
how inputs of a cell with different shapes are joined.

x [1, 3, 331, 331] -> logits [1, 1000]
85 974 034 parameters (batch normalisation folded into convolutions, where one stands
before it), 24 937 395 792 multiply-accumulates
"""

from __future__ import annotations

import onnx_ir as ir

from coexec.research.zoo.builder import dims
from coexec.research.zoo.cells import SHARE, CellBuilder


def build() -> ir.Model:
    b = CellBuilder("pnasnet_large", [1, 3, 331, 331])
    return network(b, stem_channels=96, channels=216, cells=4)


def network(b: CellBuilder, *, stem_channels: int, channels: int, cells: int) -> ir.Model:
    """Three stages of `cells` cells: the first cell of the second and of the third has stride two.

    `channels` is F of the paper: channels of each branch of the cells of the first stage. They
    double from stage to stage, and are a half and a quarter of it, rounded down, in the stem.
    """
    stem = b.conv(b.input, "stem", stem_channels, 3, stride=2)
    h = b.relu_conv(stem, "stem_0/squeeze", channels // 4)
    older = cell(b, h, stem, "stem_0", stride=2)
    newer = after(b, stem, older, "stem_1", channels // 2, stride=2)
    for number in range(3 * cells):
        stage, place = divmod(number, cells)
        stride = 2 if stage and not place else 1
        y = after(b, older, newer, f"cell_{number}", channels << stage, stride)
        older, newer = newer, y
    return b.classify(newer)


def after(
    b: CellBuilder, older: ir.Value, newer: ir.Value, name: str, channels: int, stride: int
) -> ir.Value:
    """The cell that follows the cells with the outputs `older` and `newer`."""
    p = b.fit(older, f"{name}/fit", channels, like=newer)
    h = b.relu_conv(newer, f"{name}/squeeze", channels)
    return cell(b, h, p, name, stride)


def cell(b: CellBuilder, h: ir.Value, p: ir.Value, name: str, stride: int) -> ir.Value:
    """Figure 1, left: h [1, C, H, W], p [1, any, H, W] -> [1, 5 C, H / stride, W / stride]."""
    channels = dims(h)[1]
    left = b.separable(p, f"{name}/y1/left", channels, 5, stride)
    right = b.max_pool_3x3(p, f"{name}/y1/maxpool", stride)
    if dims(right)[1] != channels:
        right = b.conv(right, f"{name}/y1/right/conv", channels, 1, gain=SHARE)
    y1 = b.add(left, right, f"{name}/y1/add")
    left = b.separable(h, f"{name}/y2/left", channels, 7, stride)
    largest = b.max_pool_3x3(h, f"{name}/maxpool", stride)
    y2 = b.add(left, largest, f"{name}/y2/add")
    left = b.separable(h, f"{name}/y3/left", channels, 5, stride)
    right = b.separable(h, f"{name}/y3/right", channels, 3, stride)
    y3 = b.add(left, right, f"{name}/y3/add")
    y4 = b.add(b.separable(y3, f"{name}/y4/left", channels, 3), largest, f"{name}/y4/add")
    left = b.separable(p, f"{name}/y5/left", channels, 3, stride)
    right = h if stride == 1 else b.relu_conv(h, f"{name}/y5/right", channels, stride)
    return b.concat([y1, y2, y3, y4, b.add(left, right, f"{name}/y5/add")], f"{name}/concat")
