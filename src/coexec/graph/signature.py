"""Text that is equal for tasks of equal cost, and its form without sizes."""

from collections.abc import Callable, Mapping, Sequence

from coexec.graph.graph import Operator, Scalars, Task, Tensor

_BY_VALUE = frozenset({"Pad", "Slice", "Resize", "Upsample", "Reshape", "Expand", "Tile", "Split",
                       "Squeeze", "Unsqueeze", "TopK", "OneHot", "Range",
                       "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"})  # fmt: skip
"""Operators whose constant inputs decide shapes; those of other operators are weights."""
_SIZES = {
    "Expand": (1,),
    "OneHot": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (3,),
    "Slice": (1, 2),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
}
"""Positions of the constant inputs that are sizes or positions, by operator: they change with the
sizes of the activations. The others (scales, axes, pads, steps) are the same at every size."""


def signature_of(operators: Sequence[Operator], tensors: Mapping[str, Tensor]) -> str:
    """Text that is equal for tasks of equal cost; names of tensors do not appear in it."""
    return _text(operators, tensors, _shape_text, {})


def family_of(task: Task, tensors: Mapping[str, Tensor]) -> str:
    """Text that is equal for equal tasks at different sizes of their activations.

    It contains operators, attributes, shapes of weights and all types. Of an activation's shape it
    contains only the rank and which sizes are 1, because an operator broadcasts along these. An
    opaque task is equal only to itself: its signature does not show which of its numbers are sizes.
    """
    if task.opaque:
        return task.signature
    return _text(task.operators, tensors, _sizeless_text, _SIZES)


def _text(
    operators: Sequence[Operator],
    tensors: Mapping[str, Tensor],
    shape_text: Callable[[Tensor], str],
    left_out: Mapping[str, tuple[int, ...]],
) -> str:
    """Text of ``operators``. ``left_out``: positions of constant inputs that do not count, by
    operator."""
    inside = {name for op in operators for name in op.outputs}
    parts = []
    for op in operators:
        shapes = [
            "_" if not n else "." if n in inside else shape_text(tensors[n]) for n in op.inputs
        ]
        settings = [f"{k}={_plain(v)}" for k, v in sorted(op.attributes.items())]
        settings += [
            f"{i}:{_plain(v)}"
            for i, v in sorted(op.constants.items())
            if op.op_type in _BY_VALUE and i not in left_out.get(op.op_type, ())
        ]
        kind = f"{op.domain}.{op.op_type}" if op.domain else op.op_type
        parts.append(f"{kind}({', '.join(shapes)}){{{', '.join(settings)}}}")
    outputs = [shape_text(tensors[n]) for n in operators[-1].outputs if n in tensors]
    return " + ".join(parts) + " -> " + ", ".join(outputs)


def _plain(value: Scalars) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _shape_text(tensor: Tensor) -> str:
    return _typed("x".join(map(str, tensor.shape)), tensor)


def _sizeless_text(tensor: Tensor) -> str:
    if tensor.constant:
        return _shape_text(tensor)
    return _typed("x".join("1" if size == 1 else "?" for size in tensor.shape), tensor)


def _typed(shape: str, tensor: Tensor) -> str:
    return shape if tensor.dtype == "float32" else f"{shape}:{tensor.dtype}"
