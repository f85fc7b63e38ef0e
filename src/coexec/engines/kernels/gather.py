"""Gather: elements at constant positions along one axis.

Indices that a model computes, or that are fed, are ONNX Runtime's: it checks them. An embedding is
a copy of a few rows of a large table, which cores do as fast.
"""

from collections.abc import Mapping

import numpy as np

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source
from coexec.engines.kernels.gather_text import moved
from coexec.engines.kernels.positions import at
from coexec.graph.graph import Operator, Tensor

__all__ = ["KERNELS"]


def why_not(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    return None if tensors[op.inputs[1]].constant else "the indices of Gather are computed"


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """
    Raises:
        ValueError: an index is out of range.
    """
    op = node.operator
    source = Source("gather", context.arch)
    x = source.read("x", context.operand(op.inputs[0]))
    axis = op.int("axis", 0) % len(x.shape)
    size = x.shape[axis]
    indices = context.constants[op.inputs[1]]
    if indices.min() < -size or indices.max() >= size:
        raise ValueError(f"an index of {op.outputs[0]!r} is not one of {size} elements")
    places = np.where(indices < 0, indices + size, indices).astype(np.int32)
    source.read("indices", places)
    y = context.value(node.output)
    rank = places.ndim
    p = [f"p{a}" for a in range(len(y.shape))]
    lines = [f"const int q{axis} = GET_indices({at('indices', p[axis : axis + rank])});"]
    coordinates = [*p[:axis], f"q{axis}", *p[axis + rank :]]
    residue = None if axis == 1 else 0  # a channel stays where it is in its block
    return [moved(source, x, y, coordinates, lines=lines, residue=residue)]


KERNELS = {"Gather": Kernel(launches, why_not=why_not, refuses="computed indices")}
