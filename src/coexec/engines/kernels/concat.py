"""Concat: each input is copied to its part of the output, unless it is computed there."""

import math
from collections.abc import Sequence

from coexec.engines.kernels.base import Context, Kernel, KernelLaunch, Node, Source, Value, ceil_div
from coexec.engines.kernels.elements import shifted, vectors
from coexec.engines.kernels.touches import Along, Touch, along, of_image
from coexec.engines.kernels.value import split_lines


def launches(node: Node, context: Context) -> list[KernelLaunch]:
    """One kernel for each input that is not in place, in order."""
    y = context.value(node.output)
    axis = node.operator.int("axis", 1) % len(y.shape)
    done = context.in_place.get(node.output, frozenset())
    kernels, start = [], 0
    for position, name in enumerate(node.operator.inputs):
        if position not in done and 0 not in context.tensors[name].shape:
            source = Source("concat", context.arch)
            x = source.read("x", context.operand(name))
            source.write("y", y)
            move = _vectors if y.block else _scalars
            kernels.append(move(source, x, y, axis, start))
        start += context.tensors[name].shape[axis]
    return kernels


def _scalars(source: Source, x: Value, y: Value, axis: int, start: int) -> KernelLaunch:
    """One work item for each element of the input; on CPU cores, if both sides are row-major, for
    rows of elements."""
    if source.arch.family == "cpu" and not x.block and not y.block:
        return _rows(source, x, y, axis, start)
    positions = [f"p{i}" for i in range(len(x.shape))]
    there = [f"{p} + {start}" if i == axis else p for i, p in enumerate(positions)]
    source.add(split_lines("get_global_id(0)", x.shape))
    source.add(f"  PUT_y(AT_y({', '.join(there)}), GET_x(AT_x({', '.join(positions)})));")
    return source.finish((math.prod(x.shape),))


_ITEM = 4096
"""Elements that a work item copies: some rows, or a part of a long row."""


def _rows(source: Source, x: Value, y: Value, axis: int, start: int) -> KernelLaunch:
    """The kernel that copies rows. The axes from ``axis`` on are contiguous on both sides."""
    inner = math.prod(x.shape[axis + 1 :])
    row_items, whole = x.shape[axis] * inner, y.shape[axis] * inner
    rows = x.items // row_items
    band, parts = max(1, _ITEM // row_items), ceil_div(row_items, _ITEM)
    source.add(
        f"  const int first = get_global_id(1) * {band}, last = min(first + {band}, {rows});\n"
        f"  const int from = get_global_id(0) * {_ITEM}, to = min(from + {_ITEM}, {row_items});\n"
        f"  for (int row = first; row < last; row++)\n"
        f"    for (int i = from; i < to; i++)\n"
        f"      PUT_y(row * {whole} + {start * inner} + i, GET_x(row * {row_items} + i));"
    )
    bands = along(1, ceil_div(rows, band), band)
    starts = range(0, row_items, _ITEM)
    stops = [min(at + _ITEM, row_items) for at in starts]
    there = Along(0, [start * inner + at for at in starts], [start * inner + at for at in stops])
    touches = {
        "x": Touch((1, rows, row_items, 1), planes=bands, rows=Along(0, starts, stops)),
        "y": Touch((1, rows, whole, 1), planes=bands, rows=there),
    }
    return source.finish((parts, ceil_div(rows, band)), (1, 1, 1), touches=touches)


def _vectors(source: Source, x: Value, y: Value, axis: int, start: int) -> KernelLaunch:
    """One work item for each vector of the result that has elements of this input.

    If the input starts inside of a vector, that vector keeps its first lanes: the kernels of a
    program run in order, so the kernels of earlier inputs have written them. Lanes behind the input
    get some of its elements, until the kernel of the next input overwrites them.
    """
    n, c, h, w = x.shape
    kept_lanes = start % y.block if axis == 1 else 0
    slices = ceil_div(kept_lanes + c, y.block)
    first = [start // y.block if axis == 1 == i else start if i == axis else 0 for i in range(4)]
    at, grid = vectors(source.arch, (n, slices, h, w))
    coordinates = [f"{p} + {f}" for p, f in zip(("p0", "s", "p2", "p3"), first, strict=True)]
    lines, value = _vector(x, y.block, ["p0", "c", "p2", "p3"], -kept_lanes % y.block)
    vector, to = f"float{y.block}", f"VEC_y({', '.join(coordinates)})"
    if kept_lanes:
        old = [f"old.s{lane:x}" for lane in range(kept_lanes)]
        new = [f"v.s{lane:x}" for lane in range(kept_lanes, y.block)]
        both = f"({vector})({', '.join(old + new)})"
        lines += [
            f"{vector} v = {value};",
            f"if (s == 0) {{ const {vector} old = LOAD_y({to}); v = {both}; }}",
        ]
        value = "v"
    at.append(f"const int c = s * {y.block} - {kept_lanes};")
    source.lines([*at, *lines, f"STORE_y({to}, {value});"])
    touches: dict[str, Touch] = {}
    if source.arch.family == "cpu" and axis == 1:
        pixels, planes = along(0, h * w), along(2, slices, first=first[1]) if n == 1 else None
        touches = {
            "x": of_image(x, pixels, pixels=True),
            "y": of_image(y, pixels, planes, pixels=True),
        }
    return source.finish(grid, touches=touches)


def _vector(
    x: Value, block: int, coordinates: Sequence[str], residue: int
) -> tuple[list[str], str]:
    """Lines, and the vector of ``block`` channels of the input from ``coordinates`` on.

    Lanes past the last channel have arbitrary values.
    """
    if x.block:
        return shifted(x, coordinates, residue)
    n, c, y, x_ = coordinates
    channels = [f"clamp({c} + {lane}, 0, {x.shape[1] - 1})" for lane in range(block)]
    lanes = ", ".join(f"GET_x(AT_x({n}, {channel}, {y}, {x_}))" for channel in channels)
    return [], f"(float{block})({lanes})"


KERNELS = {"Concat": Kernel(launches, takes_views="inputs")}
