"""Rules of the campaign for outputs that count as right.

* Shape and type are those of ONNX Runtime. Integers, strings and booleans are equal.
* NaN and both infinities are at the same positions. An algorithm that transforms tiles, such as
  Winograd's for convolutions, may spread them within a tile of `_TILE` outputs, to outputs of all
  channels. It may turn an infinity into NaN there, but never an infinity or a NaN into a number.
* Other values differ by at most `_SHARE` of the largest value.
* Differences below the smallest normal number do not count: engines may treat denormal numbers as
  zero. The consequences of such a zero, such as 1/0, do count.
* If ONNX Runtime's own output changes when its inputs change by a rounding error, for example for
  sin(1e30), an engine may differ by as much. This rule is for operators that round, and not for
  operators that choose (`Round`, `Max`, `ArgMax` and so on).
* `_QUANTIZING`: by the same rule, a number may be rounded to the other neighbour if ONNX's
  reference does so when the scale changes by a rounding error. OpenVINO adds the zero point before
  it rounds, so with an odd one it rounds numbers halfway between two steps in the other direction.
* `_GATED`, the operand times a number from 0 to 1: far below zero, the result may consist of the
  rounding error of that number only, so an engine may differ by as much.

If ONNX Runtime's output does not follow the definition, the result of the definition is right, too:

* `_EXTREMES`, maximum or minimum of several values: ONNX Runtime 1.32 propagates a NaN if it is the
  last of a pool's window, or at certain positions of a reduced row, and otherwise ignores it. NumPy
  always propagates it. So a NaN is right if the window contains one; in a graph, it is right
  anywhere if any value is NaN. A number instead of ONNX Runtime's NaN is never right. For a window
  that contains only -inf, ONNX Runtime returns -3.4e38 or -inf, depending on the number of
  channels.
* `_SAMPLING`, averages of neighbours: ONNX Runtime multiplies a neighbour of weight 0, too, so an
  infinite neighbour turns a sample that does not depend on it into NaN. The value of the sample is
  right, too. If a partial sum overflows in ONNX Runtime, the finite sample is right, too, and so is
  another overflow.
* `_BY_REFERENCE`: without VNNI, ONNX Runtime 1.32 adds two products of 8-bit integers in 16 bits,
  which overflow. Its ReduceLogSumExp first computes the maximum of a row and loses NaN there. Its
  recurrent operators limit the inputs of gates, which loses NaN, and approximate gates, which is
  visible with a state of 1e15. Its LRN subtracts the channels that leave a window, so all values
  after an infinity become NaN. If it differs from `onnx.reference` (for LRN and recurrent
  operators, from the definition), the latter is right, too.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from tests.helpers.campaign.probe import Array, Given, Probe, model_of
from tests.helpers.campaign.recurrent import recurrent

__all__ = ["Case", "Run", "difference"]

_SHARE = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
_TILE = 8
_TILED = frozenset({"Conv", "ConvTranspose"})
_CHOOSING = frozenset({
    "Abs", "ArgMax", "ArgMin", "Ceil", "Clip", "Equal", "Floor", "Greater", "GreaterOrEqual",
    "Hardmax", "IsInf", "IsNaN", "Less", "LessOrEqual", "Max", "MaxPool", "Min", "Neg",
    "ReduceMax", "ReduceMin", "Relu", "Round", "Sign", "TopK", "Where", "GlobalMaxPool",
})  # fmt: skip
_GATED = frozenset({"Gelu", "Mish", "Swish"})
_EXTREMES = frozenset({"GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMin"})
_SAMPLING = frozenset({"GridSample", "Resize", "RoiAlign", "Upsample"})
_BY_REFERENCE = frozenset(
    {
        "ConvInteger",
        "GRU",
        "LRN",
        "LSTM",
        "MatMulInteger",
        "QLinearConv",
        "QLinearMatMul",
        "RNN",
        "ReduceLogSumExp",
    }
)
_QUANTIZING = {"QLinearConv": 6, "QLinearMatMul": 6, "QuantizeLinear": 1}
"""By operator, the number of the input that is the scale of the output."""
_SMALLER = 1 / 256
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
    for position, (right, other) in enumerate(zip(expected, found, strict=True)):
        right, other = np.asarray(right), np.asarray(other)
        reason = _of_one(kinds, right, other, np.zeros(right.shape))
        if reason is not None and (right.shape, right.dtype) == (other.shape, other.dtype):
            may_be = _also_right(case, kinds, number, position, right, other, own)
            other = np.where(may_be, right, other)
            noise = np.zeros(right.shape)
            if right.dtype.kind == "f" and not kinds <= _CHOOSING:
                noise = _noise(case, number, position, right, own)
            if kinds <= _GATED:
                (x,) = case.feeds(number).values()
                size = np.abs(np.where(np.isfinite(x), x, 0).astype(np.float64))
                noise = noise + 4 * np.finfo(x.dtype).eps * size
            reason = _of_one(kinds, right, other, noise)
        if reason is not None:
            return f"output {position}, feeds {number}: {reason}"
    return None


def _also_right(
    case: Case,
    kinds: frozenset[str],
    number: int,
    position: int,
    right: Array,
    found: Array,
    own: Run,
) -> Array:
    """The elements that are right although they differ from those of ONNX Runtime."""
    none: Array = np.zeros(right.shape, bool)
    feeds = case.feeds(number)
    if len(kinds) > 1:
        # ONNX Runtime may have lost a NaN. It is unknown which later values the NaN would reach.
        floats = right.dtype.kind == "f" and kinds & _EXTREMES
        return np.isnan(found) if floats and not _finite(*feeds.values(), right) else none
    if kinds <= _EXTREMES and right.dtype.kind == "f":
        sign = -1 if "ReduceMin" in kinds else 1
        has_nan = np.asarray(own(_replaced(feeds, np.isnan, sign, 0))[position]) != 0
        lowest = np.finfo(right.dtype).min
        forgotten = (np.minimum(right, lowest) == right) & (np.minimum(found, lowest) == found)
        return (has_nan & np.isnan(found)) | (forgotten & ~has_nan)
    if kinds <= _SAMPLING and right.dtype.kind == "f":
        return _close(found, _sampled(feeds, position, own)) | _overflown(
            feeds, position, right, found, own
        )
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


def _sampled(feeds: Mapping[str, Array], position: int, own: Run) -> Array:
    """The averages if neighbours of weight 0 do not count."""

    def share(where: Callable[[Array], Array]) -> Array:
        return np.asarray(own(_replaced(feeds, where, 1, 0))[position]).astype(np.float64)

    numbers = np.asarray(own(_replaced(feeds, lambda x: ~np.isfinite(x), 0))[position])
    up, down, none = share(np.isposinf), share(np.isneginf), share(np.isnan)
    # Weights may be negative.
    rises, falls = (up > 0) | (down < 0), (up < 0) | (down > 0)
    averages = np.where(rises, np.inf, np.where(falls, -np.inf, numbers.astype(np.float64)))
    return np.where((rises & falls) | (none != 0), np.nan, averages)


def _overflown(
    feeds: Mapping[str, Array], position: int, right: Array, found: Array, own: Run
) -> Array:
    """The elements that are right where a partial sum of a sample overflows in ONNX Runtime.

    Samples are sums of products with weights. So those of inputs a 256th as large are a 256th, and
    do not overflow.
    """
    if not _finite(*feeds.values()) or len(feeds) > 1:
        return np.zeros(right.shape, bool)
    smaller = {name: values * values.dtype.type(_SMALLER) for name, values in feeds.items()}
    samples = np.asarray(own(smaller)[position]).astype(np.float64) / _SMALLER
    return ~np.isfinite(right) & (_close(found, samples) | ~np.isfinite(found))


def _by_reference(case: Probe, feeds: Mapping[str, Array], position: int, right: Array) -> Array:
    if case.op_type == "LRN":
        return _lrn(feeds[case.names[0]], case.attributes)
    if case.op_type in ("GRU", "LSTM", "RNN"):
        inputs = [
            feeds.get(name, x and x.first) for name, x in zip(case.names, case.inputs, strict=True)
        ]
        with np.errstate(all="ignore"):
            return recurrent(case.op_type, inputs, case.attributes)[position]
    model = onnx.load_model_from_string(model_of([case]))
    try:
        output = ReferenceEvaluator(model).run(case.results, dict(feeds))[position]
    except Exception:  # the reference does not support every operator that ONNX Runtime has
        return right
    return np.asarray(output) if np.shape(output) == right.shape else right


def _lrn(x: Array, attributes: Mapping[str, Any]) -> Array:
    size = attributes["size"]
    alpha, beta, bias = (
        attributes.get(n, d) for n, d in (("alpha", 1e-4), ("beta", 0.75), ("bias", 1.0))
    )
    before = (size - 1) // 2
    around = [(0, 0)] * x.ndim
    around[1] = (before, size - 1 - before)
    with np.errstate(all="ignore"):
        squares = np.pad(x.astype(np.float64) ** 2, around)
        sums = sum(squares[:, at : at + x.shape[1]] for at in range(size))
        normalized = x / (bias + alpha / size * sums) ** beta
    return np.asarray(normalized.astype(x.dtype))


def _close(found: Array, right: Array) -> Array:
    """The elements of ``found`` that are equal or close to those of ``right``."""
    if found.dtype.kind != "f":
        return np.asarray(found == right)
    a, b = right.astype(np.float64), found.astype(np.float64)
    allowed = _SHARE[found.dtype.name] * np.abs(a[np.isfinite(a)]).max(initial=0.0)
    with np.errstate(all="ignore"):
        near = np.abs(a - b) <= allowed + float(np.finfo(found.dtype).smallest_normal)
    return np.where(np.isfinite(a), near, _kind(a) == _kind(b))


def _replaced(
    feeds: Mapping[str, Array],
    where: Callable[[Array], Array],
    by: float,
    others: float | None = None,
) -> dict[str, Array]:
    """The feeds with the value ``by`` where ``where`` is true, and ``others`` at all other
    positions; None keeps the values there."""
    feeds_after = {}
    for name, values in feeds.items():
        if values.dtype.kind == "f":
            kept = values if others is None else np.full_like(values, others)
            values = np.where(where(values), np.asarray(by, values.dtype), kept)
        feeds_after[name] = values
    return feeds_after


def _of_one(kinds: frozenset[str], right: Array, found: Array, noise: Array) -> str | None:
    if (right.shape, right.dtype) != (found.shape, found.dtype):
        return f"{found.dtype}{list(found.shape)} for {right.dtype}{list(right.shape)}"
    if right.dtype.kind != "f":
        return _shown(np.asarray(right != found), right, found)
    a, b = right.astype(np.float64), found.astype(np.float64)
    free = ~np.isfinite(noise)
    if kinds <= _TILED:
        free |= _tiles(a) & ~np.isfinite(b)
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


def _tiles(a: Array) -> Array:
    """The outputs that may share a tile with an infinity or a NaN."""
    touched = ~np.isfinite(a)
    if a.ndim > 1:
        touched = np.broadcast_to(touched.any(axis=1, keepdims=True), a.shape).copy()
    for axis in range(2, a.ndim):
        spread = touched.copy()
        for step in range(1, _TILE):
            ahead = [slice(None)] * a.ndim
            behind = list(ahead)
            ahead[axis], behind[axis] = slice(step, None), slice(None, -step)
            spread[tuple(ahead)] |= touched[tuple(behind)]
            spread[tuple(behind)] |= touched[tuple(ahead)]
        touched = spread
    return touched


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
