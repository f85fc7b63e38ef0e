"""Number of work items in a group: by rule, or one of the candidates to measure.

The rules are those of TFLite's GPU delegate: a table for Adreno GPUs, where a wrong choice is
several times slower, and a generic rule for all others.
"""

import re
from collections.abc import Iterator

from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import ConvTraits, Grid, KernelLaunch, ceil_div

_ADRENO: dict[int, tuple[Grid, Grid]] = {
    630: ((4, 8, 4), (4, 4, 8)),
    540: ((8, 2, 2), (8, 8, 2)),
    510: ((8, 4, 4), (8, 4, 4)),
    509: ((8, 4, 8), (8, 8, 2)),
    508: ((8, 4, 8), (8, 4, 8)),
    506: ((8, 4, 8), (8, 4, 8)),
    505: ((8, 4, 8), (8, 4, 8)),
    418: ((8, 4, 8), (8, 4, 8)),
    405: ((8, 4, 8), (8, 4, 8)),
}
"""Best group for convolutions and for depthwise convolutions, by model number."""

_ADRENO_630: dict[ConvTraits, Grid] = {
    ConvTraits("convolution", 3, 2): (8, 4, 4),
    ConvTraits("depthwise", 3, 2): (4, 4, 4),
    ConvTraits("depthwise", 1, 1): (8, 4, 4),
}
"""Better groups on model 630 for some kernels (kind, edge, stride)."""

_MOST = 256
"""Largest group by rule: with larger groups, the registers are enough for fewer groups."""


def rule(launch: KernelLaunch, arch: Architecture) -> Grid:
    """The group of a launch on a GPU: the one that the launch fixes, else one by rule."""
    if launch.group:
        return launch.group
    x, y, z = launch.grid
    most = min(arch.max_group, _MOST)
    table_group = _adreno(launch, arch)
    if table_group is not None:
        return table_group
    depth = next(d for d in (8, 4, 2, 1) if z % d == 0)
    plane = most // depth
    width = min(max(1, ceil_div(x, 2)), plane)
    return width, max(1, min(plane // width, y)), depth


def _adreno(launch: KernelLaunch, arch: Architecture) -> Grid | None:
    """Group from the table. None for few channels or few pixels, where the table is not valid."""
    model = re.search(r"Adreno\D*(\d{3})", arch.model)
    traits = launch.convolution
    if model is None or traits is None or int(model.group(1)) not in _ADRENO:
        return None
    width, height, slices = launch.grid
    if slices * arch.block < 32 or height <= 5 or width <= 5:
        return None
    number = int(model.group(1))
    if number == 630 and traits in _ADRENO_630:
        return _ADRENO_630[traits]
    convolution, depthwise = _ADRENO[number]
    return convolution if traits.kind == "convolution" else depthwise


def candidates(launch: KernelLaunch, arch: Architecture) -> Iterator[Grid]:
    """Groups to measure: the one by rule, and all that fit with 1, 2, 4, ... items on an axis."""
    yield rule(launch, arch)
    x, y, z = launch.grid
    sizes = (1, 2, 4, 8, 16, 32, 64)
    for width in sizes:
        for height in sizes[:4]:
            for depth in sizes[:4]:
                items = width * height * depth
                if (
                    16 <= items <= arch.max_group
                    and width <= 2 * x
                    and height <= 2 * y
                    and (depth <= 2 * z)
                ):
                    yield width, height, depth


def rounded(grid: Grid, group: Grid) -> Grid:
    """The grid, rounded up to whole groups."""
    x, y, z = (ceil_div(g, n) * n for g, n in zip(grid, group, strict=True))
    return x, y, z
