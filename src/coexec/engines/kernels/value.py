"""Tensors with their layout in memory, and the names of types and constants in OpenCL C."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["CTYPES", "Value", "ceil_div", "literal", "row_major"]

CTYPES: Mapping[str, str] = {
    "float32": "float", "float64": "double", "bool": "uchar",
    "int8": "char", "int16": "short", "int32": "int", "int64": "long",
    "uint8": "uchar", "uint16": "ushort", "uint32": "uint", "uint64": "ulong",
}  # fmt: skip
"""OpenCL's scalar type of each dtype that tensors on the device may have."""


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def literal(value: float, dtype: str = "float32") -> str:
    """A constant in OpenCL C, exact to the last bit."""
    if dtype not in ("float32", "float64"):
        return f"({CTYPES[dtype]})({int(value)}{'L' if dtype == 'int64' else ''})"
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    if dtype == "float64":
        return f"({float(value)!r})"
    return f"({float(np.float32(value))!r}f)"


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor with its layout in memory.

    It is row-major as in ONNX if ``block`` is 0. Else it has four axes and is stored as [N, ceil(C
    / block), H, W, block]; with a block of 4 this is "PHWC4". Lanes past C have arbitrary values,
    also NaN and infinity. They must not be used, not even multiplied by zero.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    block: int = 0
    half: bool = False
    """Whether it is stored as 16-bit floats."""

    @property
    def items(self) -> int:
        """Number of stored scalars, padding included."""
        if not self.block:
            return math.prod(self.shape)
        n, _, h, w = self.shape
        return n * self.slices * h * w * self.block

    @property
    def size_bytes(self) -> int:
        return self.items * (2 if self.half else np.dtype(self.dtype).itemsize)

    @property
    def slices(self) -> int:
        """Number of blocks of channels."""
        return ceil_div(self.shape[1], self.block)

    @property
    def ctype(self) -> str:
        """Type of a stored scalar."""
        return "half" if self.half else CTYPES[self.dtype]


def row_major(name: str, shape: Sequence[int | str]) -> str:
    """The macro ``AT_name`` of a row-major tensor. Sizes are numbers or variables."""
    if not shape:
        return f"#define AT_{name}() 0"
    names = [f"i{axis}" for axis in range(len(shape))]
    text = f"({names[0]})"
    for axis, size in list(zip(names, shape, strict=True))[1:]:
        text = f"({text} * {size} + ({axis}))"
    return f"#define AT_{name}({', '.join(names)}) {text}"
