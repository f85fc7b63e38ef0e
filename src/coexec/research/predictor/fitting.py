"""Unit times from measured seconds: least relative error, none below zero."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

_Floats = npt.NDArray[np.float64]

_ROUNDS = 30
_NEAR = 0.03
"""Relative errors below this count alike, because repeated measurements differ by as much."""


def fitted(terms: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Seconds of one unit of each term.

    Minimises the sum of the absolute relative errors, by least squares that are weighted again in
    each round: a few disturbed samples do not move the result.

    Args:
        terms: numbers of units of each sample; none below 0.
        seconds: measured seconds of each sample, above 0.
    """
    rows = np.array(terms, np.float64) / np.array(seconds, np.float64)[:, None]
    scale = np.maximum(rows.max(axis=0), np.finfo(np.float64).tiny)
    rows = rows / scale
    weights = np.ones(len(rows))
    units = np.zeros(rows.shape[1])
    for _ in range(_ROUNDS):
        root = np.sqrt(weights)
        units = non_negative(rows * root[:, None], root)
        weights = 1.0 / np.maximum(np.abs(rows @ units - 1.0), _NEAR)
    return [float(unit) for unit in units / scale]


def non_negative(rows: _Floats, targets: _Floats) -> _Floats:
    """The x >= 0 with the least ``|rows @ x - wanted|``.

    The active-set method of Lawson and Hanson, "Solving Least Squares Problems" (1974), chapter 23.
    """
    count = rows.shape[1]
    free = np.zeros(count, bool)
    x = np.zeros(count)
    small = 1e-10 * float(np.abs(rows.T @ targets).max(initial=0.0))
    for _ in range(3 * count):
        slope = rows.T @ (targets - rows @ x)
        slope[free] = -np.inf
        if free.all() or slope.max() <= small:
            break
        free[int(slope.argmax())] = True
        while True:
            solved = np.zeros(count)
            solved[free] = np.linalg.lstsq(rows[:, free], targets, rcond=None)[0]
            if not free.any() or solved[free].min() > 0.0:
                x = solved
                break
            # Go only to the point where the first unit reaches zero, and fix that unit at zero.
            falling = free & (solved <= 0.0)
            share = float((x[falling] / (x[falling] - solved[falling])).min(initial=1.0))
            x = x + share * (solved - x)
            free &= x > 1e-12 * x.max(initial=0.0)
            x[~free] = 0.0
    return x
