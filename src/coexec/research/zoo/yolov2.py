"""YOLOv2 on Pascal VOC, at the size of CoDL's measurements.

Redmon and Farhadi, "YOLO9000: better, faster, stronger" (2016), arXiv:1612.08242: Darknet-19 of
table 6 and the detector of section 2. The sizes are those of Jia et al., "CoDL: efficient CPU-GPU
co-execution for deep learning inference on mobile devices" (MobiSys 2022), whose public code lists
every convolution (github.com/csu-eis/CoDL, dataset_conv2d_large_cnn.csv): 416 x 416 pixels and 1536
channels in front of the last 3x3 layer, 1024 of which come from the layer before it. The 1x1 layer
of the passthrough is not in the list; with 128 channels it gives the other 512. (Darknet's own
configuration has 64 there, and 14.68 * 10^9 multiply-accumulates in all.)

x [1, 3, 416, 416] -> logits [1, 125, 13, 13]: 5 boxes of 4 + 1 + 20 numbers in each cell
53 037 181 parameters (batch normalisation folded)
15 101 039 616 multiply-accumulates; 15.06 * 10^9 in the paper (+ 0.3 %)
"""

from __future__ import annotations

import onnx_ir as ir

from coexec.research.zoo.builder import Builder

STAGES: tuple[tuple[tuple[int, int], ...], ...] = (
    ((32, 3),),
    ((64, 3),),
    ((128, 3), (64, 1), (128, 3)),
    ((256, 3), (128, 1), (256, 3)),
    ((512, 3), (256, 1), (512, 3), (256, 1), (512, 3)),
    ((1024, 3), (512, 1), (1024, 3), (512, 1), (1024, 3)),
)
"""Darknet-19: channels and kernel of each layer; each stage but the first starts with a pool."""
SLOPE = 0.1
"""Slope of the leaky ReLUs."""


def build(size: int = 416, outputs: int = 125, passthrough: int = 128) -> ir.Model:
    """The network for `size` x `size` pixels, a multiple of 32.

    `outputs` is boxes * (5 + classes), `passthrough` the channels that skip the last stage.
    """
    b = Builder("yolov2", [1, 3, size, size])
    y = fine = b.input
    for number, stage in enumerate(STAGES, start=1):
        if number > 1:
            fine = y
            y = b.max_pool(y, f"stage{number}/pool", 2, stride=2)
        for layer, (channels, kernel) in enumerate(stage, start=1):
            y = b.conv_leaky_relu(y, f"stage{number}/layer{layer}", channels, kernel, SLOPE)
    y = b.conv_leaky_relu(y, "detect/layer1", 1024, 3, SLOPE)
    y = b.conv_leaky_relu(y, "detect/layer2", 1024, 3, SLOPE)
    fine = b.conv_leaky_relu(fine, "passthrough", passthrough, 1, SLOPE)
    y = b.concat([b.space_to_depth(fine, "reorg", 2), y], "detect/concat")
    y = b.conv_leaky_relu(y, "detect/layer3", 1024, 3, SLOPE)
    return b.finish(b.conv(y, "detect/boxes/conv", outputs, 1), "logits")
