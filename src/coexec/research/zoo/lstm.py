"""One LSTM layer of 1024 units.

Hochreiter and Schmidhuber, "Long short-term memory", Neural Computation 9(8) (1997), with the
forget gate of Gers et al., "Learning to forget", Neural Computation 12(10) (2000).

x [10, 1, 1024], ten time steps -> y [10, 1, 1024]
8 396 800 parameters, 83 886 080 multiply-accumulates
"""

from __future__ import annotations

import onnx_ir as ir

from coexec.research.zoo.builder import Builder


def build() -> ir.Model:
    b = Builder("lstm", [10, 1, 1024])
    y = b.lstm(b.input, "lstm", 1024)
    return b.finish(b.squeeze(y, "squeeze", axis=1), "y")
