"""Rules of the campaign for outputs that count as right.

* Shape and type are those of ONNX Runtime. Integers, strings and booleans are equal.
* If a result has NaN or infinity, the request would be answered by ONNX Runtime's own session
  (`coexec.session.plan_backend`): it counts as right. Feeds are ordinary numbers.
* Other values differ by at most `_SHARE` of the largest value.
* Differences below the smallest normal number do not count: engines may treat denormal numbers as
  zero.
* If ONNX Runtime's own output changes when its inputs change by a rounding error, for example for
  sin(1e30), an engine may differ by as much. This rule is for operators that round, and not for
  operators that choose (`Round`, `Max`, `Relu` and so on).
* `_QUANTIZING`: by the same rule, a number may be rounded to the other neighbour if ONNX's
  reference does so when the scale changes by a rounding error. OpenVINO adds the zero point before
  it rounds, so with an odd one it rounds numbers halfway between two steps in the other direction.
* `_GATED`, the operand times a number from 0 to 1: far below zero, the result may consist of the
  rounding error of that number only, so an engine may differ by as much.

`_BY_REFERENCE`: without VNNI, ONNX Runtime 1.32 adds two products of 8-bit integers in 16 bits,
which overflow. If it differs from `onnx.reference`, the latter is right, too.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tests.helpers.campaign.probe import Array, Given, Probe, model_of

_SHARE = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
_CHOOSING = frozenset({
    "Abs", "Ceil", "Clip", "Equal", "Floor", "GlobalMaxPool", "Greater", "GreaterOrEqual", "IsNaN",
    "Less", "LessOrEqual", "Max", "MaxPool", "Min", "Neg", "ReduceMax", "ReduceMin", "Relu",
    "Round", "Sign", "Where",
})  # fmt: skip
_GATED = frozenset({"Gelu", "Mish", "Swish"})
_BY_REFERENCE = frozenset({"ConvInteger", "MatMulInteger", "QLinearConv", "QLinearMatMul"})
_QUANTIZING = {"QLinearConv": 6, "QLinearMatMul": 6, "QuantizeLinear": 1}
"""By operator, the number of the input that is the scale of the output."""
_ROUNDING = 1e-6
"""Relative change of a scale: some rounding errors of 32-bit floats."""
_MOVES = 5
"""How often ONNX Runtime runs with changed inputs."""

Run = Callable[[Mapping[str, Array]], Sequence[Any]]


class Case(Protocol):
    """An operator, or a graph."""

    @property
    def operators(self) -> Collection[str]: ...

    def feeds(self, number: int) -> dict[str, Array]: ...


def difference(
    case: Case, number: int, expected: Sequence[Any], found: Sequence[Any], own: Run
) -> str | None:
    """Description of the error in the outputs for a set of feeds; None if they are right.

    Args:
        number: number of the set of feeds.
        own: returns ONNX Runtime's outputs for other feeds of this model.
    """
    kinds = frozenset(case.operators)
    if not _finite(*map(np.asarray, found)):
        return None
    for position, (right, other) in enumerate(zip(expected, found, strict=True)):
        right, other = np.asarray(right), np.asarray(other)
        reason = _of_one(right, other, np.zeros(right.shape))
        if reason is not None and (right.shape, right.dtype) == (other.shape, other.dtype):
            may_be = _also_right(case, kinds, number, position, right, other)
            other = np.where(may_be, right, other)
            noise = np.zeros(right.shape)
            if right.dtype.kind == "f" and not kinds <= _CHOOSING:
                noise = _noise(case, number, position, right, own)
            if kinds <= _GATED:
                (x,) = case.feeds(number).values()
                size = np.abs(np.where(np.isfinite(x), x, 0).astype(np.float64))
                noise = noise + 4 * np.finfo(x.dtype).eps * size
            reason = _of_one(right, other, noise)
        if reason is not None:
            return f"output {position}, feeds {number}: {reason}"
    return None


def _also_right(
    case: Case, kinds: frozenset[str], number: int, position: int, right: Array, found: Array
) -> Array:
    """The elements that are right although they differ from those of ONNX Runtime."""
    none: Array = np.zeros(right.shape, bool)
    feeds = case.feeds(number)
    if not isinstance(case, Probe):
        return none
    alike = [case] if kinds <= _BY_REFERENCE else []
    if kinds <= _QUANTIZING.keys():
        alike += [_with_scale(case, factor) for factor in (1 - _ROUNDING, 1 + _ROUNDING)]
    references = [_by_reference(each, feeds, position, right) for each in alike]
    return np.logical_or.reduce([none, *(_close(found, output) for output in references)])


def _with_scale(case: Probe, factor: float) -> Probe:
    """The quantizing operator with the scale of its output, a constant, times ``factor``."""
    inputs, position = list(case.inputs), _QUANTIZING[case.op_type]
    scale = inputs[position]
    assert scale is not None and scale.constant
    sets = tuple(values * values.dtype.type(factor) for values in scale.sets)
    inputs[position] = Given(sets, constant=True)
    return replace(case, inputs=tuple(inputs))


def _finite(*arrays: Array) -> bool:
    return all(np.isfinite(a).all() for a in arrays if a.dtype.kind == "f")


def _by_reference(case: Probe, feeds: Mapping[str, Array], position: int, right: Array) -> Array:
    model = onnx.load_model_from_string(model_of([case]))
    try:
        output = ReferenceEvaluator(model).run(case.results, dict(feeds))[position]
    except Exception:  # the reference does not support every operator that ONNX Runtime has
        return right
    return np.asarray(output) if np.shape(output) == right.shape else right


def _close(found: Array, right: Array) -> Array:
    """The elements of ``found`` that are equal or close to those of ``right``."""
    if found.dtype.kind != "f":
        return np.asarray(found == right)
    a, b = right.astype(np.float64), found.astype(np.float64)
    allowed = _SHARE[found.dtype.name] * np.abs(a[np.isfinite(a)]).max(initial=0.0)
    with np.errstate(all="ignore"):
        near = np.abs(a - b) <= allowed + float(np.finfo(found.dtype).smallest_normal)
    return np.where(np.isfinite(a), near, _kind(a) == _kind(b))


def _of_one(right: Array, found: Array, noise: Array) -> str | None:
    if (right.shape, right.dtype) != (found.shape, found.dtype):
        return f"{found.dtype}{list(found.shape)} for {right.dtype}{list(right.shape)}"
    if right.dtype.kind != "f":
        return _shown(np.asarray(right != found), right, found)
    a, b = right.astype(np.float64), found.astype(np.float64)
    free = ~np.isfinite(noise)
    apart = ~free & (_kind(a) != _kind(b))
    if apart.any():
        return _shown(apart, right, found)
    numbers = np.isfinite(a) & np.isfinite(b)
    largest = float(np.abs(a[np.isfinite(a)]).max(initial=0.0))
    allowed = _SHARE[right.dtype.name] * largest + float(np.finfo(right.dtype).smallest_normal)
    with np.errstate(all="ignore"):
        off = np.where(numbers & ~free, np.abs(a - b) - noise, 0.0)
    return _shown(off > allowed, right, found)


def _kind(a: Array) -> Array:
    """0 for a number, 1 and -1 for the infinities, 3 for NaN."""
    return np.where(np.isnan(a), 3, np.where(np.isinf(a), np.sign(a), 0))


def _noise(case: Case, number: int, position: int, right: Any, own: Run) -> Array:
    """The change of each element of ONNX Runtime's output if its inputs change by a rounding error.

    Infinite where a number becomes NaN or infinite, or the other way round.
    """
    rng = np.random.default_rng(0)
    a = np.asarray(right).astype(np.float64)
    moved = np.zeros(a.shape)
    for _ in range(_MOVES):
        feeds = {}
        for name, values in case.feeds(number).items():
            if values.dtype.kind == "f":
                direction = np.where(rng.random(values.shape) < 0.5, -np.inf, np.inf)
                values = np.nextafter(values, direction.astype(values.dtype), dtype=values.dtype)
                values = np.where(np.isfinite(values), values, case.feeds(number)[name])
            feeds[name] = values
        try:
            other = np.asarray(own(feeds)[position]).astype(np.float64)
        except Exception:  # ONNX Runtime refuses these feeds, so they give no information
            continue
        with np.errstate(all="ignore"):
            step = np.where(_kind(a) != _kind(other), np.inf, np.abs(a - other))
        moved = np.maximum(moved, np.where(np.isnan(step), 0.0, step))
    return 8 * moved


def _shown(wrong: Array, right: Array, found: Array) -> str | None:
    """The number of elements that differ, with the first one; None if no element differs."""
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{int(wrong.sum())} of {wrong.size} differ, as at {list(at)}: {found[at]} for {right[at]}"
    )
