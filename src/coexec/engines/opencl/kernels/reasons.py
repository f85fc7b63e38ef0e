"""Why kernels cannot take an operator, in words that several of them use."""

from collections.abc import Collection, Mapping

from coexec.ir.graph import Operator, Tensor

__all__ = ["INTEGERS", "NUMBERS", "computed", "wrong_type"]

INTEGERS = frozenset(
    {"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"}
)  # fmt: skip

NUMBERS = INTEGERS | {"float32", "float64"}


def wrong_type(
    op: Operator, tensors: Mapping[str, Tensor], allowed: Collection[str] = ("float32",)
) -> str | None:
    """The first input must be of an ``allowed`` type, "float32" if nothing else is said."""
    dtype = tensors[op.inputs[0]].dtype
    if dtype in allowed:
        return None
    only = "float32" if set(allowed) == {"float32"} else "numbers" if "int64" in allowed else (
        " and ".join(sorted(allowed)))  # fmt: skip
    return f"{op.op_type} of {dtype}: only of {only}"


def computed(op: Operator, index: int, what: str) -> str | None:
    """A small input that decides shapes must be constant."""
    given = len(op.inputs) > index and op.inputs[index]
    if given and index not in op.constants:
        return f"the {what} of {op.op_type} is computed, not constant"
    return None
