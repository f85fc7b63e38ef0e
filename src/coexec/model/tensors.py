"""The tensors of a model for the graph of tasks: static shapes, numpy's types.

A value is *plain* if it is a tensor whose shape is known and whose elements are numbers of numpy or
ml_dtypes that take whole bytes. Everything else is *opaque*: it cannot be allocated ahead, cut or
moved, only passed from one operator to another inside of ONNX Runtime.
"""

from collections.abc import Collection, Iterable

import onnx
import onnx_ir as ir

from coexec.arrays import numpy_type
from coexec.errors import ModelError
from coexec.graph.graph import Tensor
from coexec.model.reference_session import is_plain
from coexec.model.shape_mismatch import UnfitError
from coexec.model.types import type_of, type_proto


def tensors_of(model: ir.Model, read: Collection[ir.Value]) -> Iterable[Tensor]:
    """Inputs, weights, and every result that is ``read``.

    Raises:
        ModelError: a weight has no values.
    """
    for value in model.graph.inputs:
        yield tensor_of(value)
    for value in model.graph.initializers.values():
        yield _weight(value)
    for node in model.graph:
        for value in node.outputs:
            if value.name and value in read:
                yield tensor_of(value)


def _weight(value: ir.Value) -> Tensor:
    tensor = value.const_value
    if tensor is None:
        raise ModelError(f"weight {value.name!r} has no values; export the model again")
    return Tensor(value.name or "", tuple(tensor.shape.numpy()), _name_of(tensor.dtype), True)


def tensor_of(value: ir.Value) -> Tensor:
    """An input or result as a tensor of the graph."""
    static = value.shape is not None and value.shape.is_static()
    shape = tuple(value.shape.numpy()) if value.shape is not None and static else ()
    if min(shape, default=0) < 0:
        raise UnfitError("the model has an impossible shape", f"{value.name!r} would be {shape}")
    if why_opaque(value):
        return Tensor(value.name or "", shape, type_of(value), opaque=True)
    assert value.dtype is not None  # else it would be opaque
    return Tensor(value.name or "", shape, _name_of(value.dtype))


def value_info(tensor: Tensor) -> onnx.ValueInfoProto:
    """The declaration of a value in a model; for an opaque value, its type without a shape."""
    if tensor.opaque:
        return onnx.ValueInfoProto(name=tensor.name, type=type_proto(tensor.dtype))
    kind = ir.DataType.from_numpy(numpy_type(tensor.dtype))
    return onnx.helper.make_tensor_value_info(tensor.name, int(kind), tensor.shape)


def why_opaque(value: ir.Value) -> str:
    """Why ``value`` cannot be planned, in plain words; "" if it is plain."""
    kind = type_of(value)
    name = (
        f"{value.name!r}"
        if value.producer() is None
        else (f"{value.name!r} ({_operator(value.producer())})")
    )
    if not kind:
        return f"the type of {name} is not known before the model runs"
    if not kind.startswith("tensor("):
        return f"{name} is no tensor but {kind}"
    if value.dtype is None or not is_plain(value.dtype):
        return f"{name} is {kind}, which cannot be moved between tasks"
    if value.shape is None or not value.shape.is_static():
        return f"the shape of {name} depends on data"
    return ""


def _operator(node: ir.Node | None) -> str:
    assert node is not None
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _name_of(dtype: ir.DataType) -> str:
    return "string" if dtype == ir.DataType.STRING else dtype.numpy().name
