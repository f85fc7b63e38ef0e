"""Reasons why kernels do not support an operator, shared by several kernels."""

from collections.abc import Collection, Mapping

from coexec.graph.graph import Operator, Tensor

__all__ = [
    "ALL",
    "FLOAT32",
    "FLOATS",
    "INTEGERS",
    "NUMBERS",
    "SHORT_NUMBERS",
    "computed",
    "type_names",
    "wrong_type",
]

FLOAT32 = frozenset({"float32"})

FLOATS = FLOAT32 | {"float64"}

INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})

NUMBERS = INTEGERS | FLOATS

SHORT_NUMBERS = NUMBERS - {"int64", "uint64"}
"""Floats, and integers whose sums 64-bit floats hold exactly."""

ALL = NUMBERS | {"bool"}
"""All types that a tensor on the device may have."""


def type_names(types: Collection[str]) -> str:
    """Some of the sets of types above in words."""
    if types == SHORT_NUMBERS:
        return "floats and integers of up to 32 bits"
    return "numbers" if "int64" in types else " and ".join(sorted(types))


def wrong_type(op: Operator, tensors: Mapping[str, Tensor], allowed: Collection[str]) -> str | None:
    """Why the type of the first input is not ``allowed``, or None."""
    dtype = tensors[op.inputs[0]].dtype
    return None if dtype in allowed else f"{op.op_type} of {dtype}: only of {type_names(allowed)}"


def computed(op: Operator, index: int, what: str) -> str | None:
    """The reason if a small input that decides shapes is not constant, or None."""
    exists = len(op.inputs) > index and op.inputs[index]
    if exists and index not in op.constants:
        return f"the {what} of {op.op_type} is computed, not constant"
    return None
