"""NaN and infinities through a converted model, as ONNX Runtime hands them on.

OpenVINO's Relu, Clamp and HardSigmoid, its maxima and minima and its Softmax take NaN for a number:
the other operand, a bound, the largest of the rest. Its Exp takes it for infinity. So they are
written in operators that keep it: ``Select(Less(x, 0), 0, x)`` is a Relu, as no comparison with NaN
holds. These are compiled to one loop over the elements where they stand side by side. Behind a
convolution the loop is a pass over its result, though, whereas Relu would be a part of the
convolution. With OpenVINO 2026.4 on one core of a Zen 3, that made resnet34 take 1.05 times as
long, squeezenet 1.2 and mobilenet_v2 1.4 times.

Where no NaN can come, nothing has to be replaced. That is so if no number that is fed is larger
than `LIMIT`, as far as a bound of the values is known (`bounds`): behind a Clip or a
normalization, and for many layers behind the inputs. So a module is compiled for such feeds, and
compiled again for all others when the first of them comes (`program`).

A quotient becomes a product with the reciprocal, which is infinite of numbers below 2.9e-39: so
1e-30 / 1e-40 would be infinite, and 0 / 1e-40 NaN. Where the divisor may be so small, the operator
is marked to stay.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from coexec.engines.openvino.bounds import ValueBounds

__all__ = ["LIMIT", "keep_quotients", "keep_special_values"]

LIMIT = 1e4
"""Pixels and what networks compute of them are smaller as a rule."""
_LEAST_DIVISOR = 1 / float(np.finfo(np.float32).max)
_STAYS = "nonconvertable_divide_0"
"""OpenVINO's mark of a Divide that its passes do not rewrite."""


def keep_special_values(model: Any, limit: float | None) -> bool:
    """Replace the operators of an `openvino.Model` that lose NaN or infinities.

    Args:
        limit: largest magnitude of floating-point inputs; None: they may be anything.

    Returns:
        Whether one stayed that would be replaced without the limit.
    """
    known, always = ValueBounds(limit), ValueBounds(None)
    stayed = changed = False
    for op in model.get_ordered_ops():
        rule = _RULES.get(op.get_type_name())
        if rule is None or not _floats(op.output(0)) or _finite(op, always):
            continue
        if limit is not None and _finite(op, known):
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


def keep_quotients(model: Any) -> None:
    """Mark the divisions of an `openvino.Model` whose divisor may have no finite reciprocal."""
    for op in model.get_ops():
        if op.get_type_name() != "Divide" or not _floats(op.output(0)):
            continue
        divisor = _constant(op.input_value(1))
        if divisor is None or (np.abs(divisor) < _LEAST_DIVISOR).any():
            op.get_rt_info()[_STAYS] = True


def _finite(op: Any, bounds: ValueBounds) -> bool:
    """Whether operands and result are numbers."""
    return all(bounds.of(value) is not None for value in (*op.input_values(), op.output(0)))


def _floats(port: Any) -> bool:
    return str(port.get_element_type().to_string()) in ("f32", "f16", "bf16")


def _ops() -> Any:
    from openvino import opset14

    return opset14


def _number(value: float, like: Any) -> Any:
    return _ops().constant(np.array(value, np.float32), like.get_element_type())


def _is_nan(x: Any) -> Any:
    """By a comparison: IsNaN is not compiled into the loop of its neighbours."""
    return _ops().not_equal(x, x)


def _or_nan(x: Any, y: Any) -> Any:
    """``y``, or where ``x`` is NaN, NaN."""
    return _ops().select(_is_nan(x), x, y)


def _least(x: Any, low: Any) -> Any:
    """``x``, but not less than ``low``, which is no NaN."""
    return _ops().select(_ops().less(x, low), low, x)


def _most(x: Any, high: Any) -> Any:
    """``x``, but not more than ``high``, which is no NaN."""
    return _ops().select(_above(x, high), high, x)


def _above(x: Any, y: Any) -> Any:
    """Whether ``x`` is greater; not if either is NaN. OpenVINO's Greater holds for NaN where the
    processor has AVX-512."""
    return _ops().less(y, x)


def _below(x: Any, y: Any) -> Any:
    return _ops().less(x, y)


def _relu(op: Any) -> Any:
    x = op.input_value(0)
    return _least(x, _number(0.0, x))


def _clamp(op: Any) -> Any:
    x, given = op.input_value(0), op.get_attributes()
    low, high = (_number(_in_floats(given[key]), x) for key in ("min", "max"))
    return _most(_least(x, low), high)


def _in_floats(value: float) -> float:
    """A finite bound remains one: 64 bits hold more than 32."""
    most = float(np.finfo(np.float32).max)
    return max(-most, min(most, value)) if np.isfinite(value) else value


def _hard_sigmoid(op: Any) -> Any:
    x, alpha, beta = op.input_values()
    line = _ops().add(_ops().multiply(x, alpha), beta)
    return _most(_least(line, _number(0.0, x)), _number(1.0, x))


def _prelu(op: Any) -> Any:
    """Where the slope is computed, the positive side must not be multiplied with it."""
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


def _of_two(loses: Callable[[Any, Any], Any]) -> Callable[[Any], Any]:
    """A maximum or minimum. ``loses`` tells where the first operand is not the result."""

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
    """A window is NaN if it has one. That is found by pooling ones and zeros."""
    x, given = op.input_value(0), op.get_attributes()
    ones = _ops().select(_is_nan(x), _number(1.0, x), _number(0.0, x))
    pooled = _ops().max_pool(
        ones, given["strides"], given.get("dilations") or [1] * len(given["kernel"]),
        given["pads_begin"], given["pads_end"], given["kernel"], given["rounding_type"],
        given["auto_pad"],
    )  # fmt: skip
    above = _above(pooled.output(0), _number(0.5, x))
    return _ops().select(above, _number(np.nan, x), op.output(0))


def _reduction(sign: float) -> Callable[[Any], Any]:
    """As of a pool. OpenVINO also gives a finite number where all are infinite."""

    def rule(op: Any) -> Any:
        x, axes = op.input_values()
        end = _number(-sign * np.inf, x)
        # By element: 2 NaN, 1 a value, 0 one that never wins. The largest decides the result.
        kinds = _ops().select(
            _is_nan(x), _number(2.0, x),
            _ops().select(_ops().not_equal(x, end), _number(1.0, x), _number(0.0, x)),
        )  # fmt: skip
        largest = _ops().reduce_max(kinds, axes, op.get_attributes()["keep_dims"])
        values = _ops().select(_ops().less(largest, _number(0.5, x)), end, op)
        above = _above(largest, _number(1.5, x))
        return _ops().select(above, _number(np.nan, x), values)

    return rule


def _softmax(op: Any) -> Any:
    """One NaN or positive infinity makes a row NaN. Their own places are NaN already."""
    y = op.output(0)
    axis = _ops().constant(np.array([op.get_attributes()["axis"]]))
    return _or_nan(_ops().reduce_sum(y, axis, True).output(0), y)


def _first_place(op: Any) -> Any:
    """Of the largest or smallest, which ArgMax and ArgMin ask for: ONNX Runtime takes
    another element only if it is larger than the one it has. So a NaN at the beginning stays, and
    others never win."""
    x, count = op.input_values()
    number = _constant(count)
    if number is None or int(number.item()) != 1:
        return None
    given, shape = op.get_attributes(), x.get_partial_shape()
    axis = given["axis"] % len(shape)
    best = np.inf if given["mode"] == "max" else -np.inf
    values = np.full([shape[axis].get_length() if i == axis else 1 for i in range(len(shape))],
                     -best, np.float32)  # fmt: skip
    values[(0,) * len(shape)] = best
    instead = _ops().constant(values, x.get_element_type())
    op.input(0).replace_source_output(_ops().select(_is_nan(x), instead, x).output(0))
    return None


_RULES: Mapping[str, Callable[[Any], Any]] = {
    "Relu": _relu,
    "Clamp": _clamp,
    "HardSigmoid": _hard_sigmoid,
    "PRelu": _prelu,
    "Exp": _exp,
    "Maximum": _of_two(_below),
    "Minimum": _of_two(_above),
    "MaxPool": _pool,
    "ReduceMax": _reduction(1.0),
    "ReduceMin": _reduction(-1.0),
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "TopK": _first_place,
}
"""By operator of OpenVINO: what to take in its place; None: itself, perhaps of another operand."""
