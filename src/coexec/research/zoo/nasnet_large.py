"""NASNet-A (6 @ 4032), called NASNet large.

Zoph et al., "Learning transferable architectures for scalable image recognition" (2017),
arXiv:1707.07012, figures 2 and 4. Details that the paper leaves open are as in the authors'
published code: two reduction cells as a stem; how inputs of a cell with different shapes are
joined; and the inputs of the cell after a reduction, which are the output of the reduction and the
older of its two inputs. Unlike that code, strided averages count the padding, as in timm.

x [1, 3, 331, 331] -> logits [1, 1000]
88 658 596 parameters (batch normalisation folded into convolutions, where one stands
before it), 23 783 414 658 multiply-accumulates
"""

from __future__ import annotations

import onnx_ir as ir

from coexec.research.zoo.builder import dims
from coexec.research.zoo.cells import CellBuilder

STAGES = (168, 336, 672)
"""Channels of each branch of a cell, per stage; all but the first begin with a reduction."""
CELLS = 6
"""Normal cells of each stage."""


def build() -> ir.Model:
    b = CellBuilder("nasnet_large", [1, 3, 331, 331])
    stem = b.conv(b.input, "stem", 96, 3, stride=2)
    older = reduction_cell(b, b.relu_conv(stem, "stem_0/squeeze", 42), stem, "stem_0")
    squeezed = b.relu_conv(older, "stem_1/squeeze", 84)
    newer = reduction_cell(b, squeezed, b.fit(stem, "stem_1/fit", 84, like=older), "stem_1")
    for stage, channels in enumerate(STAGES):
        if stage:
            h, p = join(b, older, newer, f"reduction_{stage}", channels)
            newer = reduction_cell(b, h, p, f"reduction_{stage}")
        for number in range(stage * CELLS, (stage + 1) * CELLS):
            h, p = join(b, older, newer, f"cell_{number}", channels)
            older, newer = newer, normal_cell(b, h, p, f"cell_{number}")
    return b.classify(newer)


def join(
    b: CellBuilder, older: ir.Value, newer: ir.Value, name: str, channels: int
) -> tuple[ir.Value, ir.Value]:
    """Outputs of the last two cells, newer first, with equal channels and resolution."""
    p = b.fit(older, f"{name}/fit", channels, like=newer)
    return b.relu_conv(newer, f"{name}/squeeze", channels), p


def normal_cell(b: CellBuilder, h: ir.Value, p: ir.Value, name: str) -> ir.Value:
    """Figure 4, left: [1, C, H, W] twice -> [1, 6 C, H, W]."""
    channels = dims(h)[1]
    left = b.separable(h, f"{name}/y1/left", channels, 5)
    right = b.separable(p, f"{name}/y1/right", channels, 3)
    y1 = b.add(left, right, f"{name}/y1/add")
    left = b.separable(p, f"{name}/y2/left", channels, 5)
    right = b.separable(p, f"{name}/y2/right", channels, 3)
    y2 = b.add(left, right, f"{name}/y2/add")
    y3 = b.add(b.average_pool_3x3(h, f"{name}/y3/avgpool"), p, f"{name}/y3/add")
    pool = b.average_pool_3x3(p, f"{name}/y4/avgpool")  # both operands of the sum are this mean
    y4 = b.add(pool, pool, f"{name}/y4/add")
    y5 = b.add(b.separable(h, f"{name}/y5/left", channels, 3), h, f"{name}/y5/add")
    return b.concat([p, y1, y2, y3, y4, y5], f"{name}/concat")


def reduction_cell(b: CellBuilder, h: ir.Value, p: ir.Value, name: str) -> ir.Value:
    """Figure 4, right: h [1, C, H, W], p [1, any, H, W] -> [1, 4 C, H / 2, W / 2]."""
    channels = dims(h)[1]
    left = b.separable(h, f"{name}/y1/left", channels, 5, stride=2)
    right = b.separable(p, f"{name}/y1/right", channels, 7, stride=2)
    y1 = b.add(left, right, f"{name}/y1/add")
    largest = b.max_pool_3x3(h, f"{name}/maxpool", stride=2)
    right = b.separable(p, f"{name}/y2/right", channels, 7, stride=2)
    y2 = b.add(largest, right, f"{name}/y2/add")
    left = b.average_pool_3x3(h, f"{name}/y3/avgpool", stride=2)
    right = b.separable(p, f"{name}/y3/right", channels, 5, stride=2)
    y3 = b.add(left, right, f"{name}/y3/add")
    y4 = b.add(b.average_pool_3x3(y1, f"{name}/y4/avgpool"), y2, f"{name}/y4/add")
    y5 = b.add(b.separable(y1, f"{name}/y5/left", channels, 3), largest, f"{name}/y5/add")
    return b.concat([y2, y3, y4, y5], f"{name}/concat")
