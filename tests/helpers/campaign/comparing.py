"""When an answer is right: the rules of the campaign.

* Shape and type are those of ONNX Runtime. Integers, texts and truth values are equal.
* NaN and both infinities are in the same places. An algorithm that transforms tiles, as Winograd's
  does for convolutions, may spread them within a tile of `_TILE` outputs, to outputs of all
  channels; it may turn an infinity into NaN there, but never either into a number.
* Other values differ by at most `_SHARE` of the largest one.
* Differences below the smallest normal number do not count: engines may take denormal numbers for
  zeros. What such a zero leads to, as 1/0 does, does count.
* Where ONNX Runtime's own answer changes when its inputs change by a rounding error, as that of
  sin(1e30) does, an engine may differ by as much. This holds for operators that round, and not for
  those that choose (`Round`, `Max`, `ArgMax` and so on).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from campaign.probe import Array, Probe

__all__ = ["difference"]

_SHARE = {"float64": 1e-4, "float32": 1e-4, "float16": 1e-2, "bfloat16": 1e-2}
_TILE = 8
_TILED = ("Conv", "ConvTranspose")
_CHOOSING = frozenset({
    "Abs", "ArgMax", "ArgMin", "Ceil", "Clip", "Equal", "Floor", "Greater", "GreaterOrEqual",
    "Hardmax", "IsInf", "IsNaN", "Less", "LessOrEqual", "Max", "MaxPool", "Min", "Neg",
    "ReduceMax", "ReduceMin", "Relu", "Round", "Sign", "TopK", "Where", "GlobalMaxPool",
})  # fmt: skip
_MOVES = 5
"""How often ONNX Runtime is asked with changed inputs."""

Run = Callable[[Mapping[str, Array]], Sequence[Any]]


def difference(
    probe: Probe, number: int, expected: Sequence[Any], found: Sequence[Any], own: Run
) -> str | None:
    """What is wrong with the answer to a set of feeds; None: nothing.

    Args:
        number: of the set.
        own: ONNX Runtime's answer to other feeds of this model.
    """
    for position, (right, other) in enumerate(zip(expected, found, strict=True)):
        reason = _of_one(probe, right, other, None)
        if reason is not None and _may_round(probe, right):
            noise = _noise(probe, number, position, right, own)
            reason = _of_one(probe, right, other, noise)
        if reason is not None:
            return f"output {position}, feeds {number}: {reason}"
    return None


def _may_round(probe: Probe, right: Any) -> bool:
    return probe.op_type not in _CHOOSING and np.asarray(right).dtype.kind == "f"


def _of_one(probe: Probe, right: Any, found: Any, noise: Array | None) -> str | None:
    right, found = np.asarray(right), np.asarray(found)
    if (right.shape, right.dtype) != (found.shape, found.dtype):
        return f"{found.dtype}{list(found.shape)} for {right.dtype}{list(right.shape)}"
    if right.dtype.kind != "f":
        return _shown(right != found, right, found)
    a, b = right.astype(np.float64), found.astype(np.float64)
    if noise is None:
        noise = np.zeros(a.shape)
    free = ~np.isfinite(noise)
    if probe.op_type in _TILED:
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
    """0 for a number, others for the infinities and NaN."""
    return np.where(np.isnan(a), 3, np.where(np.isinf(a), np.sign(a), 0))


def _tiles(a: Array) -> Array:
    """The outputs that share a tile with one that is no number."""
    found = ~np.isfinite(a)
    if a.ndim > 1:
        found = np.broadcast_to(found.any(axis=1, keepdims=True), a.shape).copy()
    for axis in range(2, a.ndim):
        spread = found.copy()
        for step in range(1, _TILE):
            ahead = [slice(None)] * a.ndim
            behind = list(ahead)
            ahead[axis], behind[axis] = slice(step, None), slice(None, -step)
            spread[tuple(ahead)] |= found[tuple(behind)]
            spread[tuple(behind)] |= found[tuple(ahead)]
        found = spread
    return found


def _noise(probe: Probe, number: int, position: int, right: Any, own: Run) -> Array:
    """How far ONNX Runtime's answer moves for a rounding error of its inputs, by element.

    Infinite where a value becomes NaN or infinite, or a number.
    """
    rng = np.random.default_rng(0)
    a = np.asarray(right).astype(np.float64)
    moved = np.zeros(a.shape)
    for _ in range(_MOVES):
        feeds = {}
        for name, values in probe.feeds(number).items():
            if values.dtype.kind == "f":
                way = np.where(rng.random(values.shape) < 0.5, -np.inf, np.inf)
                values = np.nextafter(values, way.astype(values.dtype), dtype=values.dtype)
                values = np.where(np.isfinite(values), values, probe.feeds(number)[name])
            feeds[name] = values
        try:
            other = np.asarray(own(feeds)[position]).astype(np.float64)
        except Exception:  # these feeds are refused: nothing is learnt
            continue
        with np.errstate(all="ignore"):
            step = np.where(_kind(a) != _kind(other), np.inf, np.abs(a - other))
        moved = np.maximum(moved, np.where(np.isnan(step), 0.0, step))
    return 8 * moved


def _shown(wrong: Array, right: Array, found: Array) -> str | None:
    """How many elements differ, with the first of them; None without any."""
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (f"{int(wrong.sum())} of {wrong.size} differ, as at {list(at)}: {found[at]} "
            f"for {right[at]}")  # fmt: skip
