"""A random test case of one operator."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True)
class Case:
    """A node. Each input is the shape of an activation, an array (constant) or None (absent)."""

    op_type: str
    inputs: tuple[Any, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    dtypes: dict[int, str] = field(default_factory=dict)
    axes: tuple[int, ...] | None = None
    """Axes that must be splittable if they are longer than 1; None: no requirement."""


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def random(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


def dims(draw: Draw, rank: int, low: int = 1, high: int = 6) -> tuple[int, ...]:
    return tuple(draw(st.integers(low, high)) for _ in range(rank))
