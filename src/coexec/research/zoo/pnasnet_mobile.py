"""PNASNet-5 (3, 54), called PNASNet mobile.

Liu et al., "Progressive neural architecture search" (2017), arXiv:1712.00559, the network of the
mobile setting: published with 5.1 million parameters and 588 million multiply-accumulates. Sizes
that the paper leaves open are those of the authors' published code: 32 channels in the stem's
layer, 13 and 27 in its cells. All else is as in `pnasnet_large`.

x [1, 3, 224, 224] -> logits [1, 1000]
5 048 870 parameters (batch normalisation folded into convolutions, where one stands
before it), 587 293 200 multiply-accumulates
"""

from __future__ import annotations

import onnx_ir as ir

from coexec.research.zoo.cells import CellBuilder
from coexec.research.zoo.pnasnet_large import network


def build() -> ir.Model:
    b = CellBuilder("pnasnet_mobile", [1, 3, 224, 224])
    return network(b, stem_channels=32, channels=54, cells=3)
