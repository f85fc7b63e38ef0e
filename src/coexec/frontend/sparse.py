"""Sparse weights made dense: no engine computes with them as they are."""

import math

import numpy as np
import onnx
from onnx import numpy_helper

from coexec.errors import ModelError

__all__ = ["with_dense_weights"]

_MOST_BYTES = 2**31
"""Of a weight once it is dense: what a serialized model can hold."""


def with_dense_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto``, or a copy of it in which every sparse initializer is a dense one.

    Raises:
        ModelError: its indices are damaged, lie in an external file, or it is too large.
    """
    if not proto.graph.sparse_initializer:
        return proto
    dense = onnx.ModelProto()
    dense.CopyFrom(proto)
    dense.graph.initializer.extend(_dense(sparse) for sparse in proto.graph.sparse_initializer)
    del dense.graph.sparse_initializer[:]
    return dense


def _dense(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    name, shape = sparse.values.name, tuple(sparse.dims)
    what = f"the sparse weight {name!r} of shape {list(shape)}"
    if onnx.TensorProto.EXTERNAL in (sparse.values.data_location, sparse.indices.data_location):
        raise ModelError(f"{what} lies in an external file; save the model with it inside")
    try:
        values = numpy_helper.to_array(sparse.values)
        indices = numpy_helper.to_array(sparse.indices)
        size_bytes = math.prod(shape) * values.itemsize
        if min(shape, default=1) < 0 or size_bytes > _MOST_BYTES:
            raise ValueError(f"dense, it would have {size_bytes} bytes, {_MOST_BYTES} are possible")
        if indices.size and (indices.min() < 0 or len(indices) != len(values)):
            raise ValueError(f"{len(indices)} indices for {len(values)} values, or negative ones")
        array = np.zeros(shape, values.dtype)
        if indices.ndim == 1:
            array.reshape(-1)[indices] = values
        else:
            array[tuple(indices.T)] = values
    except Exception as error:
        raise ModelError(f"{what} cannot be made dense: {error}; export it as a dense "
                         f"weight") from None  # fmt: skip
    return numpy_helper.from_array(array, name)
