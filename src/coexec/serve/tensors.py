"""Conversion of tensors from and to the Open Inference Protocol: as JSON numbers, or as bytes.

The bytes have the form of the binary tensor data extension: little-endian and row-major. An element
of BYTES is its length in 4 bytes and its content. The content is UTF-8 here: ONNX has no other
texts.
"""

import math
import struct
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from coexec.arrays import Array, is_float
from coexec.errors import InputError

MOST_TEXTS = 2**20
"""Most elements of a tensor of texts. In memory, each takes about 100 bytes more than in the
request."""

_DATATYPES = {
    "bool": "BOOL", "float16": "FP16", "bfloat16": "BF16", "float32": "FP32", "float64": "FP64",
    "object": "BYTES",
    **{f"{sign}int{bits}": f"{sign}int{bits}".upper() for sign in ("", "u")
       for bits in (8, 16, 32, 64)},
}  # fmt: skip
_LENGTH = struct.Struct("<I")
KINDS = {
    bool: "true or false", int: "an integer", float: "a number with a fraction", str: "a string",
    type(None): "null", list: "an array", dict: "an object",
}  # fmt: skip
"""Words for the types of JSON."""


def datatype_of(dtype: np.dtype[Any]) -> str | None:
    """The protocol's name of an element type, such as "FP32"; None if the protocol has no name."""
    return _DATATYPES.get(dtype.name)


def from_binary(name: str, dtype: np.dtype[Any], shape: Sequence[int], data: memoryview) -> Array:
    """The tensor in ``data``, on the same memory if that is aligned.

    Raises:
        InputError: the bytes do not fit such a tensor.
    """
    if dtype.kind == "O":
        return _text_array(_read_texts(name, math.prod(shape), data), shape)
    size_bytes = math.prod(shape) * dtype.itemsize
    if len(data) != size_bytes:
        raise InputError(
            f"input {name!r}: {datatype_of(dtype)} of shape {list(shape)} takes "
            f"{size_bytes} bytes, and its binary data has {len(data)}"
        )
    if dtype.kind == "b" and len(data) and np.frombuffer(data, np.uint8).max() > 1:
        raise InputError(
            f"input {name!r}: an element of BOOL is a byte of 0 or 1, and its binary "
            f"data has others"
        )
    # numpy itself has no bfloat16 and cannot read it from a buffer. So integers are read, and then
    # viewed as the type.
    stored = np.dtype(f"<u{dtype.itemsize}")
    tensor = np.frombuffer(data, stored).astype(stored.newbyteorder("="), copy=False).view(dtype)
    return (tensor if tensor.flags.aligned else tensor.copy()).reshape(shape)


def _read_texts(name: str, count: int, data: memoryview) -> list[str]:
    _check_count(name, count)
    texts = []
    at = 0
    for index in range(count):
        begin = at + _LENGTH.size
        at = begin + _LENGTH.unpack_from(data, at)[0] if begin <= len(data) else begin
        if at > len(data):
            raise InputError(
                f"input {name!r}: its binary data of {len(data)} bytes ends within "
                f"element {index} of {count}"
            )
        try:
            texts.append(str(data[begin:at], "utf-8"))
        except UnicodeDecodeError:
            raise InputError(
                f"input {name!r}: element {index} is not UTF-8, and texts of ONNX models are"
            ) from None
    if at != len(data):
        raise InputError(
            f"input {name!r}: its {count} elements take {at} bytes, and its binary "
            f"data has {len(data)}"
        )
    return texts


def _check_count(name: str, count: int) -> None:
    if count > MOST_TEXTS:
        raise InputError(
            f"input {name!r} has {count} elements; a tensor of BYTES may have {MOST_TEXTS}"
        )


def from_json(name: str, dtype: np.dtype[Any], shape: Sequence[int], data: Any) -> Array:
    """The tensor of a JSON array, which is flat or nested as ``shape``.

    Values of another type are refused: an integer is also a float, but "1", true and null are no
    numbers, and 1.5 is no integer.

    Raises:
        InputError: the array does not fit such a tensor.
    """
    values = _flat(name, shape, data)
    datatype = datatype_of(dtype)
    allowed: set[type] = {str} if dtype.kind == "O" else {bool} if dtype.kind == "b" else {int}
    if is_float(dtype):
        allowed = {int, float}
    if other := set(map(type, values)) - allowed:
        raise InputError(
            f"input {name!r} is {datatype}, and its data holds "
            f"{', '.join(sorted(KINDS[kind] for kind in other))}"
        )
    if dtype.kind == "O":
        return _text_array(_encodable(name, values), shape)
    try:
        if not is_float(dtype):
            return np.array(values, dtype).reshape(shape)
        with np.errstate(over="ignore"):  # a number out of range becomes infinite, and is refused
            tensor = np.array(values, np.float64).astype(dtype).reshape(shape)
    except OverflowError:
        tensor = None
    if tensor is None or not np.isfinite(tensor).all():
        raise InputError(f"input {name!r}: its data holds a number beyond the range of {datatype}")
    return tensor


def _flat(name: str, shape: Sequence[int], data: Any) -> list[Any]:
    """The elements of ``data``, which is flat or nested, as a flat list."""
    if not isinstance(data, list):
        raise InputError(f"input {name!r}: its data is {KINDS[type(data)]}; give an array")
    if not data or not isinstance(data[0], list):
        if len(data) != math.prod(shape):
            raise InputError(
                f"input {name!r}: shape {list(shape)} has {math.prod(shape)} "
                f"elements, and its data has {len(data)}"
            )
        return data
    level: list[Any] = [data]
    for axis, size in enumerate(shape):
        if set(map(type, level)) - {list} or set(map(len, level)) - {size}:
            raise InputError(
                f"input {name!r}: its data is nested in another way than shape "
                f"{list(shape)} says for axis {axis}"
            )
        level = list(chain.from_iterable(level))
    return level


def _encodable(name: str, texts: list[str]) -> list[str]:
    """``texts``, checked for halves of surrogate pairs, which JSON allows and UTF-8 does not."""
    _check_count(name, len(texts))
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise InputError(
            f"input {name!r}: its data holds a half of a surrogate pair, which is no character"
        ) from None
    return texts


def _text_array(texts: list[str], shape: Sequence[int]) -> Array:
    return np.array(texts, object).reshape(shape)


def to_binary(array: Array) -> bytes:
    """The binary data of a tensor."""
    if array.dtype.kind == "O":
        encoded = [str(text).encode() for text in array.flat]
        return b"".join(chain.from_iterable((_LENGTH.pack(len(e)), e) for e in encoded))
    little = np.dtype(f"<u{array.dtype.itemsize}")
    return (
        np.ascontiguousarray(array)
        .reshape(-1)
        .view(little.newbyteorder("="))
        .astype(little, copy=False)
        .tobytes()
    )


def to_json(name: str, array: Array) -> Array | list[Any]:
    """The elements of a tensor as a flat array of numbers, or a flat list of texts.

    Raises:
        InputError: the tensor has NaN or infinity, which JSON does not have.
    """
    if array.dtype.kind == "O":
        texts: list[Any] = array.reshape(-1).tolist()
        return texts
    if is_float(array.dtype):
        if not np.isfinite(array).all():
            raise InputError(
                f"output {name!r} holds NaN or infinity, which JSON does not have; "
                f"ask for it with the parameter binary_data"
            )
        if array.dtype.itemsize < 4:
            array = array.astype(np.float32)  # which has all their values
    native = array.dtype.newbyteorder("=")
    return np.ascontiguousarray(array.reshape(-1), native)
