"""The tensors of a model as the graph of tasks knows them: static shapes, numpy's types."""

import sys
from collections.abc import Iterable

import onnx_ir as ir

from coexec.errors import ModelError
from coexec.frontend.plain import is_plain
from coexec.frontend.unfit import UnfitError
from coexec.ir.graph import Tensor

__all__ = ["label", "require_tensor", "tensors_of"]


def tensors_of(model: ir.Model) -> Iterable[Tensor]:
    """Inputs, weights, and every result that something reads.

    Raises:
        ModelError: a shape or type is unknown, or one that tensors between tasks cannot have.
    """
    for value in model.graph.inputs:
        yield _tensor(value)
    for value in model.graph.initializers.values():
        yield _weight(value)
    for node in model.graph:
        for value in node.outputs:
            if value.name and (value.uses() or value.is_graph_output()):
                yield _tensor(value)


def _weight(value: ir.Value) -> Tensor:
    tensor = value.const_value
    if tensor is None:
        raise ModelError(f"weight {value.name!r} has no values; export the model again")
    return Tensor(value.name or "", tuple(tensor.shape.numpy()), _name_of(tensor.dtype), True)


def _tensor(value: ir.Value) -> Tensor:
    require_tensor(value)
    shape, dtype = value.shape, value.dtype
    if dtype is None or dtype == ir.DataType.UNDEFINED:
        raise ModelError(f"the type of {_at(value)} is unknown; export the model with type "
                         f"information")  # fmt: skip
    if shape is None or not shape.is_static():
        raise ModelError(
            f"the shape of {_at(value)} is not known before the model runs (found "
            f"{'none' if shape is None else shape}), though those of the inputs are; coexec plans "
            f"with fixed shapes: export the model without operators whose result's shape depends "
            f"on values"
        )
    if min(shape.numpy(), default=0) < 0:
        raise UnfitError("the model has an impossible shape", f"{_at(value)} would be {shape}")
    if not is_plain(dtype):
        raise ModelError(
            f"{_at(value)} has the type {dtype.name}, which tensors between devices cannot have; "
            f"coexec runs numbers and booleans of numpy's types: leave that part to ONNX Runtime"
        )
    tensor = Tensor(value.name or "", tuple(shape.numpy()), _name_of(dtype))
    if tensor.size_bytes > sys.maxsize:
        raise ModelError(f"{_at(value)} of shape {shape} has {tensor.size_bytes:.1e} bytes, more "
                         f"than memory has addresses; give the model smaller shapes")  # fmt: skip
    return tensor


def require_tensor(value: ir.Value) -> None:
    """Raise ModelError if ``value`` is a sequence, a map or optional."""
    if value.type is not None and not isinstance(value.type, ir.TensorType):
        raise ModelError(
            f"{_at(value)} is no tensor but {value.type}; coexec passes tensors between tasks: "
            f"export the model without sequences, maps and optional values"
        )


def _name_of(dtype: ir.DataType) -> str:
    return "string" if dtype == ir.DataType.STRING else dtype.numpy().name


def _at(value: ir.Value) -> str:
    node = value.producer()
    if node is not None:
        return f"the output {value.name!r} of {label(node)}"
    return f"{'input' if value.is_graph_input() else 'tensor'} {value.name!r}"


def label(node: ir.Node) -> str:
    """A node as messages call it."""
    return f"{node.op_type} node {node.name!r}"
