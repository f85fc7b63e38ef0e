"""Loops over the elements of a sliding window, over any number of spatial axes."""

from collections.abc import Callable, Sequence

from coexec.engines.kernels.base import indented
from coexec.engines.kernels.value import split
from coexec.graph.rules.windows import Window

Size = Callable[[str, int], str]
"""The text of a size by its name and number: see `Source.size`."""


def literally(name: str, number: int) -> str:
    return str(number)


def taps(window: Window, dilation: int) -> int:
    """Number of elements that a window reads along its axis."""
    return len(range(0, window.extent, dilation))


def over_taps(
    windows: Sequence[Window],
    dilations: Sequence[int],
    body: Sequence[str],
    size: Size = literally,
    unrolled: bool = False,
) -> tuple[list[str], list[str]]:
    """Declarations, and loops over the elements in the window of output (o0, o1, ...) that run
    ``body``.

    The element is the tap (k0, k1, ...) of the window, at (i0, i1, ...) on the spatial axes of the
    input. If windows reach beyond an axis without dilation, the declarations set first_tap0 and
    end_tap0 (or first_tap1, ...): the taps from the first one up to the end, exclusive, are inside.

    Args:
        unrolled: the compiler unrolls rows of whole windows. Loops over them take three times as
            long on CPU cores.
    """
    bounds: list[str] = []
    lines = list(body)
    for axis in reversed(range(len(windows))):
        window, dilation = windows[axis], dilations[axis]
        k, i, count = f"k{axis}", f"i{axis}", taps(window, dilation)
        begin = size(f"begin{axis}", window.begin)
        start, end, checks = "0", str(count), []
        if not inside(window):
            edge = size(f"size{axis}", window.size)
            if dilation == 1:
                start, end, first = f"first_tap{axis}", f"end_tap{axis}", f"window{axis}"
                bounds += [
                    f"const int {first} = o{axis} * {window.stride} - {begin};",
                    f"const int {start} = {first} < 0 ? -{first} : 0;",
                    f"const int {end} = {first} + {count} > {edge} ? {edge} - {first} : {count};",
                ]
            else:
                checks = [f"  if ({i} < 0 || {i} >= {edge}) continue;"]
        inner = [
            f"  const int {i} = o{axis} * {window.stride} - {begin} + {k} * {dilation};",
            *checks,
            *indented(lines),
            "}",
        ]
        lines = [f"for (int {k} = {start}; {k} < {end}; {k}++) {{", *inner]
        if unrolled and axis == len(windows) - 1 and not checks:
            whole = ["#pragma unroll", f"for (int {k} = 0; {k} < {count}; {k}++) {{", *inner]
            some = ["} else {", *lines, "}"]
            lines = (
                whole if start == "0" else [f"if ({end} - {start} == {count}) {{", *whole, *some]
            )
    return bounds, lines


def inside(window: Window) -> bool:
    """Whether no window reaches beyond the input."""
    last = (window.output - 1) * window.stride - window.begin + window.extent
    return window.begin <= 0 and last <= window.size


def grid(spatial: Sequence[int], outer: int) -> tuple[int, int, int]:
    """Work items for each position of ``spatial`` axes, ``outer`` times."""
    rows = 1
    for size in spatial[:-1]:
        rows *= size
    return spatial[-1], rows, outer


def output_coordinates(
    spatial: Sequence[int],
    outer: Sequence[int],
    last: str = "get_global_id(0)",
    line: str = "get_global_id(1)",
    item: str = "get_global_id(2)",
) -> tuple[list[str], list[str]]:
    """Lines that declare o0, o1, ..., the spatial coordinates of a work item of `grid`; and
    expressions of its coordinates on the ``outer`` axes.

    Args:
        last: position along the last axis.
        line: position along all other spatial axes.
        item: position along the outer axes.
    """
    rows = split("line", spatial[:-1])
    lines = [f"const int line = {line}, outer = {item};"]
    lines += [f"const int o{axis} = {text};" for axis, text in enumerate(rows)]
    lines.append(f"const int o{len(spatial) - 1} = {last};")
    return lines, split("outer", outer)
