"""The loops around what a kernel does for one element of its result."""

from collections.abc import Sequence

from coexec.engines.opencl.architecture import Architecture
from coexec.engines.opencl.kernels.base import Grid, KernelLaunch, Source, Value, ceil_div
from coexec.engines.opencl.kernels.positions import neighbours

__all__ = ["coordinates", "each_run", "each_scalar", "each_vector", "vectors"]


def coordinates(shape: Sequence[int], index: str = "get_global_id(0)", name: str = "p") -> str:
    """Lines that split the flat ``index`` of a work item into coordinates p0, p1, ..."""
    lines = [f"  int rest_{name} = {index};"]
    for axis in reversed(range(1, len(shape))):
        size = shape[axis]
        lines.append(f"  const int {name}{axis} = rest_{name} % {size}; rest_{name} /= {size};")
    return "\n".join([*lines, f"  const int {name}0 = rest_{name};"] if shape else lines)


def each_scalar(source: Source, y: Value, lines: Sequence[str], value: str) -> KernelLaunch:
    """Set every element of ``y``, declared by that name, to ``value``.

    ``lines`` stand before and may, as ``value``, use the element's coordinates p0, p1, ... A work
    item makes one scalar, or one vector of a blocked tensor lane by lane. Lanes past the last
    channel repeat that channel, so that they hold a number.
    """
    if y.block:
        body = [f"const int p1 = min(first + lane, {y.shape[1] - 1});", *lines,
                f"PUT_y(VEC_y(p0, s, p2, p3) * {y.block} + lane, {value});"]  # fmt: skip
        loop = f"#pragma unroll\n  for (int lane = 0; lane < {y.block}; lane++) {{"
        return _vectors(source, y, [loop, *body, "}"])
    if source.arch.family == "cpu" and len(y.shape) > 1 and y.shape[-1] >= _ROW:
        return _rows(source, y, lines, value)
    source.lines(coordinates(y.shape))
    return _finished(source, [*lines, f"PUT_y(get_global_id(0), {value});"], (y.items,))


def _rows(source: Source, y: Value, lines: Sequence[str], value: str) -> KernelLaunch:
    """As `each_scalar`, with a work item for each row: compilers make vectors of its loop.

    Its coordinates are computed once, and groups have enough to do.
    """
    width, last = y.shape[-1], len(y.shape) - 1
    rows = y.items // width
    group = min(rows, source.arch.max_group, ceil_div(_GROUP, width))
    source.lines(f"  if (get_global_id(0) >= {rows}) return;")
    source.lines(coordinates(y.shape[:-1]))
    body = [*lines, f"PUT_y((int)get_global_id(0) * {width} + p{last}, {value});"]
    loop = f"for (int p{last} = 0; p{last} < {width}; p{last}++) {{"
    return _finished(source, [loop, *body, "}"], (ceil_div(rows, group) * group,), (group, 1, 1))


def each_run(source: Source, y: Value, lines: Sequence[str], value: str) -> KernelLaunch:
    """Set every vector of neighbours in a row of the row-major ``y`` to ``value``.

    Coordinates are those of its first element, as in `each_scalar`. Rows have a vector at least;
    the last vector of a row may set again what the one before has. A work item makes some rows, or
    a part of a long one.
    """
    width, last, b = y.shape[-1], len(y.shape) - 1, source.arch.block
    rows = y.items // width
    units = max(1, ceil_div(y.items, 4 * source.arch.compute_units))
    most = min(_GROUP, max(_LEAST, units))
    part = min(width, ceil_div(most, b) * b)
    parts, together = ceil_div(width, part), max(1, most // width)
    source.define(neighbours("y", y.half, b))
    body = [
        f"const int part = get_global_id(0) % {parts} * {part};",
        f"const int first = get_global_id(0) / {parts} * {together};",
        f"const int last_row = min(first + {together}, {rows});",
        f"const int stop = min(part + {part}, {width});",
        "for (int row = first; row < last_row; row++) {",
        coordinates(y.shape[:-1], "row"),
        f"  for (int next = part; next < stop; next += {b}) {{",
        f"    const int p{last} = min(next, {width - b});",
        *(f"    {line}" for line in lines),
        f"    PUTS_y(row * {width} + p{last}, {value});",
        "  }",
        "}",
    ]
    return _finished(source, body, (parts * ceil_div(rows, together),), (1, 1, 1))


_LEAST = 1024
"""Elements that a work item should make at least: less take no longer than a group's start."""

_ROW = 8
"""Elements of a row that are worth a loop of its own."""

_GROUP = 8192
"""Elements of a group of rows."""


def each_vector(source: Source, y: Value, lines: Sequence[str], value: str) -> KernelLaunch:
    """Set every vector of channels of the blocked ``y``, declared by that name, to ``value``.

    Coordinates are p0, p1, p2, p3 as in `each_scalar`, p1 being the vector's first channel, and s
    is its slice.
    """
    store = f"STORE_y(VEC_y(p0, s, p2, p3), {value});"
    return _vectors(source, y, ["const int p1 = first;", *lines, store])


def _vectors(source: Source, y: Value, lines: Sequence[str]) -> KernelLaunch:
    """One work item for each vector of ``y``."""
    n, _, h, w = y.shape
    start, grid = vectors(source.arch, (n, y.slices, h, w))
    return _finished(source, [*start, f"const int first = s * {y.block};", *lines], grid)


def vectors(arch: Architecture, sizes: tuple[int, int, int, int]) -> tuple[list[str], Grid]:
    """Lines that say which of so many vectors (n, s, y, x) a work item is at, and the grid.

    They are at p0, s, p2, p3. On a CPU all pixels are one axis, for longer groups.
    """
    n, slices, h, w = sizes
    outer = f"const int s = get_global_id(2) % {slices}, p0 = get_global_id(2) / {slices};"
    if arch.family == "cpu":
        pixel = f"const int p3 = get_global_id(0) % {w}, p2 = get_global_id(0) / {w};"
        return [pixel, outer], (w * h, 1, n * slices)
    pixel = "const int p3 = get_global_id(0), p2 = get_global_id(1);"
    return [pixel, outer], (w, h, n * slices)


def _finished(
    source: Source, lines: Sequence[str], grid: Sequence[int], group: Grid | None = None
) -> KernelLaunch:
    source.lines("\n".join(f"  {line}" for line in lines))
    return source.finish(grid, group)
