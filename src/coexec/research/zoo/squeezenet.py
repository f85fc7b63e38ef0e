"""SqueezeNet 1.0.

Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters and <0.5MB model size"
(2016), arXiv:1602.07360, table 1: the variant without bypass.

x [1, 3, 224, 224] -> logits [1, 1000]
1 248 424 parameters, 818 924 576 multiply-accumulates
"""

from __future__ import annotations

import onnx_ir as ir

from coexec.research.zoo.builder import Builder


def build() -> ir.Model:
    b = Builder("squeezenet", [1, 3, 224, 224])
    y = b.conv_relu(b.input, "conv1", 96, 7, stride=2)
    y = pool(b, y, "pool1")
    y = fire(b, y, "fire2", squeeze=16, expand=64)
    y = fire(b, y, "fire3", squeeze=16, expand=64)
    y = fire(b, y, "fire4", squeeze=32, expand=128)
    y = pool(b, y, "pool4")
    y = fire(b, y, "fire5", squeeze=32, expand=128)
    y = fire(b, y, "fire6", squeeze=48, expand=192)
    y = fire(b, y, "fire7", squeeze=48, expand=192)
    y = fire(b, y, "fire8", squeeze=64, expand=256)
    y = pool(b, y, "pool8")
    y = fire(b, y, "fire9", squeeze=64, expand=256)
    y = b.conv_relu(y, "conv10", 1000, 1)
    y = b.global_average_pool(y, "pool10")
    return b.finish(b.flatten(y, "flatten"), "logits")


def fire(b: Builder, x: ir.Value, name: str, *, squeeze: int, expand: int) -> ir.Value:
    """Figure 1: 1x1 to `squeeze` channels, then 1x1 and 3x3 side by side to `expand` each."""
    narrow = b.conv_relu(x, f"{name}/squeeze1x1", squeeze, 1)
    wide1x1 = b.conv_relu(narrow, f"{name}/expand1x1", expand, 1)
    wide3x3 = b.conv_relu(narrow, f"{name}/expand3x3", expand, 3, pad=1)
    return b.concat([wide1x1, wide3x3], f"{name}/concat")


def pool(b: Builder, x: ir.Value, name: str) -> ir.Value:
    """3x3 windows, two apart; the last one may hang over the edge (Caffe's rounding)."""
    return b.max_pool(x, name, 3, stride=2, ceil_mode=True)
