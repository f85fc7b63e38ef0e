"""PoseNet for the keypoints of a hand, at the size of CoDL's measurements.

Zimmermann and Brox, "Learning to estimate 3D hand pose from single RGB images" (2017),
arXiv:1705.01389, section 4.2: a VGG-like encoder, then stages of 7x7 layers that refine the score
maps, as in Wei et al., "Convolutional pose machines" (2016), arXiv:1602.00134. Layers and
activations as in the authors' code (github.com/lmb-freiburg/hand3d). That this is the PoseNet of
Jia et al., "CoDL" (MobiSys 2022) follows from its public code, which lists the same convolutions
(github.com/csu-eis/CoDL, dataset_conv2d_large_cnn.csv).

The PoseNet that people export for the pose of a whole body is another network: MobileNet v1 with
four heads (Papandreou et al. 2018, arXiv:1803.08225), 1.62 * 10^9 for 353 x 257 pixels.

x [1, 3, 256, 256] -> logits [1, 21, 32, 32]: a score map for each keypoint
17 518 847 parameters, 30 162 288 640 multiply-accumulates; 30.16 * 10^9 in the paper
"""

from __future__ import annotations

import onnx_ir as ir

from coexec.research.zoo.builder import Builder

BLOCKS = ((64, 2), (128, 2), (256, 4))
"""Channels and number of 3x3 layers in front of each pool."""
ENCODER = (512, 512, 256, 256, 256, 256, 128)
"""Channels of the 3x3 layers behind the last pool."""
KEYPOINTS = 21
REFINEMENTS = 2
SLOPE = 0.01
"""Slope of the leaky ReLUs."""


def build(size: int = 256) -> ir.Model:
    """The network for `size` x `size` pixels, a multiple of 8."""
    b = Builder("posenet", [1, 3, size, size])
    code = encoder(b)
    y = b.conv_leaky_relu(code, "conv5/layer1", 512, 1, SLOPE)
    scores = b.conv(y, "conv5/scores/conv", KEYPOINTS, 1)
    for number in range(6, 6 + REFINEMENTS):
        scores = refined(b, scores, code, f"conv{number}")
    return b.finish(scores, "logits")


def encoder(b: Builder) -> ir.Value:
    """Features of 128 channels at 1/8 of the resolution."""
    y = b.input
    for block, (channels, depth) in enumerate(BLOCKS, start=1):
        for layer in range(1, depth + 1):
            y = b.conv_leaky_relu(y, f"conv{block}/layer{layer}", channels, 3, SLOPE)
        y = b.max_pool(y, f"pool{block}", 2, stride=2)
    for layer, channels in enumerate(ENCODER, start=1):
        y = b.conv_leaky_relu(y, f"conv4/layer{layer}", channels, 3, SLOPE)
    return y


def refined(b: Builder, scores: ir.Value, code: ir.Value, name: str) -> ir.Value:
    """Better score maps, from score maps and the features from which they were computed."""
    y = b.concat([scores, code], f"{name}/concat")
    for layer in range(1, 6):
        y = b.conv_leaky_relu(y, f"{name}/layer{layer}", 128, 7, SLOPE)
    y = b.conv_leaky_relu(y, f"{name}/layer6", 128, 1, SLOPE)
    return b.conv(y, f"{name}/scores/conv", KEYPOINTS, 1)
