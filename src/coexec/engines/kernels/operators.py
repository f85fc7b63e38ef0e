"""The registry: the kernels of each operator type, from one file for each operator or family.

`coexec.graph.rules` has the facts that follow from shapes, by the same names.
"""

from collections.abc import Mapping

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
from coexec.engines.kernels.base import Kernel
from coexec.engines.kernels.slow import why_slow
from coexec.engines.kernels.unsupported import ALL, wrong_type
from coexec.graph.graph import Operator, Tensor

__all__ = ["KERNELS", "why_not"]

KERNELS: Mapping[str, Kernel] = {
    **arg_extremum.KERNELS,
    **batch_norm.KERNELS,
    **border.KERNELS,
    **concat.KERNELS,
    **conv.KERNELS,
    **conv_transpose.KERNELS,
    **cumulative.KERNELS,
    **det.KERNELS,
    **einsum.KERNELS,
    **elementwise.KERNELS,
    **gather.KERNELS,
    **gemm.KERNELS,
    **global_pool.KERNELS,
    **lrn.KERNELS,
    **masked.KERNELS,
    **normalize.KERNELS,
    **onehot.KERNELS,
    **pad.KERNELS,
    **pool.KERNELS,
    **recurrent.KERNELS,
    **reduce.KERNELS,
    **repeat.KERNELS,
    **reshape.KERNELS,
    **resize.KERNELS,
    **scatter.KERNELS,
    **sequence.KERNELS,
    **slicing.KERNELS,
    **softmax.KERNELS,
    **space_depth.KERNELS,
    **top_k.KERNELS,
    **transpose.KERNELS,
}


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
        return f"there is no kernel for {name}"
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
        reason = why_slow(op, tensors, arch)
    return reason
