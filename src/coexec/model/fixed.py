"""Shapes and values of inputs that the user fixes before a model is planned."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from coexec.errors import ModelError, UsageError, first_line
from coexec.model.declared import UNNAMED, require_fit, sizes_by_name
from coexec.model.digest import Shapes
from coexec.model.main_memory import require_memory
from coexec.model.types import type_of

_IMAGE = (1, 3, 224, 224)
"""Suggested for an image: batch, channels, height, width. Most networks for images take it."""
CHANNELS = frozenset({1, 3, 4})
"""Numbers of channels of images."""


def fix(
    model: ir.Model,
    shapes: Shapes,
    values: Mapping[str, Any] | None = None,
    *,
    all_known: bool = True,
) -> None:
    """Give the model's inputs fixed shapes, and make constants of those with fixed values.

    A dimension is unknown if it is a size below zero, "?", an empty text, no text or a name. A name
    stands for one size in all inputs: ``shapes={"N": 1}`` fixes it, or the shape of one input that
    has it. Where an input and a dimension have the same name, the input is meant; one size is the
    shape of an input with one axis. A declared size of 0 stays if no other is given, because ONNX
    Runtime accepts empty tensors there.

    Args:
        values: scalars or nested lists by input, which are cast to its type and broadcast to its
            shape. The input is no input of the model any more. A default that a feed could replace
            may be given another value in the same way.
        all_known: refuse inputs that keep an unknown dimension.

    Raises:
        UsageError: no such input or dimension; a shape or value that contradicts the model's own.
        ModelError: an input keeps an unknown dimension.
    """
    values = values or {}
    inputs = {v.name: v for v in model.graph.inputs if v.name}
    own = {name: dims_of(value) for name, value in inputs.items()}
    require_fit(shapes, own)
    for name in values:
        if name not in inputs and name not in model.graph.initializers:
            listed = ", ".join(map(repr, inputs))
            raise UsageError(
                f"--value names the input {name!r}, but the model's inputs are {listed}"
            )
    for name, value in inputs.items():
        if (shape := shapes.get(name)) is not None:
            value.shape = ir.Shape((shape,) if isinstance(shape, int) else tuple(shape))
    sizes: Mapping[Any, int] = sizes_by_name(shapes, own)
    for value in inputs.values():
        if value.shape is not None:
            value.shape = ir.Shape([sizes.get(d, d) for d in dims_of(value) or ()])
    for name, fixed_value in values.items():
        _set_value(model, name, fixed_value)
    if all_known:
        _require_static(model)


def dims_of(value: ir.Value) -> list[int | str | None] | None:
    """The dimensions of a value: sizes, names of symbolic dimensions, None for those without a
    name. None instead of the list: not even the rank is known."""
    if value.shape is None:
        return None
    dims = [d if isinstance(d, int) else d.value for d in value.shape]
    return [None if d in UNNAMED else d for d in dims]


def _set_value(model: ir.Model, name: str, content: Any) -> None:
    """Make the input ``name`` a constant, or give a weight another value."""
    weights = model.graph.initializers
    value = weights.get(name) or next(v for v in model.graph.inputs if v.name == name)
    try:
        tensor = _constant(np.asarray(content), value)
    except ModelError:
        raise
    except (ValueError, TypeError, OverflowError) as error:
        text = f"{str(content)[:80]}{'...' * (len(str(content)) > 80)}"
        raise UsageError(
            f"--value {name}={text} is no value of the input {name!r}, which is {value.type} of "
            f"shape {value.shape}: {first_line(error)}"
        ) from None
    value.shape, value.const_value = ir.Shape(tensor.shape.numpy()), tensor
    if name not in weights:
        model.graph.inputs.remove(value)
        weights[name] = value


def _constant(array: np.ndarray[Any, Any], value: ir.Value) -> ir.TensorProtocol:
    """``array`` with the type and shape of ``value``.

    Raises:
        ModelError: the input has no type, or is too large.
        ValueError: they do not fit.
    """
    dtype, name = value.dtype, value.name or ""
    if dtype is None or dtype == ir.DataType.UNDEFINED:
        raise ModelError(
            f"the type of input {name!r} is unknown; export the model with type information"
        )
    shape = _broadcast(array.shape, dims_of(value))
    require_memory(f"the value of {name!r}", math.prod(shape) * array.itemsize)
    if dtype == ir.DataType.STRING:
        texts = [str(text).encode() for text in np.broadcast_to(array, shape).reshape(-1)]
        return ir.StringTensor(texts, shape=ir.Shape(shape), name=name)
    filled = np.array(np.broadcast_to(_cast(array, dtype.numpy()), shape))
    return ir.Tensor(filled, dtype=dtype, name=name)


def _broadcast(shape: tuple[int, ...], dims: list[int | str | None] | None) -> tuple[int, ...]:
    """The shape of an input with the known sizes ``dims`` for a value of the shape ``shape``."""
    if dims is None:
        return shape
    if len(shape) > len(dims):
        raise ValueError(f"it has {len(shape)} axes")
    padded = (1,) * (len(dims) - len(shape)) + shape
    own = tuple(d if isinstance(d, int) else p for d, p in zip(dims, padded, strict=True))
    return np.broadcast_shapes(own, shape) if own else own


def _cast(array: np.ndarray[Any, Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """``array`` as ``dtype``; floats are rounded.

    Raises:
        ValueError: other kinds of numbers would change.
    """
    if array.dtype.kind not in "biuf":
        raise ValueError("it is no number")
    cast = array.astype(dtype)
    whole = dtype.kind in "biu"
    if whole and not np.array_equal(cast.astype(np.float64), array.astype(np.float64)):
        raise ValueError(f"{dtype.name} has no such number")
    return cast


def _require_static(model: ir.Model) -> None:
    """Raise ModelError with a suggestion if an input keeps an unknown dimension."""
    unknown = open_tensors(model)
    if not unknown:
        return
    sizes: dict[str, int] = {}
    examples = {v.name or "": _example(v, sizes) for v in unknown}
    options = [f"--shape {n if n.isprintable() else repr(n)}={e}" for n, e in examples.items()]
    value, symbols = unknown[0], Counter(d for v in unknown for d in dims_of(v) or ())
    named = next((d for d in symbols if isinstance(d, str)), None)
    by_name = ""
    if named is not None and named.isprintable():
        by_name = f"; or a dimension by its name, as in --shape {named}={sizes[named]}"
    raise ModelError(
        f"input {value.name!r} has the dynamic shape {value.shape}; coexec plans for fixed shapes: "
        f"add {' '.join(options)} (or shapes={{{value.name!r}: ...}}){by_name}"
    )


def open_tensors(model: ir.Model) -> list[ir.Value]:
    """The inputs with an unknown dimension.

    Sequences, maps and optional values are not among them: each call has its own sizes.
    """
    tensors = [v for v in model.graph.inputs if (type_of(v) or "tensor(").startswith("tensor(")]
    return [v for v in tensors if v.shape is None or not v.shape.is_static()]


def _example(value: ir.Value, sizes: dict[str, int]) -> str:
    """A shape that can most likely run: 1x3x224x224 for images, elsewhere 1 for unknown sizes.

    Images are inputs of four axes. Their channels are on the last axis if its size is 1, 3 or 4 and
    the size of the second axis is not. ``sizes`` of symbolic dimensions are the same in all inputs.
    """
    dims = dims_of(value)
    if dims is None:
        return ",".join(map(str, _IMAGE))
    likely: Sequence[int] = [1] * len(dims)
    if len(dims) == len(_IMAGE):
        last = dims[3] in CHANNELS and dims[1] not in CHANNELS
        batch, channels, *image = _IMAGE
        likely = (batch, *image, channels) if last else _IMAGE
    shape = []
    for size, other in zip(dims, likely, strict=True):
        shape.append(sizes.setdefault(size, other) if isinstance(size, str) else size)
        if size is None:
            shape[-1] = other
    return ",".join(map(str, shape))
