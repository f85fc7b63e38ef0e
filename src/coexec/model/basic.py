"""A model after ONNX Runtime's own basic optimization, which its sessions apply first.

Constants are computed, operators that change nothing are gone, and paddings and normalizations are
in the convolutions before them
(https://onnxruntime.ai/docs/performance/model-optimizations/graph-optimizations.html). So the
results are those of ONNX Runtime's session by construction. Weights that stay are not copied.
"""

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from coexec.arrays import Array
from coexec.model.nondeterministic import MERGING, random_nodes
from coexec.model.reference_session import own_content, refusals
from coexec.model.stored import LARGE_BYTES
from coexec.model.types import hide_maps

_BYTE_BITS = 8
_BY_ROWS = "MatMulAddFusion"
"""It puts a Reshape before and behind every product with more than two axes."""
_LEFT_OUT = "optimization.disable_specified_optimizers"


def optimised(model: ir.Model, *, merge: bool) -> ir.Model:
    """A new model that computes the same as ``model``; it has no shapes of inner values.

    Args:
        merge: merge nodes that compute the same. A Pad that several convolutions share then stays
            apart from them.

    Raises:
        ModelError: ONNX Runtime does not run the model.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4  # every error is raised too
    left_out = [_BY_ROWS, MERGING] if not merge or random_nodes(model) else [_BY_ROWS]
    options.add_session_config_entry(_LEFT_OUT, ";".join(left_out))
    weights = _KeptWeights(model)
    with refusals():
        content, borrowed = own_content(model, options)
        compiler = ort.ModelCompiler(
            options,
            content,
            graph_optimization_level=ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
            get_initializer_location_func=weights.location,
        )
        written = onnx.load_model_from_string(compiler.compile_to_bytes())
    del borrowed  # the compiler used their memory
    return _read(written, model, weights.kept)


class _KeptWeights:
    """The weights that the optimized model keeps beside the serialized one."""

    def __init__(self, model: ir.Model) -> None:
        self._given = {n: value.const_value for n, value in model.graph.initializers.items()}
        self.kept: dict[str, Any] = {}
        """Tensors by name."""

    def location(self, name: str, value: ort.OrtValue, file: Any) -> Any:
        """Where the written model looks for a weight; None: it has the numbers itself.

        Args:
            file: where the given model has it; None: in memory.
        """
        if value.data_type() == "tensor(string)":
            return self._keep_texts(name, value)
        size_bytes = value.tensor_size_in_bytes()
        if size_bytes < LARGE_BYTES or name in self.kept:
            return None  # bodies may have equal names
        tensor = self._given.get(name)
        if file is None and (tensor is None or not _is_unchanged(tensor, value)):
            dtype = ir.DataType(value.element_type())
            if dtype.bitwidth < _BYTE_BITS:
                return None
            numbers = _bytes_of(value).view(dtype.numpy()).reshape(value.shape())
            tensor = ir.Tensor(numbers.copy(), dtype=dtype, name=name)
        if tensor is not None:
            self.kept[name] = tensor
        return ort.OrtExternalInitializerInfo("weights", 0, size_bytes)

    def _keep_texts(self, name: str, value: ort.OrtValue) -> None:
        """Keep texts, which ONNX Runtime 1.32 writes as the memory that holds them."""
        content = [each.encode() for each in value.numpy().reshape(-1)]
        new = ir.StringTensor(content, shape=ir.Shape(value.shape()), name=name)
        if list(self.kept.setdefault(name, new).string_data()) != content:
            raise ValueError(f"two tensors with other texts have the name {name!r}")


def _bytes_of(value: ort.OrtValue) -> Array:
    """The memory of a tensor, which is valid as long as ``value``."""
    size_bytes = value.tensor_size_in_bytes()
    memory: Array = np.ctypeslib.as_array(
        (ctypes.c_uint8 * size_bytes).from_address(value.data_ptr())
    )
    return memory


def _is_unchanged(tensor: ir.TensorProtocol, value: ort.OrtValue) -> bool:
    """Whether a weight is still as it was given: the optimizer transposes weights in place."""
    if tuple(tensor.shape.numpy()) != tuple(value.shape()):
        return False
    if tensor.dtype.bitwidth < _BYTE_BITS:
        return tensor.tobytes() == _bytes_of(value).tobytes()
    return np.array_equal(
        np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8), _bytes_of(value)
    )


def _read(
    written: onnx.ModelProto, model: ir.Model, weights: Mapping[str, ir.TensorProtocol]
) -> ir.Model:
    """The model that ONNX Runtime has written, with its weights, and the metadata of ``model``."""
    new = ir.from_proto(hide_maps(written))
    for graph in new.graphs():
        for name, value in graph.initializers.items():
            tensor = value.const_value
            if isinstance(tensor, ir.ExternalTensor | ir.StringTensor):
                value.const_value = weights[name]
    new.metadata_props.update(model.metadata_props)
    return new
