"""Values as ONNX Runtime takes and returns them, also of types that numpy does not have.

Imports no ONNX, because a start from the cache needs this module.
"""

import ctypes
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort

from coexec.arrays import Array, numpy_type

__all__ = ["FOREIGN", "has_foreign", "ort_value", "run_session"]

FOREIGN: Mapping[str, int] = {
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 20,
}
"""Types that ONNX Runtime reads and writes in memory of the caller, but does not return as arrays:
the number in ONNX by the name in ml_dtypes."""
_BY_TYPE = {f"tensor({name.replace('_', '')})": name for name in FOREIGN}


def ort_value(array: Array) -> ort.OrtValue:
    """``array`` as ONNX Runtime takes it, without a copy."""
    kind = FOREIGN.get(array.dtype.name)
    if kind is None:
        return ort.OrtValue.ortvalue_from_numpy(array)
    return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, kind)


def has_foreign(session: ort.InferenceSession) -> bool:
    """Whether inputs or outputs of a session have a type that is not numpy's own."""
    return any(v.type in _BY_TYPE for v in (*session.get_inputs(), *session.get_outputs()))


def run_session(
    session: ort.InferenceSession, names: Sequence[str], feeds: Mapping[str, Any]
) -> list[Any]:
    """The outputs ``names``: arrays; lists, dicts and None for those that are no tensors.

    Raises:
        Exception: any error of ONNX Runtime.
    """
    if not has_foreign(session):
        outputs: list[Any] = session.run(list(names), dict(feeds))
        return outputs
    ort_feeds = {name: ort_value(np.require(a, requirements="C")) for name, a in feeds.items()}
    return [_array(value) for value in session.run_with_ort_values(list(names), ort_feeds)]


def _array(value: ort.OrtValue) -> Array:
    """A copy of a result of ONNX Runtime."""
    if value.data_type() not in _BY_TYPE:
        return np.array(value.numpy())
    dtype = numpy_type(_BY_TYPE[value.data_type()])
    shape = value.shape()
    size_bytes = int(np.prod(shape)) * dtype.itemsize
    content = ctypes.string_at(value.data_ptr(), size_bytes) if size_bytes else b""
    return np.frombuffer(bytearray(content), dtype).reshape(shape)
