"""Weights of ONNX models in the cache: an entry has the protobuf with the small ones, shared files
have the large ones.

An external tensor of a stored protobuf has the name of its weight in place of a file.
"""

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir

from coexec.arrays import Array
from coexec.cache import Cache
from coexec.errors import StoreError

LARGE_BYTES = 1024
"""Weights from this size on lie beside a model; smaller ones are a part of the protobuf, where
optimizers and engines read their values."""


class Stored(ir.Tensor):  # type: ignore[type-arg]  # it is no generic class at run time
    """A weight that is mapped from the cache."""

    __slots__ = ("stored_as",)

    def __init__(self, array: Array, dtype: ir.DataType, name: str, stored_as: str) -> None:
        super().__init__(array, dtype, name=name)
        self.stored_as = stored_as
        """Its name in the cache."""


def is_large(tensor: ir.TensorProtocol) -> bool:
    """Whether a weight is stored by itself: it has whole bytes, and many."""
    return (
        tensor.dtype != ir.DataType.STRING  # has no size in bytes
        and tensor.nbytes >= LARGE_BYTES
        and tensor.dtype.bitwidth >= 8
    )


def stored_tensor(proto: onnx.TensorProto, weights: Mapping[str, Array]) -> ir.TensorProtocol:
    """The tensor of ``proto``. An external one comes from ``weights``, by its name in the cache.

    Raises:
        StoreError, ValueError: the weight is not among these, or has another size.
    """
    if proto.data_location != onnx.TensorProto.EXTERNAL:
        return ir.serde.deserialize_tensor(proto)
    name = location_of(proto)
    if name not in weights:
        raise StoreError(f"weight {proto.name!r} refers to {name!r}, which its entry does not list")
    dtype = ir.DataType(proto.data_type)
    array = weights[name].view(dtype.numpy()).reshape(tuple(proto.dims))
    return Stored(array, dtype, proto.name, name)


def location_of(proto: onnx.TensorProto) -> str:
    """The location of an external tensor's data."""
    return next((item.value for item in proto.external_data if item.key == "location"), "")


def share(
    cache: Cache, tensors: Mapping[str, ir.TensorProtocol]
) -> dict[str, ir.TensorProtocol] | None:
    """``tensors``, the large ones stored in the cache and mapped from it; None if that is full."""
    large = {name: tensor for name, tensor in tensors.items() if is_large(tensor)}
    names = cache.weights.add(tensor.numpy() for tensor in large.values())
    if names is None:
        return None
    try:
        arrays = cache.weights.fetch(names)
    except StoreError:
        return None
    shared = dict(tensors)
    for (name, tensor), stored_as in zip(large.items(), names, strict=True):
        array = arrays[stored_as].view(tensor.dtype.numpy()).reshape(tensor.shape.numpy())
        shared[name] = Stored(array, tensor.dtype, name, stored_as)
    return shared


def detached(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """``tensor``, read into memory if it lies in a file."""
    if isinstance(tensor, ir.ExternalTensor):
        return ir.Tensor(np.array(tensor.numpy()), tensor.dtype, name=tensor.name)
    return tensor


def written(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """``tensor`` as a protobuf holds it: a stored one by its name in the cache."""
    if not isinstance(tensor, Stored):
        return detached(tensor)
    return ir.ExternalTensor(
        tensor.stored_as,
        0,
        tensor.nbytes,
        tensor.dtype,
        shape=ir.Shape(tensor.shape.numpy()),
        name=tensor.name or "",
    )
