"""Reasons why kernels do not support an operator, shared by several kernels."""

from collections.abc import Collection, Mapping

from coexec.graph.graph import Operator, Tensor

__all__ = ["INTEGERS", "NUMBERS", "computed", "wrong_type"]

INTEGERS = frozenset({"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"})

NUMBERS = INTEGERS | {"float32", "float64"}


def wrong_type(
    op: Operator, tensors: Mapping[str, Tensor], allowed: Collection[str] = ("float32",)
) -> str | None:
    """Why the type of the first input is not ``allowed``, or None. The default is "float32"."""
    dtype = tensors[op.inputs[0]].dtype
    if dtype in allowed:
        return None
    only = (
        "float32"
        if set(allowed) == {"float32"}
        else "numbers"
        if "int64" in allowed
        else (" and ".join(sorted(allowed)))
    )
    return f"{op.op_type} of {dtype}: only of {only}"


def computed(op: Operator, index: int, what: str) -> str | None:
    """The reason if a small input that decides shapes is not constant, or None."""
    exists = len(op.inputs) > index and op.inputs[index]
    if exists and index not in op.constants:
        return f"the {what} of {op.op_type} is computed, not constant"
    return None
