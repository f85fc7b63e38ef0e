"""Arrays of tensors, and the names of their element types.

Everywhere, the type of a tensor has the name that numpy or ml_dtypes gives it ("float32",
"bfloat16").
"""

import math
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
MOST_ORDINARY = 2.0**16
"""Largest magnitude of the numbers of an ordinary request: samples and pixels of 16 bits."""
_CACHE_LINE_BYTES = 64
"""Also the size of an AVX-512 register. Unaligned tensors cost a few per cent."""
_OF_ORT = {"float": "float32", "double": "float64", "float8e8m0": "float8_e8m0fnu"}
"""Names of ONNX Runtime that are others in numpy and ml_dtypes."""


def numpy_type(name: str) -> np.dtype[Any]:
    """The type with this name: a type of numpy, or one that ml_dtypes adds to numpy."""
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # noqa: F401 - the import registers "bfloat16" and others with numpy

        return np.dtype(name)


def dtype_of_ort(name: str) -> str:
    """The name of a type from ONNX Runtime's name of the element type: "float" is "float32"."""
    return _OF_ORT.get(name, name)


def is_float(dtype: np.dtype[Any]) -> bool:
    """Whether a type is a float: a float of numpy, bfloat16, or a float8 of ml_dtypes."""
    return dtype.kind == "f" or (dtype.kind == "V" and "float" in dtype.name)


def is_ordinary(array: Any, most: float = MOST_ORDINARY) -> bool:
    """Whether no number of an array of floats is NaN, infinite or larger than ``most`` in
    magnitude; True for everything else. Takes some microseconds for an image."""
    if not isinstance(array, np.ndarray) or not array.size or not is_float(array.dtype):
        return True
    if array.dtype.itemsize < 4:  # NumPy is slow for 16 bits
        array = array.astype(np.float32)
    # A comparison with NaN is false, and the largest of NaN and a number is NaN.
    return float(array.max()) <= most and float(array.min()) >= -most


def is_finite(array: Any) -> bool:
    """Whether no number of an array of floats is NaN or infinite; True for everything else."""
    return is_ordinary(array, sys.float_info.max)


def limits_of(dtype: np.dtype[Any]) -> Any:
    """The limits of a type of floats, as ``numpy.finfo`` has them, also of a type of ml_dtypes."""
    import ml_dtypes

    return ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]


def address_of(array: Array) -> int:
    """The address of the first element. Quicker than ``array.ctypes.data``."""
    address: int = array.__array_interface__["data"][0]
    return address


def aligned_bytes(size: int) -> Array:
    """``size`` uninitialised bytes that start at a cache line."""
    return _from_a_line(np.empty(size + _CACHE_LINE_BYTES, np.uint8), size)


def _from_a_line(raw: Array, size: int) -> Array:
    start = -address_of(raw) % _CACHE_LINE_BYTES
    return raw[start : start + size]


def aligned(array: Array) -> Array:
    """``array`` in C order from a cache line on: itself, or a copy."""
    if array.flags.c_contiguous and address_of(array) % _CACHE_LINE_BYTES == 0:
        return array
    copy = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def aligned_zeros(shape: Sequence[int], dtype: Any = np.float32) -> Array:
    """Zeros that start at a cache line."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    # The system's own zeros: written once less.
    zeros: Array = _from_a_line(np.zeros(size + _CACHE_LINE_BYTES, np.uint8), size).view(dtype)
    return zeros.reshape(tuple(shape))


def joined_axes(target: Array, source: Array) -> tuple[int, list[tuple[int, int, int]]]:
    """Bytes that are contiguous in both views, and the axes around them, outermost first.

    An axis is its size and its stride in both views. Axes of size 1 are left out. Two axes are
    merged if the outer one follows the inner one without a gap in both views.
    """
    run = target.itemsize
    axes: list[tuple[int, int, int]] = []
    for axis in zip(target.shape[::-1], target.strides[::-1], source.strides[::-1], strict=True):
        size, *strides = axis
        if size == 1:
            continue
        if not axes and strides == [run, run]:
            run *= size
        elif axes and strides == [axes[-1][0] * stride for stride in axes[-1][1:]]:
            axes[-1] = (axes[-1][0] * size, *axes[-1][1:])
        else:
            axes.append(axis)
    return run, axes[::-1]
