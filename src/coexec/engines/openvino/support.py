"""The operators that OpenVINO computes as the ONNX standard defines them, found by tests.

OpenVINO's reader converts more operators than OpenVINO computes correctly. An operator that it
cannot convert may end the process (a node with too few inputs does). So this is a list of the
operators with correct results in OpenVINO 2026.4 on a CPU in fp32, in the ONNX project's node tests
and in the random cases of ``tests/helpers``. For all others, `why_not` returns a reason. A call
takes microseconds per task.
"""

from collections.abc import Callable, Collection, Mapping
from math import ceil, prod
from typing import Any

from coexec.graph.graph import Operator, Tensor

__all__ = ["why_not"]

_Tensors = Mapping[str, Tensor]

_FLOATS = frozenset({"float32", "float16"})
_SMALL = frozenset({"int32", "int8", "uint8", "bool"})

_MOVING = frozenset({
    "CenterCropPad", "Concat", "DepthToSpace", "Dropout", "Expand", "Flatten", "Gather",
    "GatherElements", "GatherND", "Identity", "Pad", "Reshape", "Scatter", "ScatterElements",
    "ScatterND", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze",
    "Where",
})  # fmt: skip
_COMPARING = frozenset(
    {
        "And",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Less",
        "LessOrEqual",
        "Not",
        "Or",
        "Xor",
    }
)
_EXACT_IN_INT32 = frozenset({"Abs", "Add", "Div", "Max", "Min", "Mul", "Neg", "Sign", "Sub"})
"""Operators that are exact in int32. The others compute in float32, which has 24 bits."""
_BETWEEN_TYPES = frozenset(
    {
        "Cast",
        "ConvInteger",
        "DequantizeLinear",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
        "QuantizeLinear",
    }
)
_COMPUTING = frozenset({
    "Acos", "Acosh", "ArgMax", "ArgMin", "Asin", "Asinh", "Atan", "Atanh", "AveragePool",
    "BatchNormalization", "Ceil", "Celu", "Clip", "Conv", "ConvTranspose", "Cos", "Cosh", "CumSum",
    "Einsum", "Elu", "Erf", "Exp", "Floor", "GRU", "Gelu", "Gemm", "GlobalAveragePool",
    "GlobalLpPool", "GlobalMaxPool", "GridSample", "GroupNormalization", "HardSigmoid",
    "HardSwish", "InstanceNormalization", "LRN", "LSTM", "LayerNormalization",
    "LeakyRelu", "Log", "LogSoftmax", "LpPool", "MatMul",
    "MaxPool", "Mean", "Mish", "PRelu", "Pow",
    "RMSNormalization", "RNN", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceLogSum",
    "ReduceMean", "ReduceProd", "ReduceSum",
    "ReduceSumSquare", "Relu", "Resize", "ReverseSequence", "RoiAlign", "Round", "Selu", "Shape",
    "Sigmoid", "Sin", "Sinh", "Size", "Softmax", "Softplus", "Softsign", "Sqrt", "Sum",
    "Swish", "Tan", "Tanh", "Trilu", "Upsample",
})  # fmt: skip

_TYPES: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_COMPUTING, _FLOATS),
    **dict.fromkeys(_MOVING, _FLOATS | _SMALL),
    **dict.fromkeys(_BETWEEN_TYPES, _FLOATS | _SMALL),
    **dict.fromkeys(_COMPARING, _FLOATS | {"bool"}),
    **dict.fromkeys(_EXACT_IN_INT32, _FLOATS | {"int32"}),
}
"""By operator, the types of its inputs and outputs. Constant parameters may have other types."""

_INDICES: Mapping[str, int] = {
    "Gather": 1, "GatherElements": 1, "GatherND": 1, "RoiAlign": 2, "Scatter": 1,
    "ScatterElements": 1, "ScatterND": 1,
}  # fmt: skip
"""By operator, the number of the input that holds indices into another tensor. 32 bits are enough
for indices."""
_ZERO_POINTS: Mapping[str, int] = {"QLinearConv": 7, "QLinearMatMul": 7, "QuantizeLinear": 2}
"""By operator, the number of the input that is the zero point of the output."""
_CHECKED = frozenset({"Gather"})
"""Operators whose indices are checked during a run (`indices`), or may have any value. With an
index out of range, the others would read or write outside of the tensor."""
_MAKE_INDICES = frozenset({"ArgMax", "ArgMin", "Shape", "Size"})


def why_not(op: Operator, tensors: _Tensors) -> str | None:
    """The reason why OpenVINO does not compute ``op`` as ONNX defines it; None if it does."""
    name = f"{op.domain}.{op.op_type}" if op.domain else op.op_type
    if op.domain or op.op_type not in _TYPES:
        return f"OpenVINO is not known to compute {name}"
    reason = _types(op, tensors)
    if reason is None:
        reason = _indices(op, tensors)
    if reason is None and op.op_type in _RULES:
        reason = _RULES[op.op_type](op, tensors)
    return None if reason is None else f"OpenVINO: {name} {reason}"


def _types(op: Operator, tensors: _Tensors) -> str | None:
    allowed = _TYPES[op.op_type]
    for position, name in enumerate(op.inputs):
        tensor = tensors.get(name)
        if tensor is None or (position and tensor.constant and tensor.dtype in _PARAMETERS):
            continue
        is_index = _INDICES.get(op.op_type) == position and tensor.dtype in ("int32", "int64")
        any_type = op.op_type in ("Shape", "Size") or is_index
        if (reason := _type(tensor, _PARAMETERS if any_type else allowed)) is not None:
            return reason
    for name in op.outputs:
        tensor = tensors.get(name)
        output_types = allowed | {"int64"} if op.op_type in _MAKE_INDICES else allowed
        if tensor is not None and (reason := _type(tensor, output_types)) is not None:
            return reason
    return None


_PARAMETERS = _FLOATS | _SMALL | {"int64"}


def _indices(op: Operator, tensors: _Tensors) -> str | None:
    position = _INDICES.get(op.op_type)
    if position is None or op.op_type in _CHECKED or tensors[op.inputs[position]].constant:
        return None
    return "with indices that are computed: it would not check them"


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


def _softmax(op: Operator, tensors: _Tensors) -> str | None:
    shape = tensors[op.inputs[0]].shape
    axis = op.int("axis", 1 if op.version < 13 else -1) % max(1, len(shape))
    if op.version < 13 and prod(shape[axis + 1 :]) != 1:
        return f"of opset {op.version} over several axes: it would use the first of them"
    return None


def _pool(op: Operator, tensors: _Tensors) -> str | None:
    if _second_output(op):
        return "with the places of the maxima"
    rank = len(tensors[op.inputs[0]].shape) - 2
    if (reason := _skipping(op, rank)) is not None:
        return reason
    if not op.int("ceil_mode", 0) or op.text("auto_pad", "NOTSET") not in ("NOTSET", ""):
        return None
    pads, strides = op.ints("pads", [0] * 2 * rank), op.ints("strides", [1] * rank)
    dilations, kernel = op.ints("dilations", [1] * rank), op.ints("kernel_shape", ())
    shape, output_shape = tensors[op.inputs[0]].shape[2:], tensors[op.outputs[0]].shape[2:]
    for i, size in enumerate(shape):
        room = size + pads[i] + pads[i + rank] - dilations[i] * (kernel[i] - 1) - 1
        if ceil(room / strides[i]) + 1 != output_shape[i]:
            return "whose last window begins in the padding: it would not leave it out"
        if op.int("count_include_pad", 0) and room % strides[i]:
            return "whose last window ends behind the padding: it would count elements there"
    return None


def _skipping(op: Operator, rank: int) -> str | None:
    """The reason for a pool that ONNX Runtime refuses: its windows would need negative padding."""
    if not op.text("auto_pad", "NOTSET").startswith("SAME"):
        return None
    strides, dilations = op.ints("strides", [1] * rank), op.ints("dilations", [1] * rank)
    kernel = op.ints("kernel_shape", ())
    extents = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    if any(s > extent for s, extent in zip(strides, extents, strict=True)):
        return "of auto_pad with strides that skip elements: ONNX Runtime refuses it"
    return None


def _conv(op: Operator, tensors: _Tensors) -> str | None:
    dilated = any(d != 1 for d in op.ints("dilations", ()))
    if dilated and op.text("auto_pad", "NOTSET").startswith("SAME"):
        return "of auto_pad with dilations: ONNX Runtime refuses it"
    pads = op.ints("pads", ())
    uneven = pads[: len(pads) // 2] != pads[len(pads) // 2 :]
    if prod(tensors[op.inputs[1]].shape) == 1 and uneven:
        return "with one weight and uneven padding: it would compute the border wrongly"
    return None


def _resize(op: Operator, tensors: _Tensors) -> str | None:
    if op.int("antialias", 0) or op.int("exclude_outside", 0):
        return "with antialias or exclude_outside"
    if op.text("keep_aspect_ratio_policy", "stretch") != "stretch":
        return "that keeps the aspect ratio"
    mode = op.text("coordinate_transformation_mode", "half_pixel")
    if mode in ("tf_crop_and_resize", "half_pixel_symmetric"):
        return f"with {mode}"
    of_opset_7: Any = op.attributes.get("scales", ())
    scales = op.constants.get(1 if op.version < 11 else 2, of_opset_7)
    before, after = tensors[op.inputs[0]].shape, tensors[op.outputs[0]].shape
    sizes = zip(before, after, scales, strict=False)
    if any(output_size != size * scale for size, output_size, scale in sizes):
        return "with scales that give no whole sizes: it would take other ones"
    return None


def _gathered_elements(op: Operator, tensors: _Tensors) -> str | None:
    shape, places = (list(tensors[name].shape) for name in op.inputs[:2])
    axis = op.int("axis", 0) % max(1, len(shape))
    del shape[axis : axis + 1], places[axis : axis + 1]
    return None if shape == places else "with fewer indices along other axes: it does not convert"


def _celu(op: Operator, tensors: _Tensors) -> str | None:
    is_half = tensors[op.inputs[0]].dtype == "float16"
    return "of float16: it cannot convert it" if is_half else None


def _clip(op: Operator, tensors: _Tensors) -> str | None:
    limits = [name for name in op.inputs[1:] if name]
    if op.version >= 11 and len(limits) < 2 and tensors[op.inputs[0]].dtype == "float16":
        return "of float16 with one limit: it would take the largest finite number for the other"
    return None


def _hard_sigmoid(op: Operator, tensors: _Tensors) -> str | None:
    return None if op.number("beta", 0.5) else "with beta=0: it would take 0.5"


def _pad(op: Operator, tensors: _Tensors) -> str | None:
    if op.text("mode", "constant") == "wrap":
        return "that wraps"
    value = op.inputs[2] if len(op.inputs) > 2 else ""
    if value and not tensors[value].constant:
        return "with a value that is computed: it would pad with zeros"
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
    position = _ZERO_POINTS[op.op_type]
    given = [name for name in op.inputs[position : position + 1] if name]
    is_computed = any(not tensors[name].constant for name in given)
    return "with a zero point that is computed: it may be odd" if is_computed else None


def _recurrent(op: Operator, tensors: _Tensors) -> str | None:
    if op.int("layout", 0) or op.int("input_forget", 0):
        return "with layout=1 or input_forget=1"
    extra = [i for i in (4, 7) if i < len(op.inputs) and op.inputs[i]]
    return "with lengths of sequences or peepholes" if extra else None


def _sampled(op: Operator, tensors: _Tensors) -> str | None:
    return "of volumes" if len(tensors[op.inputs[0]].shape) > 4 else None


def _aligned(op: Operator, tensors: _Tensors) -> str | None:
    if op.text("mode", "avg") == "max":
        return "of maxima"
    if not op.int("sampling_ratio", 0):
        return "without a sampling_ratio: it would take other numbers of samples"
    return None


def _scattered(op: Operator, tensors: _Tensors) -> str | None:
    reduction, dtype = op.text("reduction", "none"), tensors[op.inputs[0]].dtype
    if reduction != "none" and dtype == "float16":
        return "of float16 with a reduction: ONNX Runtime refuses it"
    return None


def _slope(op: Operator, tensors: _Tensors) -> str | None:
    shape, slope = (tensors[name].shape for name in op.inputs[:2])
    if len(slope) == 1 and slope[0] > 1 and len(shape) > 2 and slope[0] == shape[1]:
        return "with a slope for each place of the last axis: it would take them for channels"
    return None


def _second_output(op: Operator) -> bool:
    return any(op.outputs[1:])


_RULES: Mapping[str, Callable[[Operator, _Tensors], str | None]] = {
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(("MaxPool", "AveragePool", "LpPool"), _pool),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), _recurrent),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    "BatchNormalization": lambda op, tensors: (
        "in training" if op.int("training_mode", 0) or _second_output(op) else None
    ),
    "Dropout": lambda op, tensors: (
        "in training, or with its mask" if any(op.inputs[2:]) or _second_output(op) else None
    ),
    "Conv": _conv,
    "ConvTranspose": lambda op, tensors: (
        "with output_shape: it would pad at other ends" if op.ints("output_shape", ()) else None
    ),
    "InstanceNormalization": lambda op, tensors: (
        "of rank 2: ONNX Runtime refuses it" if len(tensors[op.inputs[0]].shape) < 3 else None
    ),
    **dict.fromkeys(("ScatterElements", "ScatterND"), _scattered),
    **dict.fromkeys(_ZERO_POINTS, _quantized),
    "Celu": _celu,
    "Clip": _clip,
    "GatherElements": _gathered_elements,
    "HardSigmoid": _hard_sigmoid,
    "PRelu": _slope,
    "GridSample": _sampled,
    "Pad": _pad,
    "RoiAlign": _aligned,
    "SpaceToDepth": lambda op, tensors: (
        "in CRD order" if op.text("mode", "DCR") != "DCR" else None
    ),
    "LayerNormalization": lambda op, tensors: (
        "with InvStdDev: it would return the deviation" if any(op.outputs[2:]) else None
    ),
    "LRN": lambda op, tensors: (
        None if op.number("bias", 1.0).is_integer() else "with a bias that is no integer"
    ),
}  # fmt: skip
