"""What a device compiles: a small ONNX model whose weights lie beside it, not in it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coexec.ir.graph import Tensor
from coexec.ir.region import Region

__all__ = ["Array", "Gather", "GatheredBox", "Module", "dtype_of_ort", "is_float", "numpy_type"]

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Module:
    """A serialized ONNX ModelProto whose large initializers are external, and their values.

    The external locations in ``proto`` mean nothing; engines take the values from ``weights``,
    which are never copied (they may be mapped from a file).
    """

    proto: bytes
    weights: Mapping[str, Array]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    operators: tuple[str, ...] = ()
    """Types of its operators, as the engine runs them."""
    results: tuple[str, ...] = ()
    """By operator, the part of a tensor that it computes or helps to compute."""
    layouts: Mapping[str, int] = field(default_factory=dict)
    """Of those inputs and outputs that are not in the model's layout, by name: a layout of
    `coexec.frontend.dialect`."""
    stored: Mapping[str, tuple[str, int]] = field(default_factory=dict)
    """By weight, its name in the cache that it is mapped from, and where it begins there, in bytes.
    """


class GatheredBox(NamedTuple):
    """A box of a value, and where it goes. Channels count with those that fill the last block."""

    value: str
    taken: Region
    put: Region


@dataclass(frozen=True)
class Gather:
    """An input of a module that is put together from boxes of other values of the same layout."""

    layout: int
    """Of `coexec.frontend.dialect`."""
    boxes: tuple[GatheredBox, ...]


def numpy_type(name: str) -> np.dtype[Any]:
    """The type of `Tensor.dtype`: numpy's own, or one that ml_dtypes adds to it."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # noqa: F401 - numpy knows "bfloat16" and its like from then on

        return np.dtype(name)


def dtype_of_ort(name: str) -> str:
    """`Tensor.dtype` for what ONNX Runtime calls an element: "float" is "float32"."""
    return {"float": "float32", "double": "float64"}.get(name, name)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a type has fractions: numpy's floats, bfloat16 and the float8s of ml_dtypes."""
    return np.issubdtype(dtype, np.floating) or "float" in dtype.name
