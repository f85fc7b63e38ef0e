"""Sparse weights made dense: no engine computes with sparse ones."""

import math
from collections.abc import Iterator

import numpy as np
import onnx
from onnx import numpy_helper

from coexec.errors import ModelError

_MOST_BYTES = 2**31
"""Most bytes of a dense weight: a serialized model can hold no more."""


def with_dense_weights(proto: onnx.ModelProto) -> onnx.ModelProto:
    """``proto``, or a copy of it in which every sparse initializer and constant is a dense one.

    Raises:
        ModelError: a weight has damaged indices, lies in an external file, or is too large.
    """
    if not any(_is_sparse(graph) for graph in _graphs(proto.graph)):
        return proto
    dense = onnx.ModelProto()
    dense.CopyFrom(proto)
    for graph in _graphs(dense.graph):
        graph.initializer.extend(_dense(sparse) for sparse in graph.sparse_initializer)
        del graph.sparse_initializer[:]
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("sparse_tensor"):
                    tensor = _dense(attribute.sparse_tensor)
                    attribute.CopyFrom(onnx.helper.make_attribute("value", tensor))
    return dense


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """``graph`` and the bodies in it, at any depth."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for body in [attribute.g] if attribute.HasField("g") else attribute.graphs:
                yield from _graphs(body)


def _is_sparse(graph: onnx.GraphProto) -> bool:
    attributes = (attribute for node in graph.node for attribute in node.attribute)
    return bool(graph.sparse_initializer) or any(a.HasField("sparse_tensor") for a in attributes)


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
        raise ModelError(
            f"{what} cannot be made dense: {error}; export it as a dense weight"
        ) from None
    return numpy_helper.from_array(array, name)
