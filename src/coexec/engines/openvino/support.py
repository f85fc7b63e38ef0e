"""The operators that OpenVINO computes as the ONNX standard defines them, found by tests.

OpenVINO's reader converts more operators than OpenVINO computes correctly. An operator that it
cannot convert may end the process (a node with too few inputs does). So this is a list of the
operators with correct results in OpenVINO 2026.4 on a CPU in fp32, in the ONNX project's node tests
and in the random cases of ``tests/helpers``. Rare operators are left out, whatever OpenVINO does
with them: ONNX Runtime computes them on the same cores. For all others, `why_not` returns a reason.
A call takes microseconds per task.
"""

from collections.abc import Callable, Collection, Mapping
from math import ceil, prod
from typing import Any

from coexec.graph.graph import Operator, Tensor

_Tensors = Mapping[str, Tensor]

_FLOATS = frozenset({"float32", "float16"})
_SMALL = frozenset({"int32", "int8", "uint8", "bool"})

_MOVING = frozenset({
    "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather", "Identity", "Pad",
    "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    "Where",
})  # fmt: skip
_COMPARING = frozenset({
    "And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "Or", "Xor",
})  # fmt: skip
_EXACT_IN_INT32 = frozenset({"Abs", "Add", "Div", "Max", "Min", "Mul", "Neg", "Sign", "Sub"})
"""Operators that are exact in int32. The others compute in float32, which has 24 bits."""
_BETWEEN_TYPES = frozenset({
    "Cast", "ConvInteger", "DequantizeLinear", "MatMulInteger", "QLinearConv", "QLinearMatMul",
    "QuantizeLinear",
})  # fmt: skip
_COMPUTING = frozenset({
    "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "AveragePool", "BatchNormalization", "Ceil",
    "Clip", "Conv", "ConvTranspose", "Cos", "Cosh", "CumSum", "Einsum", "Elu", "Erf", "Exp",
    "Floor", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "GroupNormalization",
    "HardSigmoid", "HardSwish", "InstanceNormalization", "LayerNormalization", "LeakyRelu", "Log",
    "LogSoftmax", "MatMul", "MaxPool", "Mean", "Mish", "PRelu", "Pow", "RMSNormalization",
    "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceMean", "ReduceProd", "ReduceSum",
    "ReduceSumSquare", "Relu", "Resize", "Round", "Selu", "Sigmoid", "Sin", "Sinh", "Softmax",
    "Softplus", "Softsign", "Sqrt", "Sum", "Swish", "Tan", "Tanh", "Upsample",
})  # fmt: skip

_TYPES: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_COMPUTING, _FLOATS),
    **dict.fromkeys(_MOVING | _BETWEEN_TYPES, _FLOATS | _SMALL),
    **dict.fromkeys(_COMPARING, _FLOATS | {"bool"}),
    **dict.fromkeys(_EXACT_IN_INT32, _FLOATS | {"int32"}),
}
"""By operator, the types of its inputs and outputs. Constant parameters may have other types."""

_PARAMETERS = _FLOATS | _SMALL | {"int64"}
"""Types of constant parameters."""

_PLAIN_RESIZE = {
    "antialias": (0,),
    "exclude_outside": (0,),
    "keep_aspect_ratio_policy": ("stretch",),
    "coordinate_transformation_mode": (
        "half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric", "tf_half_pixel_for_nn",
    ),
}  # fmt: skip
_ONLY: Mapping[str, Mapping[str, Collection[Any]]] = {
    "AveragePool": {"ceil_mode": (0,)},  # elements behind the padding would count
    "BatchNormalization": {"training_mode": (0,)},
    "ConvTranspose": {"output_shape": ()},  # it would pad at other ends
    "Pad": {"mode": ("constant", "reflect", "edge")},
    "Resize": _PLAIN_RESIZE,
    "SpaceToDepth": {"mode": ("DCR",)},
}
"""By operator, the values that an attribute may have, if the operator has the attribute."""

_ZERO_POINTS: Mapping[str, int] = {"QLinearConv": 7, "QLinearMatMul": 7, "QuantizeLinear": 2}
"""By operator, the number of the input that is the zero point of the output."""


def why_not(op: Operator, tensors: _Tensors) -> str | None:
    """The reason why OpenVINO does not compute ``op`` as ONNX defines it; None if it does."""
    name = f"{op.domain}.{op.op_type}" if op.domain else op.op_type
    if op.domain or op.op_type not in _TYPES:
        return f"OpenVINO is not known to compute {name}"
    reason = _types(op, tensors) or _attributes(op)
    if reason is None and op.op_type in _RULES:
        reason = _RULES[op.op_type](op, tensors)
    return None if reason is None else f"OpenVINO: {name} {reason}"


def _types(op: Operator, tensors: _Tensors) -> str | None:
    allowed = _TYPES[op.op_type]
    for position, name in enumerate((*op.inputs, *op.outputs)):
        tensor = tensors.get(name)
        if tensor is None or (position and tensor.constant and tensor.dtype in _PARAMETERS):
            continue
        if (reason := _type(tensor, allowed)) is not None:
            return reason
    return None


def _type(tensor: Tensor, allowed: Collection[str]) -> str | None:
    if 0 in tensor.shape:
        return f"of an empty tensor, {tensor.name!r}"
    if tensor.dtype in allowed:
        return None
    if tensor.dtype in ("int64", "uint64", "uint32"):
        return f"of {tensor.dtype}: it would compute in 32 bits with sign"
    if tensor.dtype == "float64":
        return "of float64: it would compute in float32"
    return f"of {tensor.dtype}: not known to be computed right"


def _attributes(op: Operator) -> str | None:
    if op.op_type != "Split" and any(op.outputs[1:]):
        return "with more than one output"
    for name, allowed in _ONLY.get(op.op_type, {}).items():
        value = op.attributes.get(name)
        if value is not None and value not in allowed:
            return f"with {name}={value}"
    return None


def _computed(position: int, why: str) -> Callable[[Operator, _Tensors], str | None]:
    """The rule of an operator whose input at ``position`` has to be constant."""

    def rule(op: Operator, tensors: _Tensors) -> str | None:
        names = [name for name in op.inputs[position : position + 1] if name]
        return why if any(not tensors[name].constant for name in names) else None

    return rule


def _softmax(op: Operator, tensors: _Tensors) -> str | None:
    shape = tensors[op.inputs[0]].shape
    axis = op.int("axis", 1 if op.version < 13 else -1) % max(1, len(shape))
    if op.version < 13 and prod(shape[axis + 1 :]) != 1:
        return f"of opset {op.version} over several axes: it would use the first of them"
    return None


def _max_pool(op: Operator, tensors: _Tensors) -> str | None:
    rank = len(tensors[op.inputs[0]].shape) - 2
    if not op.int("ceil_mode", 0) or op.text("auto_pad", "NOTSET") not in ("NOTSET", ""):
        return None
    pads, strides = op.ints("pads", [0] * 2 * rank), op.ints("strides", [1] * rank)
    dilations, kernel = op.ints("dilations", [1] * rank), op.ints("kernel_shape", ())
    shape, output_shape = tensors[op.inputs[0]].shape[2:], tensors[op.outputs[0]].shape[2:]
    for i, size in enumerate(shape):
        room = size + pads[i] + pads[i + rank] - dilations[i] * (kernel[i] - 1) - 1
        if ceil(room / strides[i]) + 1 != output_shape[i]:
            return "whose last window begins in the padding: it would not leave it out"
    return None


def _resize(op: Operator, tensors: _Tensors) -> str | None:
    of_opset_7: Any = op.attributes.get("scales", ())
    scales = op.constants.get(1 if op.version < 11 else 2, of_opset_7)
    before, after = tensors[op.inputs[0]].shape, tensors[op.outputs[0]].shape
    sizes = zip(before, after, scales, strict=False)
    if any(output_size != size * scale for size, output_size, scale in sizes):
        return "with scales that give no whole sizes: it would take other ones"
    return None


def _clip(op: Operator, tensors: _Tensors) -> str | None:
    limits = [name for name in op.inputs[1:] if name]
    if op.version >= 11 and len(limits) < 2 and tensors[op.inputs[0]].dtype == "float16":
        return "of float16 with one limit: it would take the largest finite number for the other"
    return None


def _quantized(op: Operator, tensors: _Tensors) -> str | None:
    """The reason for a zero point that is computed, and for a convolution that OpenVINO cannot
    convert.

    OpenVINO adds the zero point before it rounds. If it is odd, half of a step is rounded to the
    other neighbour. A constant one is accepted, because int8 is much quicker than another engine
    (docs/openvino.md).
    """
    if op.op_type == "QLinearConv" and prod(tensors[op.inputs[4]].shape) > 1:
        return "with a scale for each channel: it would take the axis of the input for that"
    zero_point = _computed(_ZERO_POINTS[op.op_type], "with a zero point that is computed")
    return zero_point(op, tensors)


def _slope(op: Operator, tensors: _Tensors) -> str | None:
    slope = tensors[op.inputs[1]].shape
    if len(slope) == 1 and slope[0] > 1 and len(tensors[op.inputs[0]].shape) > 2:
        return "with a slope for each place of the last axis: it may take them for channels"
    return None


_RULES: Mapping[str, Callable[[Operator, _Tensors], str | None]] = {
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(_ZERO_POINTS, _quantized),
    "Clip": _clip,
    "Conv": lambda op, tensors: (
        "with one weight: it would compute an uneven border wrongly"
        if prod(tensors[op.inputs[1]].shape) == 1
        else None
    ),
    "Dropout": lambda op, tensors: "that may be training" if any(op.inputs[2:]) else None,
    # It returns zeros for an index that is out of range, where ONNX Runtime raises an error.
    "Gather": _computed(1, "with indices that are computed: it would not check them"),
    "HardSigmoid": lambda op, tensors: (
        None if op.number("beta", 0.5) else "with beta=0: it would take 0.5"
    ),
    "MaxPool": _max_pool,
    "PRelu": _slope,
    "Pad": _computed(2, "with a value that is computed: it would pad with zeros"),
}
