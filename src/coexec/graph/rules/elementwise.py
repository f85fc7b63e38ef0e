"""Operators that work element by element, inputs broadcast as numpy does."""

from sys import maxsize

from coexec.graph.graph import Operator
from coexec.graph.rules.base import (
    AxisMaps,
    OperatorRule,
    Tensors,
    broadcast_axes,
    cut_by_axes,
    output_shape,
)


def _broadcast(op: Operator, tensors: Tensors) -> AxisMaps | None:
    if "broadcast" in op.attributes:
        return None  # before opset 7: another alignment of axes than numpy's
    output = output_shape(op, tensors)
    axis_maps = [broadcast_axes(tensors[n].shape, output) if n else {} for n in op.inputs]
    maps = [axis_map for axis_map in axis_maps if axis_map is not None]
    return maps if len(maps) == len(axis_maps) else None


def _dropout(op: Operator, tensors: Tensors) -> AxisMaps | None:
    # In training the random mask depends on how many elements are drawn.
    trains = len(op.inputs) > 2 and op.inputs[2] and op.constants.get(2) != (False,)
    return None if trains else _broadcast(op, tensors)


def _per_axis(op: Operator, tensors: Tensors) -> AxisMaps | None:
    """Quantization: scale and zero point are scalars or vectors along ``axis``."""
    rank = len(output_shape(op, tensors))
    axis = op.int("axis", 1) % max(rank, 1)
    parameters = [tensors[n].shape if n else () for n in op.inputs[1:]]
    if op.int("block_size", 0) or any(len(shape) > 1 for shape in parameters):
        return None
    vectors = [{axis: 0} if shape and shape != (1,) else {} for shape in parameters]
    return [{i: i for i in range(rank)}, *vectors]


_POINTWISE = cut_by_axes(_broadcast, "all axes", aligned=maxsize)

_UNARY = frozenset({
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Cast", "Ceil", "Celu",
    "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HardSwish", "Identity",
    "IsInf", "IsNaN", "LeakyRelu", "Log", "Mish", "Neg", "Not", "Reciprocal", "Relu", "Round",
    "Selu", "Shrink", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Swish",
    "Tan", "Tanh", "ThresholdedRelu"})  # fmt: skip

_BROADCAST = frozenset({
    "Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Clip", "Div", "Equal",
    "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or",
    "PRelu", "Pow", "Sub", "Sum", "Where", "Xor"})  # fmt: skip

RULES: dict[str, OperatorRule] = {
    **dict.fromkeys(_UNARY | _BROADCAST, _POINTWISE),
    "Dropout": cut_by_axes(_dropout, "all axes", aligned=1),
    "DequantizeLinear": cut_by_axes(_per_axis, "all axes"),
    "QuantizeLinear": cut_by_axes(_per_axis, "all axes"),
}
