"""What kernel files are written with: values, the text of one kernel, and how it is launched.

A kernel file holds text and numbers. It never sees OpenCL itself: it says what to run, over which
grid, with which tensors, and somebody else compiles, places and times it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal

import numpy as np

from coexec.devices.opencl.architecture import Architecture
from coexec.frontend.module import Array
from coexec.ir.graph import Operator, Tensor

__all__ = ["CTYPES", "Chooser", "Context", "Grid", "Launch", "Node", "Source", "Value", "Window",
           "ceil_div", "literal", "row_major"]  # fmt: skip

CTYPES: Mapping[str, str] = {
    "float32": "float", "float64": "double", "bool": "uchar",
    "int8": "char", "int16": "short", "int32": "int", "int64": "long",
    "uint8": "uchar", "uint16": "ushort", "uint32": "uint", "uint64": "ulong",
}  # fmt: skip
"""OpenCL's scalar type of each dtype that tensors on the device may have."""

Grid = tuple[int, int, int]


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
    """A tensor as kernels see it.

    Row-major as in ONNX if ``block`` is 0. Else it has four axes and lies as
    [N, ceil(C / block), H, W, block]: "PHWC4" with 4. Lanes past C hold arbitrary finite numbers
    that nobody may read as values.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    block: int = 0
    half: bool = False
    """Stored as 16-bit floats."""

    @property
    def items(self) -> int:
        """Scalars stored, padding included."""
        if not self.block:
            return math.prod(self.shape)
        n, _, h, w = self.shape
        return n * self.slices * h * w * self.block

    @property
    def size_bytes(self) -> int:
        return self.items * (2 if self.half else np.dtype(self.dtype).itemsize)

    @property
    def slices(self) -> int:
        """Blocks of channels."""
        return ceil_div(self.shape[1], self.block)

    @property
    def ctype(self) -> str:
        """Of a stored scalar."""
        return "half" if self.half else CTYPES[self.dtype]


@dataclass(frozen=True, slots=True)
class Node:
    """An operator with the element-wise operators that are computed with it."""

    operator: Operator
    chain: tuple[Operator, ...] = ()
    """In order; each reads the one before or an earlier one, and has an output of equal shape."""

    @property
    def output(self) -> str:
        """What it computes in the end. Operators with several outputs have no chain."""
        return (self.chain[-1] if self.chain else self.operator).outputs[0]

    @property
    def outputs(self) -> tuple[str, ...]:
        if self.chain:
            return (self.output,)
        return tuple(name for name in self.operator.outputs if name)

    @property
    def operators(self) -> tuple[Operator, ...]:
        return (self.operator, *self.chain)

    @property
    def inputs(self) -> tuple[str, ...]:
        """What it reads and does not compute, each once."""
        inside = {name for op in self.operators for name in op.outputs}
        names = (n for op in self.operators for n in op.inputs if n and n not in inside)
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class Window:
    """What kind of convolution a kernel is, for rules that depend on it."""

    kind: Literal["convolution", "depthwise"]
    edge: int
    """Of a square kernel; 0 if it is not square."""
    stride: int


@dataclass(frozen=True, eq=False)
class Launch:
    """One kernel with its arguments."""

    name: str
    source: str
    """OpenCL C, whole. Equal for launches that differ in their arguments only."""
    arguments: tuple["Value | Array", ...]
    """Tensors, which get an offset beside them, and constants."""
    written: frozenset[str]
    """Names of the tensors that it writes."""
    grid: Grid
    """Work items that are needed."""
    group: Grid | None
    """Fixed if the kernel depends on it; None: whoever launches it may choose."""
    window: Window | None = None


Chooser = Callable[[str, Mapping[str, Callable[[], list[Launch]]]], str]
"""Picks one of several named variants of a kernel; the first argument tells equal choices."""


@dataclass(eq=False)
class Context:
    """What a kernel file may ask while it makes its launches."""

    arch: Architecture
    tensors: Mapping[str, Tensor]
    constants: Mapping[str, Array]
    blocks: Mapping[str, int] = field(default_factory=dict)
    """By tensor, the block of its layout where it is not the usual one."""
    in_place: dict[str, frozenset[int]] = field(default_factory=dict)
    """By result of a Concat, the inputs that are computed where they belong."""
    chooser: "Chooser | None" = None
    """Picks one of several variants by measuring; None: the first is taken."""
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))
    """Of temporaries, also of contexts that are derived from this one."""

    def value(self, name: str) -> Value:
        """A tensor in the layout that it has on the device."""
        tensor = self.tensors[name]
        block = self.blocks.get(name, usual_block(tensor, self.arch))
        half = self.arch.half and tensor.dtype == "float32"
        return Value(name, tensor.shape, tensor.dtype, block, half)

    def constant(self, name: str) -> Array | None:
        """The values of a constant tensor; None for one that is computed."""
        return self.constants.get(name)

    def choose(self, key: str, variants: Mapping[str, Callable[[], list[Launch]]]) -> list[Launch]:
        """The launches of one of ``variants``, which are named, the most promising first.

        ``key`` is equal where the same choice is right: shapes and attributes, no names.
        """
        name = next(iter(variants))
        if self.chooser is not None and len(variants) > 1:
            name = self.chooser(key, variants)
        return variants[name]()

    def temporary(self, shape: Sequence[int], block: int = 0, half: bool = False) -> Value:
        """Memory for something between two launches of one node."""
        return Value(f"temporary {next(self._numbers)}", tuple(shape), "float32", block, half)


def usual_block(tensor: Tensor, arch: Architecture) -> int:
    """Images with more than a few channels lie in blocks of channels, all else is row-major.

    It follows from shape and type alone, so that segments agree on what they hand on.
    """
    image = len(tensor.shape) == 4 and tensor.dtype == "float32"
    return arch.block if image and 2 * tensor.shape[1] > arch.block else 0


class Source:
    """The text of one kernel and its arguments, written in step.

    For a tensor declared as ``x``, the text may use:

    * ``x``: a pointer to its stored scalars
    * ``AT_x(i, j, ...)``: the position of an element by its coordinates, in any layout
    * ``GET_x(position)``, ``PUT_x(position, value)``: one scalar
    * ``VEC_x(n, s, y, x)``: the position of a vector of channels of a blocked tensor
    * ``LOAD_x(position)``, ``STORE_x(position, vector)``: one vector
    """

    def __init__(self, name: str, arch: Architecture) -> None:
        self.name = name
        self.arch = arch
        self._defines: list[str] = []
        self._parameters: list[str] = []
        self._prelude: list[str] = []
        self._arguments: list[Value | Array] = []
        self._written: set[str] = set()
        self._body: list[str] = []

    def read(self, name: str, value: Value) -> None:
        """Declare a tensor that the kernel reads."""
        self._tensor(name, value, "const ")

    def write(self, name: str, value: Value) -> None:
        """Declare a tensor that the kernel writes."""
        self._tensor(name, value, "")
        self._written.add(value.name)

    def constant(self, name: str, array: Array, vector: int | None = None) -> None:
        """Declare a constant array; ``LOAD_x(i)`` reads its i-th vector (of the block's width)."""
        half = self.arch.half and array.dtype == np.float32
        stored = array.astype(np.float16) if half else array
        ctype = "half" if half else CTYPES[array.dtype.name]
        self._parameters.append(f"__global const {ctype}* restrict {name}")
        self._arguments.append(np.ascontiguousarray(stored))
        self._accessors(name, ctype, vector or self.arch.block, half)

    def lines(self, text: str) -> None:
        """Add to the body."""
        self._body.append(text)

    def define(self, text: str) -> None:
        """Add a macro or a function in front of the kernel."""
        self._defines.append(text)

    def launch(
        self, grid: Sequence[int], group: Grid | None = None, window: Window | None = None
    ) -> Launch:
        """The finished kernel over ``grid`` work items (filled up to three axes).

        Without a fixed group the grid may be rounded up: items outside return at once.
        """
        x, y, z = (*grid, 1, 1)[:3]
        sizes = (x, y, z)
        body = "\n".join(self._body)
        guard = "" if group else (
            f"  if (get_global_id(0) >= {sizes[0]} || get_global_id(1) >= {sizes[1]}"
            f" || get_global_id(2) >= {sizes[2]}) return;\n"
        )  # fmt: skip
        fixed = ""
        if group:
            fixed = f"__attribute__((reqd_work_group_size({group[0]}, {group[1]}, {group[2]})))\n"
        source = (
            "\n".join(self._defines)
            + f"\n{fixed}__kernel void {self.name}({', '.join(self._parameters)})\n{{\n"
            + "".join(f"  {line}\n" for line in self._prelude)
            + guard
            + body
            + "\n}\n"
        )
        return Launch(
            self.name, source, tuple(self._arguments), frozenset(self._written), sizes, group,
            window,
        )  # fmt: skip

    def _tensor(self, name: str, value: Value, const: str) -> None:
        self._parameters.append(f"__global {const}{value.ctype}* restrict {name}_, int {name}_at")
        self._prelude.append(
            f"__global {const}{value.ctype}* restrict {name} = {name}_ + {name}_at;"
        )
        self._arguments.append(value)
        self._accessors(name, value.ctype, value.block or 1, value.half, const)
        if value.block:
            _, _, h, w = value.shape
            self._defines.append(
                f"#define VEC_{name}(n, s, y, x) "
                f"((((n) * {value.slices} + (s)) * {h} + (y)) * {w} + (x))\n"
                f"#define AT_{name}(n, c, y, x) (VEC_{name}(n, (c) / {value.block}, y, x) "
                f"* {value.block} + (c) % {value.block})"
            )
        else:
            self._defines.append(row_major(name, value.shape))

    def _accessors(
        self, name: str, ctype: str, vector: int, half: bool, const: str = "const "
    ) -> None:
        width = "" if vector == 1 else str(vector)
        if half:
            self._defines.append(
                f"#define GET_{name}(i) vload_half(i, {name})\n"
                f"#define PUT_{name}(i, v) vstore_half(v, i, {name})\n"
                f"#define LOAD_{name}(i) vload_half{width}(i, {name})\n"
                f"#define STORE_{name}(i, v) vstore_half{width}(v, i, {name})"
            )
        else:  # a cast and no vload: PoCL 3.0 calls a function for that and spills all registers
            self._defines.append(
                f"#define GET_{name}(i) {name}[i]\n"
                f"#define PUT_{name}(i, v) {name}[i] = (v)\n"
                f"#define LOAD_{name}(i) ((__global const {ctype}{width}*){name})[i]\n"
                f"#define STORE_{name}(i, v) ((__global {ctype}{width}*){name})[i] = (v)"
            )


def row_major(name: str, shape: Sequence[int]) -> str:
    """The macro ``AT_name`` of a tensor that lies as in ONNX."""
    if not shape:
        return f"#define AT_{name}() 0"
    names = [f"i{axis}" for axis in range(len(shape))]
    text = f"({names[0]})"
    for axis, size in list(zip(names, shape, strict=True))[1:]:
        text = f"({text} * {size} + ({axis}))"
    return f"#define AT_{name}({', '.join(names)}) {text}"
