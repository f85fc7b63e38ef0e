"""Loops over what a sliding window covers, over any number of spatial axes."""

from collections.abc import Callable, Sequence

from coexec.engines.opencl.kernels.positions import split
from coexec.ir.rules.windows import Window

__all__ = ["Size", "grid", "literally", "output_coordinates", "over_taps", "taps"]

Size = Callable[[str, int], str]
"""The text of a size by its name and number: see `Source.size`."""


def literally(name: str, number: int) -> str:
    return str(number)


def taps(window: Window, dilation: int) -> int:
    """How many elements a window reads along its axis."""
    return len(range(0, window.extent, dilation))


def over_taps(
    windows: Sequence[Window], dilations: Sequence[int], body: Sequence[str],
    size: Size = literally,
) -> list[str]:  # fmt: skip
    """Lines that run ``body`` for each element that the window of output (o0, o1, ...) covers.

    There it is the tap (k0, k1, ...) of the window, at (i0, i1, ...) of the input's spatial axes.
    """
    lines = list(body)
    for axis in reversed(range(len(windows))):
        window, dilation = windows[axis], dilations[axis]
        k, i = f"k{axis}", f"i{axis}"
        last = (window.output - 1) * window.stride - window.begin + window.extent
        inside = window.begin <= 0 and last <= window.size
        begin = size(f"begin{axis}", window.begin)
        end = "" if inside else size(f"size{axis}", window.size)
        lines = [
            f"for (int {k} = 0; {k} < {taps(window, dilation)}; {k}++) {{",
            f"  const int {i} = o{axis} * {window.stride} - {begin} + {k} * {dilation};",
            *([] if inside else [f"  if ({i} < 0 || {i} >= {end}) continue;"]),
            *(f"  {line}" for line in lines),
            "}",
        ]
    return lines


def grid(spatial: Sequence[int], outer: int) -> tuple[int, int, int]:
    """Work items for each position of ``spatial`` axes, ``outer`` times."""
    rows = 1
    for size in spatial[:-1]:
        rows *= size
    return spatial[-1], rows, outer


def output_coordinates(spatial: Sequence[int], outer: Sequence[int]) -> tuple[list[str], list[str]]:
    """Lines that declare o0, o1, ..., where a work item of `grid` is in the spatial axes, and
    its coordinates in the ``outer`` axes."""
    rows = split("line", spatial[:-1])
    lines = ["const int line = get_global_id(1), outer = get_global_id(2);"]
    lines += [f"const int o{axis} = {text};" for axis, text in enumerate(rows)]
    lines.append(f"const int o{len(spatial) - 1} = get_global_id(0);")
    return lines, split("outer", outer)
