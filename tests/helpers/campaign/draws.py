"""Random values for the generators of operators: numbers, shapes and rare values."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np

from tests.helpers.campaign.probe import Array, Given

_T = TypeVar("_T")
FLOATS = ("float32", "float32", "float32", "float32", "float16", "float64")

_LARGE = {"float16": 3e4, "float32": 6e4, "float64": 6e4}
_SUMMED = {"float16": 60.0, "float32": 6e4, "float64": 6e4}
"""Large values whose squares can be added in any order without overflow."""
_DENORMAL = {"float16": 3e-7, "float32": 1e-40, "float64": 1e-310}
_TINY = {"float16": 1e-4, "float32": 1e-30, "float64": 1e-250}


class Draws:
    """Random choices of one case."""

    def __init__(self, seed: int, index: int) -> None:
        self.rng = np.random.default_rng((seed, index))

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def pick(self, choices: Sequence[_T]) -> _T:
        return choices[int(self.rng.integers(len(choices)))]

    def number(self, low: int, high: int) -> int:
        """A number from ``low`` to ``high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def ints(self, count: int, low: int, high: int) -> list[int]:
        return [self.number(low, high) for _ in range(count)]

    def opset(self, *versions: int) -> int:
        return self.pick(versions)

    def size(self) -> int:
        """The size of an axis: often 1, odd, or just above a block of channels; rarely 0."""
        kind = self.rng.random()
        if kind < 0.02:
            return 0
        if kind < 0.2:
            return 1
        return self.pick((2, 3, 3, 4, 5, 7)) if kind < 0.9 else self.pick((8, 9, 16, 17))

    def shape(self, low: int = 0, high: int = 5) -> tuple[int, ...]:
        return tuple(self.size() for _ in range(self.number(low, high)))

    def axis(self, rank: int, beyond: float = 0.01) -> int:
        """An axis of a tensor of this rank, counted from either end; rarely an invalid axis."""
        if self.chance(beyond):
            return self.pick((rank, -rank - 1))
        return self.number(-rank, rank - 1) if rank else 0

    def axes(self, rank: int) -> list[int]:
        """Different axes, in any order and with either sign."""
        if not rank:
            return []
        some = self.rng.permutation(rank)[: self.number(1, rank)]
        return [int(a) - (rank if self.chance(0.3) else 0) for a in some]

    def thinner(self, shape: Sequence[int]) -> tuple[int, ...]:
        """A shape that can be broadcast to ``shape``; rarely one that cannot."""
        if self.chance(0.01):
            return (*shape, 3)
        thin = tuple(1 if self.chance(0.3) else size for size in shape)
        return thin[self.number(0, len(thin)) if self.chance(0.4) else 0 :]

    def floats(self) -> str:
        return self.pick(FLOATS)

    def data(self, shape: Sequence[int], dtype: str = "float32", *, summed: bool = False) -> Given:
        """Activations: usual values, then two sets of rare ones.

        Args:
            summed: whether the operator adds products of the values. Then the values are limited,
                because an overflow would depend on the order of additions.
        """
        if dtype == "bool":
            return Given((self.rng.random(tuple(shape)) < 0.5,))
        if dtype not in _LARGE:
            return Given((self._integers(shape, dtype, 10), self._integers(shape, dtype, None)))
        kinds = ("edges", "small", "large")
        first = self._ordinary(shape, dtype)
        rare = [self._rare(shape, dtype, self.pick(kinds), summed) for _ in range(2)]
        return Given((first, self._rare(shape, dtype, "edges", summed), *rare[:1]))

    def weights(self, shape: Sequence[int], dtype: str = "float32") -> Given:
        """A constant with ordinary values."""
        return Given((self.data(shape, dtype).first,), constant=True)

    def either(self, shape: Sequence[int], dtype: str = "float32", summed: bool = False) -> Given:
        """An activation or a constant."""
        if self.chance(0.4):
            return self.weights(shape, dtype)
        return self.data(shape, dtype, summed=summed)

    def parameter(self, values: Any, dtype: str = "int64") -> Given:
        """A value that determines shapes: usually a constant, sometimes an input."""
        return Given((np.array(values, dtype),), constant=self.chance(0.93))

    def constant(self, values: Any, dtype: str = "int64") -> Given:
        return Given((np.array(values, dtype),), constant=True)

    def indices(self, shape: Sequence[int], limit: int, beyond: float = 0.25) -> Given:
        """Indices of an axis with ``limit`` elements; sometimes one index is out of range."""
        dtype = self.pick(("int64", "int32"))
        good = self.rng.integers(-limit, max(limit, 1 - limit), tuple(shape)).astype(dtype)
        if self.chance(0.4):
            return Given((good,), constant=True)
        if not self.chance(beyond) or not good.size:
            return Given((good,))
        bad = good.copy()
        far = [limit, -limit - 1, 2**31 - 1, -(2**31)] + [2**32, -(2**63)] * (dtype == "int64")
        bad.flat[self.number(0, bad.size - 1)] = self.pick(far)
        return Given((good, bad))

    def _ordinary(self, shape: Sequence[int], dtype: str) -> Array:
        return np.asarray(self.rng.standard_normal(tuple(shape)) * 2).astype(dtype)

    def _integers(self, shape: Sequence[int], dtype: str, most: int | None) -> Array:
        info = np.iinfo(dtype)
        if most is not None:
            low = max(info.min, -most)
            return self.rng.integers(low, most, tuple(shape), dtype, endpoint=True)
        numbers = self.rng.integers(info.min, info.max, tuple(shape), dtype, endpoint=True)
        ends = np.array([info.min, info.max, info.min + 1, 0], dtype)
        where = self.rng.random(tuple(shape)) < 0.5
        return np.where(where, self.rng.choice(ends, tuple(shape)), numbers).astype(dtype)

    def _rare(self, shape: Sequence[int], dtype: str, kind: str, summed: bool) -> Array:
        """Usual values, some of which are replaced by rare ones."""
        ordinary = self._ordinary(shape, dtype)
        large = (_SUMMED if summed else _LARGE)[dtype]
        values = {
            "edges": [-1.0, 1.0, -0.0, 0.0],
            "small": [_DENORMAL[dtype], -_DENORMAL[dtype], _TINY[dtype], -0.0, 0.0],
            "large": [large, -large, large / 7, 0.5, -0.5, 1.5, 2.5],
        }[kind]
        if kind == "small":
            ordinary = (ordinary * _TINY[dtype]).astype(dtype)
        if kind == "edges" and self.chance(0.5):
            values = [self.pick(values)]
        where = self.rng.random(tuple(shape)) < self.pick((0.1, 0.4, 1.0))
        return np.where(where, self.rng.choice(values, tuple(shape)), ordinary).astype(dtype)
