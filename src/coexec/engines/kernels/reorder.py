"""Kernels that change a tensor's layout: at inputs and outputs, and between two kernels."""

import math
from collections.abc import Sequence

from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import KernelLaunch, Source, Value, ceil_div, indented
from coexec.engines.kernels.touches import Along, along, of_image
from coexec.engines.kernels.value import neighbours, split_lines


def transposed(names: Sequence[str], tag: str = "") -> tuple[list[str], list[str]]:
    """Lines that transpose the square whose rows are the variables ``names``, and its new rows.

    Each step interleaves the first half of the rows with the second half, scalar by scalar. After
    log2(rows) steps, the square is transposed.
    """
    width, rows, lines, step = len(names), list(names), [], 0
    while 1 << step < width:
        new = []
        for row in range(width):
            upper, lower = rows[row // 2], rows[row // 2 + width // 2]
            first = row % 2 * (width // 2)
            lanes = [
                f"{r}.s{lane:x}"
                for lane in range(first, first + width // 2)
                for r in (upper, lower)
            ]
            new.append(f"t{step}_{row}{tag}")
            lines.append(f"const float{width} {new[-1]} = (float{width})({', '.join(lanes)});")
        rows, step = new, step + 1
    return lines, rows


_RUN = 1024
"""Pixels of each channel of a block that a work item on a CPU core moves."""


def reorder(source: Value, target: Value, arch: Architecture) -> KernelLaunch:
    """Copy ``source`` to ``target``, of equal shape. Lanes past the last channel become zero.

    A work item moves the channels of one block, at one pixel or on CPU cores at many. If neither
    side has blocks, it moves one scalar.
    """
    blocked = target if target.block else source
    whole = not (source.block and target.block) and not (source.half or target.half)
    pixels = math.prod(blocked.shape[2:])
    if arch.family == "cpu" and blocked.block > 1 and whole and pixels >= blocked.block:
        return _in_runs(source, target, arch)
    text = Source("reorder", arch, sized=arch.family == "cpu" and bool(blocked.block))
    text.read("x", source)
    text.write("y", target)
    if not blocked.block:
        names = ", ".join(f"p{axis}" for axis in range(len(target.shape)))
        text.add(split_lines("get_global_id(0)", target.shape))
        text.add(f"  PUT_y(AT_y({names}), GET_x(AT_x({names})));")
        return text.finish((target.items,))
    n, c, h, w = blocked.shape
    b, slices = blocked.block, text.size("slices", blocked.slices)
    channels = text.size("channels", c)
    text.add(
        f"  const int px = get_global_id(0), py = get_global_id(1);\n"
        f"  const int s = get_global_id(2) % {slices}, n = get_global_id(2) / {slices};\n"
        f"  for (int lane = 0; lane < {b}; lane++) {{\n"
        f"    const int c = s * {b} + lane;"
    )
    if target.block:
        value = f"c < {channels} ? GET_x(AT_x(n, c, py, px)) : 0.0f"
        text.add(f"    PUT_y(VEC_y(n, s, py, px) * {b} + lane, {value});")
    else:
        value = f"GET_x(VEC_x(n, s, py, px) * {b} + lane)"
        text.add(f"    if (c < {channels}) PUT_y(AT_y(n, c, py, px), {value});")
    text.add("  }")
    rows = along(1, h)
    touches = {
        name: of_image(value, rows, along(2, n * value.slices) if value.block else None, joint=True)
        for name, value in (("x", source), ("y", target))
    }
    return text.finish((w, h, n * blocked.slices), touches=touches)


def _in_runs(source: Value, target: Value, arch: Architecture) -> KernelLaunch:
    """The kernel that transposes squares of pixels and channels in registers.

    The last square of a run may overlap the previous one.
    """
    blocked = target if target.block else source
    n, c, h, w = blocked.shape
    b, vector = blocked.block, arch.vector
    text = Source("reorder", arch, sized=True)
    text.read("x", source)
    text.write("y", target)
    plain = "x" if target.block else "y"
    text.define(neighbours(plain, False, b))
    text.sizes(plane=h * w, channels=c)
    lines = [
        "const int s = get_global_id(1), n = get_global_id(2);",
        f"const int count = min({b}, channels - s * {b});",
        f"const int start = get_global_id(0) * {_RUN}, stop = min(start + {_RUN}, plane);",
        f"for (int next = start; next < stop; next += {b}) {{",
        f"  const int p = min(next, plane - {b});",
        f"  const int near = VEC_{'y' if target.block else 'x'}(n, s, 0, 0) + p;",
        f"  const int far = AT_{plain}(n, s * {b}, 0, 0) + p;",
        *indented((_enter if target.block else _leave)(b, vector)),
        "}",
    ]
    text.lines(lines)
    grid = (ceil_div(h * w, _RUN), blocked.slices, n)
    starts = [min(at, h * w - b) for at in range(0, h * w, _RUN)]
    runs = Along(0, starts, [at + _RUN for at in range(0, h * w, _RUN)])
    samples = along(2, n)
    touches = {
        name: of_image(value, runs, along(1, blocked.slices, step), samples, pixels=True)
        for name, value in (("x", source), ("y", target))
        for step in (1 if value.block else b,)
    }
    return text.finish(grid, (1, 1, 1), touches=touches)


def _enter(b: int, vector: str) -> Sequence[str]:
    rows = [f"c{lane}" for lane in range(b)]
    lines = []
    for lane, row in enumerate(rows):
        load = f"NEAR_x(far + {lane} * plane)"
        value = f"{lane} < count ? {load} : ({vector})(0.0f)" if lane else load
        lines.append(f"const {vector} {row} = {value};")
    turned, pixels = transposed(rows)
    return [*lines, *turned, *(f"STORE_y(near + {i}, {v});" for i, v in enumerate(pixels))]


def _leave(b: int, vector: str) -> Sequence[str]:
    rows = [f"p{pixel}" for pixel in range(b)]
    lines = [f"const {vector} {row} = LOAD_x(near + {i});" for i, row in enumerate(rows)]
    turned, channels = transposed(rows)
    puts = [f"PUTS_y(far + {lane} * plane, {row});" for lane, row in enumerate(channels)]
    guarded = [puts[0], *(f"if ({lane} < count) {put}" for lane, put in enumerate(puts[1:], 1))]
    return [*lines, *turned, *guarded]
