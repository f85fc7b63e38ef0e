"""Preserve NaN and infinities in a converted model, as ONNX Runtime does.

OpenVINO's Relu, Clamp, HardSigmoid, maxima, minima and Softmax replace NaN by a number: the other
operand, a bound, or the largest other element. Its Exp returns infinity for NaN, and on a processor
with AVX-512 its Greater is true for NaN. So these operators are replaced by operators that keep
NaN. For example, ``Select(Less(x, 0), 0, x)`` is a Relu, because every comparison with NaN is
false. OpenVINO compiles neighbouring operators of this kind to one loop over the elements. But
behind a convolution this loop is a separate pass over its result, while a Relu would be fused into
the convolution. With OpenVINO 2026.4 on one core of a Zen 3, resnet34 took 1.05 times as long,
squeezenet 1.2 times and mobilenet_v2 1.4 times.

If no NaN can occur, nothing has to be replaced. This holds if no fed number is larger than `LIMIT`,
as far as the values have known bounds (`bounds`): behind a Clip or a normalization, and for many
layers behind the inputs. So a module is first compiled for such feeds, and compiled again for all
feeds when the first other feed arrives (`program`).

OpenVINO computes a quotient as a product with the reciprocal. The reciprocal of a number below
2.9e-39 is infinite: 1e-30 / 1e-40 would be infinite, and 0 / 1e-40 NaN. If the divisor may be so
small, the operator is marked so that OpenVINO does not rewrite it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coexec.engines.openvino.bounds import ValueBounds

__all__ = ["LIMIT", "keep_quotients", "keep_special_values"]

LIMIT = 1e4
"""Pixels, and values that networks compute from them, are usually smaller in magnitude."""
_LEAST_DIVISOR = 1 / float(np.finfo(np.float32).max)
_STAYS = "nonconvertable_divide_0"
"""OpenVINO's mark of a Divide that its passes must not rewrite."""


def keep_special_values(model: Any, limit: float | None) -> bool:
    """Replace the operators of an `openvino.Model` that lose NaN or infinities.

    Args:
        limit: largest magnitude of floating-point inputs; None: they may be anything.

    Returns:
        Whether an operator was kept only because of the limit.
    """
    bounds, bounds_without_limit = ValueBounds(limit), ValueBounds(None)
    stayed = changed = False
    for op in model.get_ordered_ops():
        rule = _RULES.get(op.get_type_name())
        if rule is None or not _floats(op.input_value(0)) or _finite(op, bounds_without_limit):
            continue
        if limit is not None and _finite(op, bounds):
            stayed = True
            continue
        readers = list(op.output(0).get_target_inputs())
        kept = rule(op)
        changed = True
        if kept is not None:
            kept.set_friendly_name(op.get_friendly_name() + "/special")
            for reader in readers:
                reader.replace_source_output(kept.output(0))
    if changed:
        model.validate_nodes_and_infer_types()
    return stayed


def keep_quotients(model: Any) -> bool:
    """Mark the divisions of an `openvino.Model` whose divisor may have no finite reciprocal.

    Returns:
        Whether there are any. A file of the model would not keep the marks.
    """
    marked = False
    for op in model.get_ops():
        if op.get_type_name() != "Divide" or not _floats(op.output(0)):
            continue
        divisor = _constant(op.input_value(1))
        if divisor is None or (np.abs(divisor) < _LEAST_DIVISOR).any():
            op.get_rt_info()[_STAYS] = marked = True
    return marked


def _finite(op: Any, bounds: ValueBounds) -> bool:
    """Whether operands and result are finite."""
    return all(bounds.of(value) is not None for value in (*op.input_values(), op.output(0)))


def _floats(port: Any) -> bool:
    return str(port.get_element_type().to_string()) in ("f32", "f16", "bf16")


def _ops() -> Any:
    from openvino import opset14

    return opset14


def _number(value: float, like: Any) -> Any:
    return _ops().constant(np.array(value, np.float32), like.get_element_type())


def _is_nan(x: Any) -> Any:
    """Whether ``x`` is NaN, by a comparison: OpenVINO does not fuse IsNaN into a loop with
    neighbouring operators."""
    return _ops().not_equal(x, x)


def _or_nan(x: Any, y: Any) -> Any:
    """NaN where ``x`` is NaN, else ``y``."""
    return _ops().select(_is_nan(x), x, y)


def _least(x: Any, low: Any) -> Any:
    """The larger of ``x`` and ``low``; NaN where ``x`` is NaN. ``low`` is not NaN."""
    return _ops().select(_ops().less(x, low), low, x)


def _most(x: Any, high: Any) -> Any:
    """The smaller of ``x`` and ``high``; NaN where ``x`` is NaN. ``high`` is not NaN."""
    return _ops().select(_above(x, high), high, x)


def _above(x: Any, y: Any) -> Any:
    """Whether ``x`` is greater than ``y``; False if one of them is NaN. OpenVINO's Greater is true
    for NaN on a processor with AVX-512."""
    return _ops().less(y, x)


def _below(x: Any, y: Any) -> Any:
    return _ops().less(x, y)


def _relu(op: Any) -> Any:
    x = op.input_value(0)
    return _least(x, _number(0.0, x))


def _clamp(op: Any) -> Any:
    x, attributes = op.input_value(0), op.get_attributes()
    low, high = (_number(_in_floats(attributes[key]), x) for key in ("min", "max"))
    return _most(_least(x, low), high)


def _in_floats(value: float) -> float:
    """A bound in 64 bits, limited so that a finite bound stays finite in 32 bits."""
    most = float(np.finfo(np.float32).max)
    return max(-most, min(most, value)) if np.isfinite(value) else value


def _hard_sigmoid(op: Any) -> Any:
    x, alpha, beta = op.input_values()
    line = _ops().add(_ops().multiply(x, alpha), beta)
    return _most(_least(line, _number(0.0, x)), _number(1.0, x))


def _prelu(op: Any) -> Any:
    """A PRelu that does not multiply positive elements with the slope: it may be NaN or infinite.

    None, which keeps the operator, if the slope is constant, finite and not 0.
    """
    x, slope = op.input_values()
    values = _constant(slope)
    if values is not None and np.all(np.isfinite(values)) and np.all(values != 0):
        return None
    rank, wide = len(x.get_partial_shape()), len(slope.get_partial_shape())
    if wide == 1 and rank > 1 and slope.get_partial_shape()[0] != 1:  # by channel
        shape = [1, -1, *[1] * (rank - 2)]
        slope = _ops().reshape(slope, _ops().constant(np.array(shape)), False).output(0)
    return _ops().select(_ops().less(x, _number(0.0, x)), _ops().multiply(x, slope), x)


def _exp(op: Any) -> Any:
    x = op.input_value(0)
    return _or_nan(x, _ops().exp(x))


def _gelu(op: Any) -> Any:
    """The result of a Gelu, which is its operand above 10. On a processor with AVX-512, OpenVINO
    returns NaN for infinity."""
    x = op.input_value(0)
    return _ops().select(_ops().less(_number(10.0, x), x), x, op.output(0))


def _erf(op: Any) -> Any:
    """The result of an Erf, which is 1 above 10, in a form that OpenVINO does not fuse to a
    Gelu."""
    x = op.input_value(0)
    return _ops().select(_ops().less(_number(10.0, x), x), _number(1.0, x), op.output(0))


def _power(op: Any) -> Any:
    """The result of a Power. OpenVINO returns a square root for the exponent 0.5, which is NaN and
    not infinite for -inf."""
    x, exponent = op.input_values()
    values = _constant(exponent)
    if values is None or not (values == 0.5).any():
        return None
    return _ops().select(_ops().equal(x, _number(-np.inf, x)), _number(np.inf, x), op.output(0))


def _of_two(loses: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """The rule of a maximum or minimum.

    Args:
        loses: whether the first operand is not the result, by element.
    """

    def rule(op: Any) -> Any:
        a, b = op.input_values()
        if _no_nan(a):
            a, b = b, a
        kept = _ops().select(loses(a, b), b, a)
        return kept if _no_nan(b) else _or_nan(b, kept)

    return rule


def _constant(port: Any) -> np.ndarray[Any, Any] | None:
    node = port.get_node()
    return node.get_data() if node.get_type_name() == "Constant" else None


def _no_nan(port: Any) -> bool:
    values = _constant(port)
    return values is not None and not np.isnan(values).any()


def _pool(op: Any) -> Any:
    """The result of a pool, with NaN for each window that contains NaN. A second pool of ones (NaN)
    and zeros finds these windows."""
    x, attributes = op.input_value(0), op.get_attributes()
    ones = _ops().select(_is_nan(x), _number(1.0, x), _number(0.0, x))
    pooled = _ops().max_pool(
        ones,
        attributes["strides"],
        attributes.get("dilations") or [1] * len(attributes["kernel"]),
        attributes["pads_begin"],
        attributes["pads_end"],
        attributes["kernel"],
        attributes["rounding_type"],
        attributes["auto_pad"],
    )
    above = _above(pooled.output(0), _number(0.5, x))
    return _ops().select(above, _number(np.nan, x), op.output(0))


def _reduction(sign: float) -> Callable[[Any], Any]:
    """The rule of ReduceMax (``sign`` 1) or ReduceMin (-1), which keeps NaN as in a pool.

    It also keeps infinity if all elements are infinite: OpenVINO returns a finite number then.
    """

    def rule(op: Any) -> Any:
        x, axes = op.input_values()
        end = _number(-sign * np.inf, x)
        # Class of each element: 2 NaN, 1 a value, 0 the infinity that never wins. The largest class
        # decides the result.
        kinds = _ops().select(
            _is_nan(x),
            _number(2.0, x),
            _ops().select(_ops().not_equal(x, end), _number(1.0, x), _number(0.0, x)),
        )
        largest = _ops().reduce_max(kinds, axes, op.get_attributes()["keep_dims"])
        values = _ops().select(_ops().less(largest, _number(0.5, x)), end, op)
        above = _above(largest, _number(1.5, x))
        return _ops().select(above, _number(np.nan, x), values)

    return rule


def _softmax(op: Any) -> Any:
    """The result of a Softmax, with NaN in a whole row that contains NaN or positive infinity.
    OpenVINO returns NaN only at the positions of these elements."""
    y = op.output(0)
    axis = _ops().constant(np.array([op.get_attributes()["axis"]]))
    return _or_nan(_ops().reduce_sum(y, axis, True).output(0), y)


def _first_place(op: Any) -> Any:
    """Change the operand of a TopK for one element, which ArgMax and ArgMin become.

    ONNX Runtime replaces its current best element only by a larger (smaller) one. So a NaN at the
    beginning of the axis wins, and every other NaN loses.
    """
    x, count = op.input_values()
    number = _constant(count)
    if number is None or int(number.item()) != 1:
        return None
    attributes, shape = op.get_attributes(), x.get_partial_shape()
    axis = attributes["axis"] % len(shape)
    best = np.inf if attributes["mode"] == "max" else -np.inf
    values = np.full(
        [shape[axis].get_length() if i == axis else 1 for i in range(len(shape))], -best, np.float32
    )
    values[(0,) * len(shape)] = best
    replacement = _ops().constant(values, x.get_element_type())
    op.input(0).replace_source_output(_ops().select(_is_nan(x), replacement, x).output(0))
    return None


_RULES: Mapping[str, Callable[[Any], Any]] = {
    "Greater": lambda op: _above(*op.input_values()),
    "GreaterEqual": lambda op: _ops().less_equal(*reversed(op.input_values())),
    "Relu": _relu,
    "Clamp": _clamp,
    "HardSigmoid": _hard_sigmoid,
    "PRelu": _prelu,
    "Exp": _exp,
    "Gelu": _gelu,
    "Erf": _erf,
    "Power": _power,
    "Maximum": _of_two(_below),
    "Minimum": _of_two(_above),
    "MaxPool": _pool,
    "ReduceMax": _reduction(1.0),
    "ReduceMin": _reduction(-1.0),
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "TopK": _first_place,
}
"""By OpenVINO operator, a function that returns its replacement. If it returns None, the operator
stays, possibly with another operand."""
