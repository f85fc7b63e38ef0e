"""The loops around the code that a kernel runs for one element of its result, and kernels that move
elements: each output element is some input element.
"""

from collections.abc import Sequence

from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import Grid, KernelLaunch, Source, Value, ceil_div, indented
from coexec.engines.kernels.touches import Along, Touch, along, of_image, of_rows
from coexec.engines.kernels.value import neighbours, split_lines


def each_scalar(source: Source, y: Value, lines: Sequence[str], value: str) -> KernelLaunch:
    """Set every element of ``y``, declared by that name, to ``value``.

    ``lines`` are inserted before. They and ``value`` may use the element's coordinates p0, p1, ...
    A work item computes one scalar, or one vector of a blocked tensor lane by lane. Lanes past the
    last channel repeat that channel, so that they have a valid number.
    """
    if y.block:
        body = [
            f"const int p1 = min(first + lane, {y.shape[1] - 1});",
            *lines,
            f"PUT_y(VEC_y(p0, s, p2, p3) * {y.block} + lane, {value});",
        ]
        loop = f"#pragma unroll\n  for (int lane = 0; lane < {y.block}; lane++) {{"
        return _vectors(source, y, [loop, *body, "}"])
    if source.arch.family == "cpu" and y.shape and y.shape[-1] >= _ROW:
        return _rows(source, y, lines, f"PUT_y({_in_row(y)}, {value});")
    source.add(split_lines("get_global_id(0)", y.shape))
    touch = of_rows(y, 1, along(0, y.items))
    put = f"PUT_y(get_global_id(0), {value});"
    return _finished(source, [*lines, put], (y.items,), touch=touch)


def _rows(
    source: Source, y: Value, lines: Sequence[str], put: str, together: int = 1
) -> KernelLaunch:
    """As `each_scalar`, with a work item for some rows, or for a part of a long row.

    Compilers make vectors of its loop, and coordinates are computed once for a row.

    ``together``: number of neighbours that ``put`` stores; the last store of a row may overlap.
    """
    width, last = y.shape[-1], len(y.shape) - 1
    rows = y.items // width
    share = ceil_div(y.items, 4 * source.arch.compute_units)
    most = min(_MOST, max(_LEAST, share))
    part = min(width, ceil_div(most, together) * together)
    parts, band = ceil_div(width, part), max(1, most // width)
    position = f"p{last} = {f'min(next, {width - together})' if together > 1 else 'next'};"
    body = [
        f"const int part = get_global_id(0) % {parts} * {part};",
        f"const int first = get_global_id(0) / {parts} * {band};",
        f"const int last_row = min(first + {band}, {rows}), stop = min(part + {part}, {width});",
        "for (int y_row = first; y_row < last_row; y_row++) {",
        split_lines("y_row", y.shape[:-1]),
        f"  for (int next = part; next < stop; next += {together}) {{",
        f"    const int {position}",
        *indented([*lines, put], 2),
        "  }",
        "}",
    ]
    bands = ceil_div(rows, band)
    starts = [i // parts * band for i in range(parts * bands)]
    touch = of_rows(y, width, Along(0, starts, [start + band for start in starts]))
    return _finished(source, body, (parts * bands,), (1, 1, 1), touch)


def _in_row(y: Value) -> str:
    """Position of the current element in `_rows`."""
    return f"y_row * {y.shape[-1]} + p{len(y.shape) - 1}"


_ROW = 8
"""Least elements of a row for which a separate loop pays off."""
_MOST = 8192
_LEAST = 1024
"""Least elements of a work item, if there are so many: fewer take no longer than its start."""


def each_run(source: Source, y: Value, lines: Sequence[str], value: str) -> KernelLaunch:
    """Set every vector of neighbours in a row of the row-major ``y`` to ``value``.

    Coordinates are those of its first element, as in `each_scalar`. Rows have at least one vector;
    the last vector of a row may overlap the previous one.
    """
    source.define(neighbours("y", y.half, source.arch.block))
    put = f"PUTS_y({_in_row(y)}, {value});"
    return _rows(source, y, lines, put, source.arch.block)


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
    touch = None
    if source.arch.family == "cpu":
        touch = of_image(y, along(0, h * w), along(2, grid[2]), pixels=True, joint=True)
    first = f"const int first = s * {y.block};"
    return _finished(source, [*start, first, *lines], grid, touch=touch)


def vectors(arch: Architecture, sizes: tuple[int, int, int, int]) -> tuple[list[str], Grid]:
    """Lines that declare which vector of ``sizes``, (n, s, y, x), a work item computes; and the
    grid.

    The vector is at p0, s, p2, p3. On a CPU all pixels are one axis, for longer groups.
    """
    n, slices, h, w = sizes
    outer = f"const int s = get_global_id(2) % {slices}, p0 = get_global_id(2) / {slices};"
    if arch.family == "cpu":
        pixel = f"const int p3 = get_global_id(0) % {w}, p2 = get_global_id(0) / {w};"
        return [pixel, outer], (w * h, 1, n * slices)
    pixel = "const int p3 = get_global_id(0), p2 = get_global_id(1);"
    return [pixel, outer], (w, h, n * slices)


def _finished(
    source: Source,
    lines: Sequence[str],
    grid: Sequence[int],
    group: Grid | None = None,
    touch: Touch | None = None,
) -> KernelLaunch:
    """``touch``: the part of ``y`` that a box of the grid writes."""
    source.lines(lines)
    return source.finish(grid, group, touches={"y": touch} if touch else {})


def moved(
    source: Source,
    x: Value,
    y: Value,
    coordinates: Sequence[str],
    *,
    lines: Sequence[str] = (),
    residue: int | None = None,
    inside: str = "",
    outside: str = "",
) -> KernelLaunch:
    """Set each element of ``y`` to the one of ``x``, declared by that name, at ``coordinates``.

    Args:
        source: declares ``x`` and everything else that ``lines`` use.
        coordinates: expressions of p0, p1, ..., the position in ``y``; never out of ``x`` where
            ``inside`` holds.
        lines: statements before the move.
        residue: given if neighbouring channels of ``y`` are neighbouring channels of ``x``: the
            remainder of a vector's first channel by the block. Vectors are then moved if both
            tensors are blocked. Other coordinates must be equal for all lanes of a vector.
        inside: the condition, if any, under which an element comes from ``x``; with a residue of 0,
            or with none.
        outside: the value of all other elements.
    """
    source.write("y", y)
    if residue is not None and x.block and y.block:
        shift_lines, value = shifted(x, coordinates, residue)
        if inside:
            value = f"{inside} ? {value} : ({source.arch.vector})({outside})"
        return each_vector(source, y, [*lines, *shift_lines], value)
    value = f"GET_x(AT_x({', '.join(coordinates)}))"
    return each_scalar(source, y, lines, f"{inside} ? {value} : {outside}" if inside else value)


def shifted(x: Value, coordinates: Sequence[str], residue: int) -> tuple[list[str], str]:
    """Lines, and the vector of channels of the blocked ``x`` that starts at ``coordinates``.

    ``residue`` is the remainder of the first channel by the block. Lanes that are not in ``x``,
    also those in front of its first channel, contain other elements of it.
    """
    n, c, y, x_ = coordinates
    if not residue:
        return [], f"LOAD_x(VEC_x({n}, ({c}) / {x.block}, {y}, {x_}))"
    vector, last = f"float{x.block}", x.slices - 1
    lines = [f"const int next = ({c} + {x.block - residue}) / {x.block};"]
    for name, slice_ in (("low", "next - 1"), ("high", "next")):
        position = f"VEC_x({n}, clamp({slice_}, 0, {last}), {y}, {x_})"
        lines.append(f"const {vector} {name} = LOAD_x({position});")
    lanes = [f"low.s{lane:x}" for lane in range(residue, x.block)]
    lanes += [f"high.s{lane:x}" for lane in range(residue)]
    return lines, f"({vector})({', '.join(lanes)})"
