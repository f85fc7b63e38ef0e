"""Tensors with their layout in memory, names of types and constants in OpenCL C, and positions of
elements as expressions: coordinates from a flat index, and steps along axes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

CTYPES: Mapping[str, str] = {
    "float32": "float", "float64": "double", "bool": "uchar",
    "int8": "char", "int16": "short", "int32": "int", "int64": "long",
    "uint8": "uchar", "uint16": "ushort", "uint32": "uint", "uint64": "ulong",
}  # fmt: skip
"""OpenCL's scalar type of each dtype that tensors on the device may have."""


Parts = tuple[tuple[int, int], ...]
"""An axis of a tensor in the memory of another one: the sizes of its parts, the outermost first,
and the distance of neighbours along each, in scalars. An axis of size 1 has none."""


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def literal(value: float, dtype: str = "float32") -> str:
    """A constant in OpenCL C, exact to the last bit."""
    if dtype not in ("float32", "float64"):
        return f"({CTYPES[dtype]})({int(value)}{'L' if dtype == 'int64' else ''})"
    with np.errstate(over="ignore"):
        number = float(value) if dtype == "float64" else float(np.float32(value))
    if math.isnan(number):
        return "NAN"
    if math.isinf(number):
        return "INFINITY" if number > 0 else "(-INFINITY)"
    return f"({number!r}{'' if dtype == 'float64' else 'f'})"


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
    last: bool = False
    """Whether the blocks of a pixel lie behind each other: [N, H, W, C]; then C is a multiple of
    ``block``."""
    axes: tuple[Parts, ...] = ()
    """The parts of each axis; none if the layout is as above."""
    of_halves: bool = False
    """Whether it is a float16 tensor of the model: 16-bit floats in the host's memory, and a
    float32 tensor on the device."""

    @property
    def on_host(self) -> "Value":
        """The tensor in the host's memory, as numpy stores it."""
        return replace(self, block=0, half=self.of_halves)

    @property
    def host_dtype(self) -> str:
        """Type of its numpy array."""
        return "float16" if self.of_halves else self.dtype

    @property
    def items(self) -> int:
        """Number of scalars from the first to the last, padding and gaps included."""
        if self.axes:
            return 1 + sum((size - 1) * step for parts in self.axes for size, step in parts)
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


@dataclass(frozen=True, slots=True)
class TensorView:
    """Place of a tensor in the memory of another one, which is row-major."""

    source: str
    offset: int
    """Position of the first element, in scalars."""
    axes: tuple[Parts, ...]
    """As of `Value`."""
    factor: float = 1.0
    """A reader multiplies the elements by this number."""


def dense_axes(shape: Sequence[int]) -> tuple[Parts, ...]:
    """The axes of a row-major tensor."""
    steps = (math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    return tuple(((n, step),) if n > 1 else () for n, step in zip(shape, steps, strict=True))


def strided(name: str, axes: Sequence[Parts]) -> str:
    """The macro ``AT_name`` of a view."""
    names = [f"i{axis}" for axis in range(len(axes))]
    terms = []
    for i, parts in zip(names, axes, strict=True):
        coordinates = split(f"({i})", [size for size, _ in parts])
        terms += [f"{c} * {step}" for c, (_, step) in zip(coordinates, parts, strict=True)]
    return f"#define AT_{name}({', '.join(names)}) ({' + '.join(terms) or '0'})"


def row_major(name: str, shape: Sequence[int | str]) -> str:
    """The macro ``AT_name`` of a row-major tensor. Sizes are numbers or variables."""
    if not shape:
        return f"#define AT_{name}() 0"
    names = [f"i{axis}" for axis in range(len(shape))]
    text = f"({names[0]})"
    for axis, size in list(zip(names, shape, strict=True))[1:]:
        text = f"({text} * {size} + ({axis}))"
    return f"#define AT_{name}({', '.join(names)}) {text}"


def at(name: str, coordinates: Sequence[str]) -> str:
    """The position of an element of the tensor ``name`` by its coordinates."""
    return f"AT_{name}({', '.join(coordinates)})"


def split(index: str, sizes: Sequence[int]) -> list[str]:
    """Coordinates of the flat ``index``, in row-major order of ``sizes``, as expressions."""
    coordinates = []
    for axis, size in enumerate(sizes):
        if size == 1:
            coordinates.append("0")
            continue
        inner = math.prod(sizes[axis + 1 :])
        text = f"{index} / {inner}" if inner > 1 else index
        outermost = math.prod(sizes[:axis]) == 1
        coordinates.append(f"({text})" if outermost else f"(({text}) % {size})")
    return coordinates


def split_lines(index: str, sizes: Sequence[int], name: str = "p") -> str:
    """Lines that declare the coordinates of ``index`` as p0, p1, ...: fewer divisions than `split`
    if a kernel uses them several times."""
    lines = [f"  int rest_{name} = {index};"]
    for axis in reversed(range(1, len(sizes))):
        size = sizes[axis]
        lines.append(f"  const int {name}{axis} = rest_{name} % {size}; rest_{name} /= {size};")
    return "\n".join([*lines, f"  const int {name}0 = rest_{name};"] if sizes else lines)


def step(sizes: Sequence[int], axes: Sequence[int]) -> int | None:
    """Distance of neighbours along ``axes`` in a row-major tensor of ``sizes``.

    None if it is not the same everywhere: axes in between are longer than 1.
    """
    longer = [a for a in axes if sizes[a] > 1]
    if not longer:
        return 1
    between = (a for a in range(longer[0], longer[-1]) if a not in longer)
    if any(sizes[a] > 1 for a in between):
        return None
    return math.prod(sizes[longer[-1] + 1 :])


def neighbours(name: str, half: bool, width: int, aligned: bool = False) -> str:
    """Macros for ``width`` neighbouring scalars from any position on: NEAR_x(i), PUTS_x(i, v).

    ``aligned``: positions are multiples of ``width``. Else the macros call functions that take a
    pointer, because the compiler combines scalars behind a pointer into one unaligned access. Some
    do not combine scalars behind a position, and call functions for vload and vstore.
    """
    if aligned and half:
        return (
            f"#define NEAR_{name}(i) vload_half{width}((i) / {width}, {name})\n"
            f"#define PUTS_{name}(i, v) vstore_half{width}(v, (i) / {width}, {name})"
        )
    if aligned:
        return (
            f"#define NEAR_{name}(i) ((__global const float{width}*){name})[(i) / {width}]\n"
            f"#define PUTS_{name}(i, v) ((__global float{width}*){name})[(i) / {width}] = (v)"
        )
    get, put = "p[{}]", "p[{}] = {}"
    if half:
        get, put = "vload_half({}, p)", "vstore_half({1}, {0}, p)"
    gets = ", ".join(get.format(lane) for lane in range(width))
    puts = " ".join(f"{put.format(lane, f'v.s{lane:x}')};" for lane in range(width))
    ctype, vector = "half" if half else "float", f"float{width}"
    return (
        f"{vector} near_{name}(__global const {ctype}* p) {{ return ({vector})({gets}); }}\n"
        f"void puts_{name}(__global {ctype}* p, {vector} v) {{ {puts} }}\n"
        f"#define NEAR_{name}(i) near_{name}({name} + (i))\n"
        f"#define PUTS_{name}(i, v) puts_{name}({name} + (i), v)"
    )
