"""The arrays that hold tensors, and names of their types.

A tensor's type is named as numpy and ml_dtypes name it ("float32", "bfloat16"), everywhere.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "dtype_of_ort", "is_float", "numpy_type"]

Array = npt.NDArray[Any]


def numpy_type(name: str) -> np.dtype[Any]:
    """The type of this name: numpy's own, or one that ml_dtypes adds to it."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # noqa: F401 - numpy knows "bfloat16" and its like from then on

        return np.dtype(name)


def dtype_of_ort(name: str) -> str:
    """The type's name, of what ONNX Runtime calls an element: "float" is "float32"."""
    return {"float": "float32", "double": "float64"}.get(name, name)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a type has fractions: numpy's floats, bfloat16 and the float8s of ml_dtypes."""
    return np.issubdtype(dtype, np.floating) or "float" in dtype.name
