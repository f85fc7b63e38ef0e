"""Operators that are always computed whole."""

import math
from functools import partial

from coexec.graph.graph import Operator
from coexec.graph.rules.base import OperatorRule, Tensors, whole
from coexec.graph.rules.products import matmul_macs
from coexec.graph.rules.windows import conv_macs


def _recurrent_macs(op: Operator, tensors: Tensors) -> int:
    # Gates only: W is (directions, gates * hidden, input), R (directions, gates * hidden, hidden).
    steps, batch = tensors[op.inputs[0]].shape[:2]
    weights = sum(math.prod(tensors[n].shape) for n in op.inputs[1:3])
    return steps * batch * weights


_BY_INDEX = whole("an index may name any element of the tensor")
_BY_POSITION = whole("the result depends on the position in the whole tensor")
_FROM_SHAPES = whole("it reads no elements, or scalars only")
_SEVERAL_OUTPUTS = whole("it has several outputs")
_QUANTIZED = "operators on quantized numbers are never cut"
_UNWRITTEN = whole("models have it so seldom that it has no rule")

RULES: dict[str, OperatorRule] = {
    **dict.fromkeys(("GatherElements", "GatherND", "OneHot"), _BY_INDEX),
    **dict.fromkeys(("Scatter", "ScatterElements", "ScatterND"), _BY_INDEX),
    **dict.fromkeys(("CenterCropPad", "ReverseSequence", "Trilu"), _BY_POSITION),
    **dict.fromkeys(("EyeLike", "Range", "Shape", "Size"), _FROM_SHAPES),
    **dict.fromkeys(("Split", "TopK"), _SEVERAL_OUTPUTS),
    **dict.fromkeys(("BitCast", "CastLike", "CumProd", "Det", "GroupNormalization"), _UNWRITTEN),
    "ConvInteger": whole(_QUANTIZED, conv_macs),
    **dict.fromkeys(("MatMulInteger", "QLinearMatMul"), whole(_QUANTIZED, matmul_macs)),
    "QLinearConv": whole(_QUANTIZED, partial(conv_macs, weights=3)),
    "Einsum": whole("its axes follow from an equation"),
    **dict.fromkeys(
        ("GRU", "LSTM", "RNN"), whole("each step needs the step before", _recurrent_macs)
    ),
}
