"""Operators whose kernels are made for GPUs.

On CPU cores ONNX Runtime computes them in a fraction of the time, so this engine refuses them
there.
"""

import math
from collections.abc import Mapping

from coexec.engines.kernels import conv_images, conv_transpose, einsum
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import Context
from coexec.graph.graph import Operator, Tensor

__all__ = ["why_slow"]

_SMALL = 2**18
"""Products or sums that take no longer, one by one, than the start of a program."""


def why_slow(op: Operator, tensors: Mapping[str, Tensor], arch: Architecture) -> str | None:
    """Why cores of ``arch`` should not run ``op``, or None."""
    description = _what(op, tensors, arch)
    if description is None:
        return None
    return f"{description}: on CPU cores this takes many times ONNX Runtime's time"


def _what(op: Operator, tensors: Mapping[str, Tensor], arch: Architecture) -> str | None:
    if op.op_type == "Conv":
        return None if conv_images.fits(op, tensors) else _unusual(op, tensors)
    if op.op_type == "ConvTranspose":
        by_scalars = conv_transpose.by_scalars(op, Context(arch, tensors, {}))
        return _unusual(op, tensors) if by_scalars else None
    if op.op_type == "Einsum" and einsum.sums(op, tensors) > _SMALL:
        return f"Einsum {op.text('equation', '')!r}, which is no matrix product"
    return "Resize with antialiasing" if op.int("antialias", 0) else None


def _products(op: Operator, tensors: Mapping[str, Tensor]) -> int:
    """Number of multiplications: a filter for each element of the larger side."""
    filters = tensors[op.inputs[1]].shape
    sides = (tensors[n].shape for n in (op.inputs[0], op.outputs[0]))
    pixels = max(math.prod((shape[0], *shape[2:])) for shape in sides)
    return pixels * math.prod(filters)


def _unusual(op: Operator, tensors: Mapping[str, Tensor]) -> str | None:
    """Description of a convolution that only the general kernel supports; None if it is small."""
    filters = tensors[op.inputs[1]]
    if _products(op, tensors) <= _SMALL:
        return None
    computed = "" if filters.constant else " with computed weights"
    channels = filters.shape[0] if op.op_type == "Conv" else tensors[op.inputs[0]].shape[1]
    groups = op.int("group", 1)
    return (
        f"{op.op_type} of {len(filters.shape) - 2} axes, {channels} channels in {groups} "
        f"groups{computed}"
    )
