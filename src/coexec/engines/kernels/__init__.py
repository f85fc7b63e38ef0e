"""The kernels by operator type: one file for each operator or family."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coexec.engines.kernels import (
    arg_extremum,
    batch_norm,
    border,
    concat,
    conv,
    conv_transpose,
    cumulative,
    det,
    einsum,
    elementwise,
    gather,
    gemm,
    global_pool,
    lrn,
    masked,
    normalize,
    onehot,
    pad,
    pool,
    recurrent,
    reduce,
    repeat,
    reshape,
    resize,
    scatter,
    sequence,
    slicing,
    softmax,
    space_depth,
    top_k,
    transpose,
)
from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import CTYPES, Context, KernelLaunch, Node
from coexec.engines.kernels.slow import why_slow
from coexec.graph.graph import Operator, Tensor

__all__ = ["FUSED_BEHIND", "KERNELS", "Kernel", "why_not"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """The functions of a kernel file for operators of one type."""

    why_not: Callable[[Operator, Mapping[str, Tensor]], str | None]
    """The reason, for users, why an operator is not supported; None if it is."""
    launches: Callable[[Node, Context], list[KernelLaunch]]


def _of(module: object) -> Kernel:
    return Kernel(module.why_not, module.launches)  # type: ignore[attr-defined]


KERNELS: Mapping[str, Kernel] = {
    "AveragePool": _of(pool),
    "BatchNormalization": _of(batch_norm),
    "Concat": _of(concat),
    "Conv": _of(conv),
    "ConvTranspose": _of(conv_transpose),
    "Det": _of(det),
    "Einsum": _of(einsum),
    "Gemm": _of(gemm),
    "GlobalAveragePool": _of(global_pool),
    "GlobalLpPool": _of(global_pool),
    "GlobalMaxPool": _of(global_pool),
    "LRN": _of(lrn),
    "LpPool": _of(pool),
    "MatMul": _of(gemm),
    "MaxPool": _of(pool),
    "OneHot": _of(onehot),
    "TopK": _of(top_k),
    "Transpose": _of(transpose),
    **dict.fromkeys(("ArgMax", "ArgMin"), _of(arg_extremum)),
    **dict.fromkeys(border.BORDERS, _of(border)),
    **dict.fromkeys(("CumProd", "CumSum"), _of(cumulative)),
    **dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), _of(softmax)),
    **dict.fromkeys(normalize.OPERATORS, _of(normalize)),
    **dict.fromkeys(recurrent.OPERATORS, _of(recurrent)),
    **dict.fromkeys(reduce.KINDS, _of(reduce)),
    **dict.fromkeys(("CenterCropPad", "Pad"), _of(pad)),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _of(space_depth)),
    **dict.fromkeys(("Expand", "Tile"), _of(repeat)),
    **dict.fromkeys(("EyeLike", "Range", "Shape", "Size"), _of(sequence)),
    **dict.fromkeys(("Gather", "GatherElements", "GatherND"), _of(gather)),
    **dict.fromkeys(("Resize", "Upsample"), _of(resize)),
    **dict.fromkeys(("ReverseSequence", "Trilu"), _of(masked)),
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), _of(scatter)),
    **dict.fromkeys(("Slice", "Split"), _of(slicing)),
    **dict.fromkeys(("Flatten", "Reshape", "Squeeze", "Unsqueeze"), _of(reshape)),
    **dict.fromkeys(elementwise.OPERATORS, _of(elementwise)),
}

FUSED_BEHIND = frozenset(
    {"ArgMax", "ArgMin", "AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "Gemm",
     "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "Hardmax", "LRN", "LogSoftmax",
     "LpPool", "MatMul", "MaxPool", "Softmax", *normalize.OPERATORS, *reduce.KINDS}
)  # fmt: skip
"""Operators whose kernels apply an epilogue of element-wise operators to their result."""


def why_not(
    op: Operator, tensors: Mapping[str, Tensor], arch: Architecture | None = None
) -> str | None:
    """Why no kernel computes ``op``, or None.

    Args:
        arch: on CPU cores, operators whose kernels are slow there are refused, too.
    """
    name = f"{op.domain}.{op.op_type}" if op.domain else op.op_type
    if op.domain or op.op_type not in KERNELS:
        return f"there is no kernel for {name}"
    for tensor in (tensors[n] for n in (*op.inputs, *op.outputs) if n in tensors):
        if tensor.dtype not in CTYPES:
            return f"{name} of {tensor.dtype}: there are no kernels for this type"
        if tensor.size_bytes >= 2**31:
            return f"{tensor.name!r} has {tensor.size_bytes} bytes: kernels count to 2^31"
    parameters = (n for n in op.inputs[1:] if n and tensors[n].constant)  # no pads, no axes, ...
    data = {*op.inputs, *op.outputs}.difference(parameters)
    if any(0 in tensors[n].shape for n in data if n in tensors):
        return f"{name} of an empty tensor"
    reason = KERNELS[op.op_type].why_not(op, tensors)
    if reason is None and arch is not None and arch.family == "cpu":
        reason = why_slow(op, tensors, arch)
    return reason
