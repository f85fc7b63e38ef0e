"""Positions of elements as expressions: coordinates from a flat index, and steps along axes."""

import math
from collections.abc import Sequence

__all__ = ["at", "neighbours", "split", "split_lines", "step"]


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


def neighbours(name: str, half: bool, width: int) -> str:
    """Macros for ``width`` neighbouring scalars from any position on: NEAR_x(i), PUTS_x(i, v).

    They call functions that take a pointer, because the compiler combines scalars behind a pointer
    into one unaligned access. PoCL 3.0 does not combine scalars behind a position, and it calls
    functions for vload and vstore.
    """
    if half:
        return (
            f"#define NEAR_{name}(i) vload_half{width}(0, {name} + (i))\n"
            f"#define PUTS_{name}(i, v) vstore_half{width}(v, 0, {name} + (i))"
        )
    gets = ", ".join(f"p[{lane}]" for lane in range(width))
    puts = " ".join(f"p[{lane}] = v.s{lane:x};" for lane in range(width))
    return (
        f"float{width} near_{name}(__global const float* p) {{ return (float{width})({gets}); }}\n"
        f"void puts_{name}(__global float* p, float{width} v) {{ {puts} }}\n"
        f"#define NEAR_{name}(i) near_{name}({name} + (i))\n"
        f"#define PUTS_{name}(i, v) puts_{name}({name} + (i), v)"
    )
