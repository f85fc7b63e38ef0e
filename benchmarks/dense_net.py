"""DenseNet-121 as PyTorch exports it: each layer reads a Concat of all earlier layers of its block.

Huang et al., "Densely connected convolutional networks" (2017), arXiv:1608.06993. Its Concats have
up to 25 inputs, and no layer has the shapes of another one, so planners compute all costs anew for
each layer.
"""

import onnx_ir as ir

from coexec.research.zoo.layers import Layers, dims

__all__ = ["dense_net"]

BLOCKS = (6, 12, 24, 16)
"""Layers of each block."""
GROWTH = 32
"""Channels that each layer adds."""


def dense_net() -> ir.Model:
    """x [1, 3, 224, 224] -> logits [1, 1000]."""
    b = _Builder("densenet121", [1, 3, 224, 224])
    y = b.conv_relu(b.input, "conv0", 64, 7, stride=2, pad=3)
    y = b.max_pool(y, "pool0", 3, stride=2, pad=1)
    for number, layers in enumerate(BLOCKS):
        y = b.block(y, f"block{number}", layers)
        if number + 1 < len(BLOCKS):
            y = b.transition(y, f"transition{number}")
    y = b.global_average_pool(b.norm_relu(y, "norm5"), "pool5")
    return b.finish(b.gemm(b.flatten(y, "flatten"), "classifier", 1000), "logits")


class _Builder(Layers):
    def block(self, x: ir.Value, name: str, layers: int) -> ir.Value:
        """[1, C, H, W] -> [1, C + layers * GROWTH, H, W]."""
        made = [x]
        for number in range(layers):
            layer = f"{name}/layer{number}"
            y = self.concat(made, f"{layer}/concat") if number else x
            y = self.conv_relu(self.norm_relu(y, f"{layer}/norm1"), f"{layer}/1x1", 4 * GROWTH, 1)
            made.append(self.conv(y, f"{layer}/3x3", GROWTH, 3, pad=1, bias=False))
        return self.concat(made, f"{name}/concat")

    def transition(self, x: ir.Value, name: str) -> ir.Value:
        """[1, C, H, W] -> [1, C / 2, H / 2, W / 2]."""
        y = self.conv(self.norm_relu(x, f"{name}/norm"), f"{name}/conv", dims(x)[1] // 2, 1)
        return self.average_pool(y, f"{name}/pool", 2, stride=2)

    def norm_relu(self, x: ir.Value, name: str) -> ir.Value:
        """Batch normalisation, which no convolution before it can take over, and Relu."""
        return self.relu(self.batch_norm(x, name), f"{name}/relu")
