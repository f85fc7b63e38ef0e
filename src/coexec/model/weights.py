"""Checks that a weight has as many bytes as its shape and type need. Reads no value."""

import math
from typing import TYPE_CHECKING

from coexec.errors import ModelError
from coexec.model.folders import ModelFolders
from coexec.model.messages import TensorProto

if TYPE_CHECKING:
    import onnx

__all__ = ["require_values"]

_KIND = TensorProto
_TYPES = frozenset(_KIND.DataType.values()) - {_KIND.UNDEFINED}
_EXTERNAL, _STRING = _KIND.EXTERNAL, _KIND.STRING

_STORED: dict[int, tuple[int, str, float]] = {
    _KIND.FLOAT: (32, "float_data", 1),
    _KIND.COMPLEX64: (64, "float_data", 2),
    _KIND.DOUBLE: (64, "double_data", 1),
    _KIND.COMPLEX128: (128, "double_data", 2),
    _KIND.INT64: (64, "int64_data", 1),
    _KIND.UINT64: (64, "uint64_data", 1),
    _KIND.UINT32: (32, "uint64_data", 1),
    _KIND.INT32: (32, "int32_data", 1),
    **dict.fromkeys((_KIND.INT16, _KIND.UINT16, _KIND.FLOAT16, _KIND.BFLOAT16),
                    (16, "int32_data", 1)),
    **dict.fromkeys((_KIND.INT8, _KIND.UINT8, _KIND.BOOL, _KIND.FLOAT8E4M3FN,
                     _KIND.FLOAT8E4M3FNUZ, _KIND.FLOAT8E5M2, _KIND.FLOAT8E5M2FNUZ),
                    (8, "int32_data", 1)),
    **dict.fromkeys((_KIND.INT4, _KIND.UINT4, _KIND.FLOAT4E2M1), (4, "int32_data", 1 / 2)),
}  # fmt: skip
"""By type: bits of a value, the field for values that are not raw, and entries of that field for a
value, as in onnx.proto. Later types are left to the engine."""


def require_values(
    tensor: "onnx.TensorProto", raw_bytes: int | None, folders: ModelFolders | None
) -> None:
    """Raise ModelError unless ``tensor`` has all of its values and no more.

    Args:
        raw_bytes: length of the raw data if it was left out of ``tensor``, else None.
        folders: where external values may lie; None: nowhere.
    """
    dims, kind = tuple(tensor.dims), tensor.data_type
    if min(dims, default=0) < 0 or kind not in _TYPES:
        raise ModelError(
            f"{_named(tensor)} and type {kind} does not hold what it should; "
            f"export the model or download it again"
        )
    count = math.prod(dims)
    bits, field, entries = _STORED.get(kind, (0, "", 0))
    if tensor.data_location == _EXTERNAL:
        _require_file(tensor, (count * bits + 7) // 8, folders)
    elif kind == _STRING:
        _require_count(tensor, len(tensor.string_data), count, "texts")
    elif raw_bytes is not None or tensor.HasField("raw_data"):
        have = len(tensor.raw_data) if raw_bytes is None else raw_bytes
        if bits:
            _require_count(tensor, have, (count * bits + 7) // 8, "bytes")
    elif bits:
        _require_count(tensor, len(getattr(tensor, field)), math.ceil(count * entries), "values")


def _named(tensor: "onnx.TensorProto") -> str:
    return f"weight {tensor.name!r} of shape {list(tensor.dims)}".replace(", ", ",")


def _require_count(tensor: "onnx.TensorProto", have: int, need: int, unit: str) -> None:
    if have != need:
        raise ModelError(
            f"{_named(tensor)} does not hold what it should: {have} {unit}, {need} "
            f"are needed; export the model or download it again"
        )


def _require_file(
    tensor: "onnx.TensorProto", size_bytes: int, folders: ModelFolders | None
) -> None:
    entries = {item.key: item.value for item in tensor.external_data}
    if folders is None:
        raise ModelError(
            f"weight {tensor.name!r} lies in the external file {entries.get('location', '')!r}, "
            f"but the model was given as an object without a folder; load it from its path instead"
        )
    folders.require(tensor.name, entries, size_bytes)
