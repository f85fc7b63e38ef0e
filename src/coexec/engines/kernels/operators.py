"""The registry: the kernels of each operator type, and why others have none.

`coexec.graph.rules` has the facts that follow from shapes, by the same names.
"""

import math
from collections.abc import Mapping

from coexec.engines.kernels import (
    batch_norm,
    border,
    concat,
    conv,
    conv_images,
    conv_transpose,
    elementwise,
    gemm,
    movement,
    normalize,
    pad,
    pool,
    reduce,
    resize,
    slicing,
    softmax,
    transpose,
)
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import Context, Kernel, in_float32
from coexec.engines.kernels.unsupported import ALL, wrong_type
from coexec.graph.graph import Operator, Tensor

_FILES = (
    batch_norm, border, concat, conv, conv_transpose, elementwise, gemm, movement, normalize, pad,
    pool, reduce, resize, slicing, softmax, transpose,
)  # fmt: skip

KERNELS: Mapping[str, Kernel] = {name: row for file in _FILES for name, row in file.KERNELS.items()}

WITHOUT: Mapping[str, str] = {
    **dict.fromkeys(
        ("ArgMax", "ArgMin", "TopK", "OneHot"),
        "it ends a network, and reads its input once: cores take no longer",
    ),
    **dict.fromkeys(
        ("GatherElements", "GatherND", "Scatter", "ScatterElements", "ScatterND"),
        "ONNX Runtime checks indices that are computed",
    ),
    **dict.fromkeys(
        ("GRU", "LSTM", "RNN"), "each step waits for the step before, and no gain was measured"
    ),
    **dict.fromkeys(
        ("ConvInteger", "DequantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul",
         "QuantizeLinear"),
        "kernels have no quantized numbers",
    ),
    "Einsum": "exporters write the products of usual networks as MatMul",
    "GroupNormalization": "exporters write it as InstanceNormalization",
    "LRN": "only networks of before 2015 have it",
}  # fmt: skip
"""Why operators that networks have are without a kernel. All others are rare or small. A planner
puts them on ONNX Runtime's cores."""


def why_not(
    op: Operator,
    tensors: Mapping[str, Tensor],
    arch: Architecture | None = None,
    kernels: Mapping[str, Kernel] = KERNELS,
) -> str | None:
    """Why no kernel computes ``op``, or None.

    Args:
        arch: on CPU cores, operators whose kernels are slow there are refused, too.
        kernels: rows by operator type; those of OpenCL C, or of another language.
    """
    name = f"{op.domain}.{op.op_type}" if op.domain else op.op_type
    if op.domain or op.op_type not in kernels:
        reason = WITHOUT.get(name)
        return f"there is no kernel for {name}" + (f": {reason}" if reason else "")
    if arch is not None and arch.family != "cpu":  # cores read the host's arrays as they are
        names = {*op.inputs, *op.outputs} & tensors.keys()
        tensors = {name: in_float32(tensors[name]) for name in names}
    for tensor in (tensors[n] for n in (*op.inputs, *op.outputs) if n in tensors):
        if tensor.dtype not in ALL:
            return f"{name} of {tensor.dtype}: there are no kernels for this type"
        if tensor.size_bytes >= 2**31:
            return f"{tensor.name!r} has {tensor.size_bytes} bytes: kernels count to 2^31"
    parameters = (n for n in op.inputs[1:] if n and tensors[n].constant)  # no pads, no axes, ...
    data = {*op.inputs, *op.outputs}.difference(parameters)
    if any(0 in tensors[n].shape for n in data if n in tensors):
        return f"{name} of an empty tensor"
    kernel = kernels[op.op_type]
    reason = None if kernel.types == ALL else wrong_type(op, tensors, kernel.types)
    reason = reason or kernel.why_not(op, tensors)
    if reason is None and arch is not None and arch.family == "cpu":
        reason = _why_slow(op, tensors, arch)
    return reason


_SMALL = 2**18
"""Products or sums that take no longer, one by one, than the start of a program."""


def _why_slow(op: Operator, tensors: Mapping[str, Tensor], arch: Architecture) -> str | None:
    """Why cores of ``arch`` should not run ``op``: ONNX Runtime takes a fraction of the time."""
    if op.op_type == "Conv":
        by_scalars = not conv_images.fits(op, tensors)
    else:
        is_transposed = op.op_type == "ConvTranspose"
        by_scalars = is_transposed and conv_transpose.by_scalars(op, Context(arch, tensors, {}))
    description = _unusual(op, tensors) if by_scalars else None
    if description is None:
        return None
    return f"{description}: on CPU cores this takes many times ONNX Runtime's time"


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
    channels = filters.shape[0] if op.op_type == "Conv" else tensors[op.inputs[0]].shape[1]
    groups = op.int("group", 1)
    return f"{op.op_type} of {len(filters.shape) - 2} axes, {channels} channels in {groups} groups"
