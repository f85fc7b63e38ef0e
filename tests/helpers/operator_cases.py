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
    shape: tuple[int, ...] | None = None
    """Of the result, where ONNX does not infer it."""


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def random(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape, dtype=np.float32)


CHANNELS = st.sampled_from([1, 2, 3, 16, 20])
"""Tensors in few channels lie row-major; others in blocks of channels that are full, or not."""


def images(draw: Draw) -> tuple[int, ...]:
    """The shape of a batch of images. There are few, because kernels are compiled for each."""
    return draw(st.integers(1, 2)), draw(CHANNELS), *draw(st.sampled_from([(2, 3), (5, 4)]))


def shapes(draw: Draw, low: int = 1, high: int = 4) -> tuple[int, ...]:
    """Shapes of a rank from ``low`` to ``high``; some rows are longer than a vector."""
    rank = draw(st.integers(low, high))
    if rank == 4:
        return images(draw)
    return (*dims(draw, rank - 1), draw(st.sampled_from([1, 3, 5, 40]))) if rank else ()


def dims(draw: Draw, rank: int, low: int = 1, high: int = 6) -> tuple[int, ...]:
    return tuple(draw(st.integers(low, high)) for _ in range(rank))
