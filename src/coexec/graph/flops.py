"""Multiply-accumulates of an operator, from shapes alone."""

import math
from collections.abc import Mapping

from coexec.graph.graph import Operator, Tensor

__all__ = ["operator_macs"]


def operator_macs(op: Operator, tensors: Mapping[str, Tensor]) -> int:
    """Multiply-accumulates of ``op``; 0 for operators without a product of tensors.

    Counted by the convention of the field: convolution, transposed convolution, Gemm, MatMul and
    the recurrent operators (gates only, element-wise parts not).
    """
    count = _COUNTERS.get(op.op_type)
    return 0 if count is None or op.domain else count(op, tensors)


def _conv(op: Operator, tensors: Mapping[str, Tensor]) -> int:
    # Weights are (OC, IC / group, *kernel): each output element takes one pass over one filter.
    return math.prod(tensors[op.outputs[0]].shape) * math.prod(tensors[op.inputs[1]].shape[1:])


def _conv_transpose(op: Operator, tensors: Mapping[str, Tensor]) -> int:
    # Weights are (IC, OC / group, *kernel): each input element is spread over one filter.
    return math.prod(tensors[op.inputs[0]].shape) * math.prod(tensors[op.inputs[1]].shape[1:])


def _gemm(op: Operator, tensors: Mapping[str, Tensor]) -> int:
    shape = tensors[op.inputs[0]].shape
    inner = shape[0] if op.int("transA", 0) else shape[-1]
    return math.prod(tensors[op.outputs[0]].shape) * inner


def _matmul(op: Operator, tensors: Mapping[str, Tensor]) -> int:
    return math.prod(tensors[op.outputs[0]].shape) * tensors[op.inputs[0]].shape[-1]


def _recurrent(op: Operator, tensors: Mapping[str, Tensor]) -> int:
    # W is (directions, gates * hidden, input), R is (directions, gates * hidden, hidden).
    steps, batch = tensors[op.inputs[0]].shape[:2]
    weights = sum(math.prod(tensors[n].shape) for n in op.inputs[1:3])
    return steps * batch * weights


_COUNTERS = {
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Gemm": _gemm,
    "MatMul": _matmul,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
}
