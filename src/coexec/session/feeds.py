"""Conversions between NumPy arrays and other forms of feeds and outputs, without copies."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnxruntime import OrtValue

from coexec.arrays import Array
from coexec.session.signature import NodeArg

_DTYPES = {
    f"tensor({ort_name})": np.dtype(numpy_name)
    for ort_name, numpy_name in (
        ("float", "float32"),
        ("double", "float64"),
        ("float16", "float16"),
        ("bool", "bool"),
        *((f"{sign}int{bits}",) * 2 for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
}
_BY_NUMBER = [
    None, "float32", "uint8", "int8", "uint16", "int16", "int32", "int64", None, "bool",
    "float16", "float64", "uint32", "uint64",
]  # fmt: skip
"""NumPy's types by the numbers of ``onnx.TensorProto.DataType``."""


def dtype_of(kind: Any) -> "np.dtype[Any] | None":
    """NumPy's type of a tensor's elements; None if NumPy has no such type.

    Args:
        kind: ONNX Runtime's name of a tensor type ("tensor(float)"), the number of ONNX's element
            type, or an argument of ``numpy.dtype``.
    """
    if isinstance(kind, str) and kind in _DTYPES:
        return _DTYPES[kind]
    if isinstance(kind, int):
        name = _BY_NUMBER[kind] if 0 <= kind < len(_BY_NUMBER) else None
        return None if name is None else np.dtype(name)
    try:
        dtype: np.dtype[Any] = np.dtype(kind)
        return dtype
    except TypeError:
        return None


def array_of(value: OrtValue) -> Array | None:
    """The memory of an ``OrtValue`` as an array; None unless it is a tensor in main memory."""
    if value.device_name() != "cpu" or not value.is_tensor():
        return None
    dtype = _DTYPES.get(value.data_type())
    return None if dtype is None else array_at(value.data_ptr(), value.shape(), dtype, value)


def array_at(
    address: int, shape: Sequence[int], dtype: "np.dtype[Any]", keeper: Any = None
) -> Array:
    """The memory at ``address`` as a row-major array. The array keeps ``keeper`` alive."""
    if 0 in shape:
        return np.empty(tuple(shape), dtype)
    return np.asarray(_ArrayInterface(address, shape, dtype, keeper))


class _ArrayInterface:
    """Memory as NumPy's array interface describes it."""

    def __init__(
        self, address: int, shape: Sequence[int], dtype: "np.dtype[Any]", keeper: Any
    ) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (address, False),
            "shape": tuple(shape),
            "typestr": dtype.str,
        }
        self._keeper = keeper


def as_ortvalue(array: Array) -> OrtValue | None:
    """An ``OrtValue`` on the memory of an array; None for a type of elements that is not in
    `_DTYPES`."""
    if array.dtype not in _DTYPES.values():
        return None
    return OrtValue.ortvalue_from_numpy(
        array if array.flags.c_contiguous else np.ascontiguousarray(array)
    )


def shape_of(fed: Any) -> tuple[int, ...]:
    """The shape of a feed.

    Raises:
        ValueError, TypeError, RuntimeError: it has no shape.
    """
    if isinstance(fed, np.ndarray):
        shape: tuple[int, ...] = fed.shape
        return shape
    if isinstance(fed, OrtValue):
        return tuple(fed.shape())
    own_shape = getattr(fed, "shape", None)
    return np.shape(as_array(fed, None)) if own_shape is None else tuple(own_shape)


def as_array(fed: Any, dtype: Any) -> Any:
    """A feed as an array on the same memory, if that is main memory.

    Lists and Python's numbers become arrays of ``dtype``, as in ONNX Runtime. Any other object is
    returned unchanged: `check_feeds` then raises an error that describes the problem.
    """
    if isinstance(fed, np.ndarray):
        return fed
    try:
        if isinstance(fed, OrtValue):
            array = array_of(fed)
            return fed if array is None else array
        if hasattr(fed, "__array__"):
            return np.asarray(fed)
        if hasattr(fed, "__dlpack__"):
            return np.from_dlpack(fed)
        return np.asarray(fed, dtype)
    except Exception:  # the object's own conversion may raise any exception
        return fed


_THEIRS = (np.ndarray, OrtValue, list, dict, str, bytes, type(None))


def for_ort(feeds: Any, inputs: Sequence[NodeArg]) -> Any:
    """Feeds as ONNX Runtime takes them: types that only coexec takes become arrays; all other feeds
    are unchanged."""
    if not isinstance(feeds, Mapping) or all(isinstance(v, _THEIRS) for v in feeds.values()):
        return feeds
    dtypes = {arg.name: _DTYPES.get(arg.type) for arg in inputs}
    return {
        name: fed
        if isinstance(fed, _THEIRS) or dtypes.get(name) is None
        else as_array(fed, dtypes[name])
        for name, fed in feeds.items()
    }
