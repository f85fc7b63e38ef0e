"""Parameters of operators, and reasons why kernels do not support an operator."""

from collections.abc import Collection, Mapping

from coexec.graph.graph import Operator, Tensor

FLOAT32 = frozenset({"float32"})

FLOATS = FLOAT32 | {"float64"}

ALL = FLOATS | {
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
}  # fmt: skip
"""All types that a tensor on the device may have."""

Numbers = tuple[int, ...] | tuple[float, ...]


def numbers(op: Operator, name: str, position: int) -> Numbers | None:
    """The attribute ``name`` of old opsets, or the constant input at ``position``.

    Empty if there is neither, None if the input is computed.
    """
    value = op.attributes.get(name, op.constants.get(position))
    if value is None:
        return None if position < len(op.inputs) and op.inputs[position] else ()
    return value if isinstance(value, tuple) else (value,)  # type: ignore[return-value]


def wrong_type(op: Operator, tensors: Mapping[str, Tensor], allowed: Collection[str]) -> str | None:
    """Why the type of the first input is not ``allowed``, or None."""
    dtype = tensors[op.inputs[0]].dtype
    names = " and ".join(sorted(allowed))
    return None if dtype in allowed else f"{op.op_type} of {dtype}: only of {names}"


def computed(op: Operator, index: int, what: str) -> str | None:
    """The reason if a small input that decides shapes is not constant, or None."""
    exists = len(op.inputs) > index and op.inputs[index]
    if exists and index not in op.constants:
        return f"the {what} of {op.op_type} is computed, not constant"
    return None
