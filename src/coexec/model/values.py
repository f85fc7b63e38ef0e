"""Values as ONNX Runtime takes and returns them, also of types that numpy does not have.

Imports no ONNX, because a start from the cache needs this module.
"""

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnxruntime as ort

from coexec.arrays import Array, numpy_type

FOREIGN: Mapping[str, int] = {
    "bfloat16": 16,
    "float8_e4m3fn": 17,
    "float8_e4m3fnuz": 18,
    "float8_e5m2": 19,
    "float8_e5m2fnuz": 20,
}
"""Types that ONNX Runtime reads and writes in memory of the caller, but does not return as arrays:
the number in ONNX by the name in ml_dtypes."""
_PACKED: Mapping[str, tuple[int, int]] = {
    "uint4": (21, 4),
    "int4": (22, 4),
    "uint2": (25, 2),
    "int2": (26, 2),
    "float8_e8m0fnu": (24, 8),
}
"""Further such types, which coexec does not move between tasks: number in ONNX and bits of an
element. ml_dtypes has a byte for each element. In ONNX Runtime the elements of a byte begin at its
lowest bits."""
_BY_TYPE = {
    f"tensor({name.replace('_', '').removesuffix('fnu')})": name for name in (*FOREIGN, *_PACKED)
}


def ort_value(array: Array) -> ort.OrtValue:
    """``array`` as ONNX Runtime takes it, without a copy if the elements take whole bytes."""
    name = array.dtype.name
    if name in _PACKED:
        kind, bits = _PACKED[name]
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(_packed(array, bits), kind)
    if name in FOREIGN:
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, FOREIGN[name])
    return ort.OrtValue.ortvalue_from_numpy(array)


def _packed(array: Array, bits: int) -> Array:
    """Bytes with the elements at their begin, in the shape of ``array``, which is the shape that
    ONNX Runtime sees."""
    shifts = _shifts(bits)
    codes = np.zeros((-(-array.size // shifts.size), shifts.size), np.uint8)
    codes.reshape(-1)[: array.size] = array.view(np.uint8).ravel() & (1 << bits) - 1
    joined = np.bitwise_or.reduce(codes << shifts, 1)
    space = np.zeros(array.shape, np.uint8)
    space.reshape(-1)[: joined.size] = joined
    return space


def _unpacked(content: Array, bits: int, size: int) -> Array:
    """The elements of packed bytes, each in the lowest bits of a byte."""
    codes: Array = content[:, None] >> _shifts(bits) & (1 << bits) - 1
    return codes.reshape(-1)[:size]


def _shifts(bits: int) -> Array:
    """The lowest bit of each element of a byte."""
    return np.arange(0, 8, bits).astype(np.uint8)


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


def bound_run(session: ort.InferenceSession, feeds: Mapping[str, Any]) -> Callable[[], Any]:
    """A function that runs a session on these inputs, without checks of its own that would add to
    a measured time."""
    if has_foreign(session):
        return partial(run_session, session, [o.name for o in session.get_outputs()], feeds)
    return partial(session.run, None, dict(feeds))


def _array(value: ort.OrtValue) -> Array:
    """A copy of a result of ONNX Runtime."""
    if value.data_type() not in _BY_TYPE:
        return np.array(value.numpy())
    name, shape = _BY_TYPE[value.data_type()], value.shape()
    dtype, size = numpy_type(name), math.prod(shape)
    bits = _PACKED[name][1] if name in _PACKED else 8 * dtype.itemsize
    size_bytes = -(-size * bits // 8)
    content = np.frombuffer(
        ctypes.string_at(value.data_ptr(), size_bytes) if size else b"", np.uint8
    )
    codes = _unpacked(content, bits, size) if name in _PACKED else content.copy()
    return codes.view(dtype).reshape(shape)
