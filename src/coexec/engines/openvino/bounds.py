"""Intervals of the values in a converted model, if its inputs are within a limit.

A value with an interval is finite. The bounds hold in exact arithmetic, also for each partial sum;
`_LARGEST` leaves room for rounding.
"""

from collections.abc import Callable, Mapping
from math import exp, prod, sqrt
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Interval", "ValueBounds"]

_LARGEST = 1e37
"""Values below are finite in 32 bits."""
_INTEGERS = {
    "boolean": (0.0, 1.0), "u4": (0.0, 15.0), "i4": (-8.0, 7.0), "u8": (0.0, 255.0),
    "i8": (-128.0, 127.0), "u16": (0.0, 2.0**16), "i16": (-(2.0**15), 2.0**15),
    "i32": (-(2.0**31), 2.0**31), "i64": (-(2.0**63), 2.0**63),
}  # fmt: skip


class Interval(NamedTuple):
    """An interval from the least to the largest value."""

    low: float
    high: float

    @property
    def magnitude(self) -> float:
        return max(abs(self.low), abs(self.high))


class ValueBounds:
    """Bounds of the values of an `openvino.Model`, computed at first use."""

    def __init__(self, limit: float | None) -> None:
        """
        Args:
            limit: largest magnitude of floating-point inputs; None: they may be anything.
        """
        self._limit = limit
        self._known: dict[tuple[str, int], Interval | None] = {}

    def of(self, port: Any) -> Interval | None:
        """The interval of a value; None: the value may be anything, also NaN."""
        node = port.get_node()
        key = node.get_name(), port.get_index()
        if key not in self._known:
            interval = self._of_node(node, port)
            self._known[key] = interval if interval and interval.magnitude < _LARGEST else None
        return self._known[key]

    def _of_node(self, node: Any, port: Any) -> Interval | None:
        kind = node.get_type_name()
        if kind == "Constant":
            return _of_constant(node)
        if kind == "Parameter":
            return self._of_fed(port)
        if kind in _PRODUCTS:
            return self._of_product(node)
        if kind not in _RULES:
            return None
        which, rule = _RULES[kind]
        values = node.input_values()[which]
        # Constants come last, so that large weights are read only if all other inputs are bounded.
        for value in sorted(values, key=_is_constant):
            if self.of(value) is None:
                return None
        return rule([interval for value in values if (interval := self.of(value))], node)

    def _of_fed(self, port: Any) -> Interval | None:
        kind = port.get_element_type()
        if kind.is_real():
            return None if self._limit is None else _within(self._limit)
        limits = _INTEGERS.get(kind.to_string())
        return limits and Interval(*limits)

    def _of_product(self, node: Any) -> Interval | None:
        data, weights = node.input_values()[:2]
        if (data_interval := self.of(data)) is None:
            return None
        outer = _PRODUCTS[node.get_type_name()]
        if outer is not None and _is_constant(weights):
            values = np.abs(weights.get_node().get_data())
            most = values.sum(axis=tuple(range(outer, values.ndim)), dtype=np.float64).max()
            return _within(data_interval.magnitude * float(most)) if np.isfinite(most) else None
        weight_interval = self.of(weights)
        return weight_interval and _within(
            data_interval.magnitude * weight_interval.magnitude * _size(weights)
        )


def _is_constant(port: Any) -> bool:
    return bool(port.get_node().get_type_name() == "Constant")


def _of_constant(node: Any) -> Interval | None:
    values = node.get_data()
    if values.dtype.kind not in "fiub" or not values.size:
        return None
    interval = Interval(float(values.min()), float(values.max()))
    return interval if np.isfinite(interval.magnitude) else None


def _size(port: Any) -> float:
    return float(prod(d.get_length() if d.is_static else 10**9 for d in port.get_partial_shape()))


def _within(magnitude: float) -> Interval:
    return Interval(-magnitude, magnitude)


_Rule = Callable[[list[Interval], Any], Interval | None]


def _same(of: list[Interval], node: Any) -> Interval:
    return Interval(min(x.low for x in of), max(x.high for x in of))


def _symmetric(of: list[Interval], node: Any) -> Interval:
    """The interval of an operator whose result is at most as large in magnitude as its operand."""
    return _within(of[0].magnitude)


def _one(of: list[Interval], node: Any) -> Interval:
    return Interval(-1.0, 1.0)


def _sum(of: list[Interval], node: Any) -> Interval:
    return _within(of[0].magnitude + of[1].magnitude)


def _least(of: list[Interval], node: Any) -> Interval:
    return Interval(min(x.low for x in of), min(x.high for x in of))


def _largest(of: list[Interval], node: Any) -> Interval:
    return Interval(max(x.low for x in of), max(x.high for x in of))


def _clamped(of: list[Interval], node: Any) -> Interval:
    low, high = (float(node.get_attributes()[key]) for key in ("min", "max"))
    return Interval(*(max(low, min(high, value)) for value in of[0]))


def _divided(of: list[Interval], node: Any) -> Interval | None:
    divisor = node.input_value(1)
    if not _is_constant(divisor):
        return None
    least = float(np.abs(divisor.get_node().get_data()).min(initial=np.inf))
    return _within(of[0].magnitude / least) if least > 0 else None


def _normalized(of: list[Interval], node: Any) -> Interval | None:
    """Deviations from a mean, divided by their standard deviation. Their squares are summed, so the
    sum of squares has to be finite, too."""
    values = _size(node.input_value(0))
    return _within(sqrt(values)) if of[0].magnitude ** 2 * values < _LARGEST else None


def _scaled(by: Callable[[Any], float]) -> _Rule:
    return lambda of, node: _within(of[0].magnitude * by(node))


_PRODUCTS: Mapping[str, int | None] = {
    "Convolution": 1,
    "GroupConvolution": 2,
    "MatMul": None,
    "ConvolutionBackpropData": None,
    "GroupConvolutionBackpropData": None,
}
"""Number of leading axes of the weights that belong to output channels; None: the output channels
are not the leading axes."""

_FIRST, _BOTH, _ALL = slice(0, 1), slice(0, 2), slice(None)
_RULES: Mapping[str, tuple[slice, _Rule]] = {
    **dict.fromkeys((
        "AvgPool", "BatchToSpace", "Broadcast", "Convert", "DepthToSpace", "Gather",
        "GatherElements", "GatherND", "Identity", "MaxPool", "ReduceMax", "ReduceMean",
        "ReduceMin", "Reshape", "Reverse", "ReverseSequence", "Slice", "SpaceToBatch",
        "SpaceToDepth", "Split", "Squeeze", "StridedSlice", "Tile", "Transpose", "Unsqueeze",
        "VariadicSplit",
    ), (_FIRST, _same)),
    **dict.fromkeys(("Abs", "Gelu", "HSwish", "Mish", "Negative", "Swish"), (_FIRST, _symmetric)),
    **dict.fromkeys((
        "Cos", "Erf", "HardSigmoid", "HSigmoid", "Sigmoid", "Sin", "Softmax", "SoftSign", "Tanh",
    ), (_FIRST, _one)),
    "Add": (_BOTH, _sum),
    "Clamp": (_FIRST, _clamped),
    "Concat": (_ALL, _same),
    "Divide": (_FIRST, _divided),
    "Elu": (_FIRST, lambda of, node: _within(
        max(of[0].magnitude, abs(node.get_attributes()["alpha"])))),
    "Exp": (_FIRST, lambda of, node: Interval(0.0, exp(min(of[0].high, 100.0)))),
    "FakeQuantize": (slice(3, 5), _same),
    "Interpolate": (_FIRST, _scaled(lambda node: 8.0)),
    "MVN": (_FIRST, _normalized),
    "Maximum": (_BOTH, _largest),
    "Minimum": (_BOTH, _least),
    "Multiply": (_BOTH, lambda of, node: _within(of[0].magnitude * of[1].magnitude)),
    "PRelu": (_BOTH, lambda of, node: _within(of[0].magnitude * max(1.0, of[1].magnitude))),
    "Pad": (_ALL, _same),
    "ReduceSum": (_FIRST, _scaled(lambda node: _size(node.input_value(0)))),
    "Relu": (_FIRST, lambda of, node: Interval(max(0.0, of[0].low), max(0.0, of[0].high))),
    "Select": (slice(1, 3), _same),
    "SoftPlus": (_FIRST, lambda of, node: Interval(0.0, of[0].magnitude + 1.0)),
    "Subtract": (_BOTH, _sum),
}  # fmt: skip
"""By operator, the inputs that bound the result, and the rule that derives its interval."""
