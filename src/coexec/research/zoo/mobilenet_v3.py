"""MobileNet v3 large, width 1.0.

Howard et al., "Searching for MobileNetV3" (2019), arXiv:1905.02244, table 1.

x [1, 3, 224, 224] -> logits [1, 1000]
5 470 832 parameters (batch normalisation folded), 216 589 760 multiply-accumulates
"""

from __future__ import annotations

from typing import NamedTuple

import onnx_ir as ir

from coexec.research.zoo.builder import Builder, dims


class Block(NamedTuple):
    """A row of table 1."""

    kernel: int
    expanded: int
    channels: int
    squeezed: int  # channels within the squeeze-and-excitation; 0: there is none
    hard_swish: bool  # instead of ReLU
    stride: int


BLOCKS = (
    Block(3, 16, 16, 0, False, 1),
    Block(3, 64, 24, 0, False, 2),
    Block(3, 72, 24, 0, False, 1),
    Block(5, 72, 40, 24, False, 2),
    Block(5, 120, 40, 32, False, 1),
    Block(5, 120, 40, 32, False, 1),
    Block(3, 240, 80, 0, True, 2),
    Block(3, 200, 80, 0, True, 1),
    Block(3, 184, 80, 0, True, 1),
    Block(3, 184, 80, 0, True, 1),
    Block(3, 480, 112, 120, True, 1),
    Block(3, 672, 112, 168, True, 1),
    Block(5, 672, 160, 168, True, 2),
    Block(5, 960, 160, 240, True, 1),
    Block(5, 960, 160, 240, True, 1),
)
LAST_STAGE = 13
"""Number of the block that begins with the last halving of the resolution."""


def build() -> ir.Model:
    b = Builder("mobilenet_v3", [1, 3, 224, 224])
    y = b.flatten(b.global_average_pool(backbone(b), "avgpool"), "flatten")
    y = b.hard_swish(b.gemm(y, "fc1", 1280), "fc1/hswish")
    return b.finish(b.gemm(y, "fc2", 1000), "logits")


def backbone(b: Builder, *, atrous: bool = False) -> ir.Value:
    """[1, 3, H, W] -> [1, 960, H / 32, W / 32].

    With `atrous`, the last stage keeps the resolution H / 16, W / 16: its depthwise filters have
    dilation 2 instead of stride 2.
    """
    y = b.conv(b.input, "stem/conv", 16, 3, stride=2, pad=1)
    y = b.hard_swish(y, "stem/hswish")
    for number, block in enumerate(BLOCKS, start=1):
        dilation = 2 if atrous and number >= LAST_STAGE else 1
        y = inverted_residual(b, y, f"block{number}", block, dilation)
    y = b.conv(y, "head/conv", 960, 1)
    return b.hard_swish(y, "head/hswish")


def inverted_residual(b: Builder, x: ir.Value, name: str, block: Block, dilation: int) -> ir.Value:
    """Figure 4: to more channels, a filter for each, a gate for each, and back."""
    y, group = x, block.expanded
    if group != dims(x)[1]:
        y = activation(b, b.conv(x, f"{name}/expand/conv", group, 1, gain=0.6), block)
    y = b.conv(
        y,
        f"{name}/depthwise/conv",
        group,
        block.kernel,
        stride=block.stride if dilation == 1 else 1,
        pad=block.kernel // 2 * dilation,
        dilation=dilation,
        group=group,
    )
    y = activation(b, y, block)
    if block.squeezed:
        y = squeeze_and_excite(b, y, f"{name}/gate", block.squeezed)
    # Gates halve their input. A block adds little to its shortcut, so that the sum does not grow
    # from block to block.
    keeps_shape = (block.channels, block.stride) == (dims(x)[1], 1)
    gain = (1.8 if block.squeezed else 1.0) * (0.45 if keeps_shape else 1.0)
    y = b.conv(y, f"{name}/project/conv", block.channels, 1, gain=gain)
    return b.add(y, x, f"{name}/add") if keeps_shape else y


def activation(b: Builder, x: ir.Value, block: Block) -> ir.Value:
    return b.hard_swish(x, f"{x.name}/hswish") if block.hard_swish else b.relu(x, f"{x.name}/relu")


def squeeze_and_excite(b: Builder, x: ir.Value, name: str, squeezed: int) -> ir.Value:
    """Hu et al. 2017, arXiv:1709.01507: each channel times a factor computed from the means of all
    channels."""
    y = b.global_average_pool(x, f"{name}/avgpool")
    y = b.conv_relu(y, f"{name}/squeeze", squeezed, 1)
    y = b.conv(y, f"{name}/excite/conv", dims(x)[1], 1)
    return b.mul(b.hard_sigmoid(y, f"{name}/hsigmoid"), x, f"{name}/mul")
