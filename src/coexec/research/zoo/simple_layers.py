"""Layers without weights and windows: elementwise operations and changes of shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from coexec.research.zoo.recording import Recording, dims

__all__ = ["SimpleLayers"]


class SimpleLayers(Recording):
    """Each method records one layer and returns the tensor it makes."""

    def relu(self, x: ir.Value, name: str) -> ir.Value:
        """max(x, 0), any shape."""
        return self._layer("Relu", [x], name, dims(x))

    def relu6(self, x: ir.Value, name: str) -> ir.Value:
        """Clip to [0, 6], any shape; all Clips of a network share the two bounds."""
        low = self._constant("relu6/min", np.array(0, np.float32))
        high = self._constant("relu6/max", np.array(6, np.float32))
        return self._layer("Clip", [x, low, high], name, dims(x))

    def leaky_relu(self, x: ir.Value, name: str, slope: float) -> ir.Value:
        """x where it is positive, else slope * x, any shape."""
        return self._layer("LeakyRelu", [x], name, dims(x), alpha=slope)

    def hard_swish(self, x: ir.Value, name: str) -> ir.Value:
        """x * min(max(x + 3, 0), 6) / 6, any shape."""
        return self._layer("HardSwish", [x], name, dims(x))

    def hard_sigmoid(self, x: ir.Value, name: str) -> ir.Value:
        """min(max(x + 3, 0), 6) / 6, any shape."""
        return self._layer("HardSigmoid", [x], name, dims(x), alpha=1 / 6)

    def resize(
        self, x: ir.Value, name: str, height: int, width: int, *, mode: str = "linear"
    ) -> ir.Value:
        """[1, C, H, W] -> [1, C, height, width]; `mode` is the ONNX mode, "linear" or "nearest"."""
        out = [*dims(x)[:2], height, width]
        sizes = self._constant(f"{name}/sizes", np.array(out, np.int64))
        return self._layer("Resize", [x, None, None, sizes], name, out, mode=mode)

    def space_to_depth(self, x: ir.Value, name: str, block: int) -> ir.Value:
        """[1, C, H, W] -> [1, C * block^2, H / block, W / block]: squares become channels."""
        batch, channels, height, width = dims(x)
        out = [batch, channels * block**2, height // block, width // block]
        return self._layer("SpaceToDepth", [x], name, out, blocksize=block)

    def flatten(self, x: ir.Value, name: str) -> ir.Value:
        """[1, ...] -> [1, product of the rest]."""
        return self._layer("Flatten", [x], name, [1, math.prod(dims(x)[1:])], axis=1)

    def concat(self, xs: Sequence[ir.Value], name: str) -> ir.Value:
        """Joins [1, C1, H, W], [1, C2, H, W], ... to [1, C1 + C2 + ..., H, W]."""
        out = list(dims(xs[0]))
        out[1] = sum(dims(x)[1] for x in xs)
        return self._layer("Concat", xs, name, out, axis=1)

    def add(self, a: ir.Value, b: ir.Value, name: str) -> ir.Value:
        """Sum of two tensors of the same shape."""
        return self._layer("Add", [a, b], name, dims(a))

    def mul(self, gate: ir.Value, x: ir.Value, name: str) -> ir.Value:
        """[1, C, 1, 1] times [1, C, H, W] -> [1, C, H, W]."""
        return self._layer("Mul", [gate, x], name, dims(x))

    def squeeze(self, x: ir.Value, name: str, axis: int) -> ir.Value:
        """Drops `axis`, whose size is 1."""
        axes = self._constant(f"{name}/axes", np.array([axis], np.int64))
        out = [d for i, d in enumerate(dims(x)) if i != axis]
        return self._layer("Squeeze", [x, axes], name, out)
