"""Arrays of tensors, and the names of their element types.

Everywhere, the type of a tensor has the name that numpy or ml_dtypes gives it ("float32",
"bfloat16").
"""

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Array", "dtype_of_ort", "is_float", "numpy_type"]

Array = npt.NDArray[Any]


def numpy_type(name: str) -> np.dtype[Any]:
    """The type with this name: a type of numpy, or one that ml_dtypes adds to numpy."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # noqa: F401 - the import registers "bfloat16" and others with numpy

        return np.dtype(name)


def dtype_of_ort(name: str) -> str:
    """The name of a type from ONNX Runtime's name of the element type: "float" is "float32"."""
    return {"float": "float32", "double": "float64"}.get(name, name)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a type is a float: a float of numpy, bfloat16, or a float8 of ml_dtypes."""
    return np.issubdtype(dtype, np.floating) or "float" in dtype.name
