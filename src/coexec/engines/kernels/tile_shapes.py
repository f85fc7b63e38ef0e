"""Sizes of the tiles in which a GPU multiplies matrices (`tiles`), and the choice among them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from coexec.engines.kernels.architecture import Architecture, MatrixUnit
from coexec.engines.kernels.base import ceil_div

DEPTH: Mapping[MatrixUnit, int] = {"tf32": 16, "fp16": 32}
"""Scalars of a chunk along the inner axis, by matrix unit."""
ALIGNED = "__attribute__((aligned(16)))"
"""Of scalars in local memory that are read by vectors, too."""
_DEPTH = 16
"""Scalars of a tile along the inner axis, without matrix units."""
PAD = 4
"""Scalars behind each row of local memory, so that neighbours store to different banks; none with
matrix units."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """A number of products of matrices: [rows, inner] times [inner, columns]."""

    rows: int
    columns: int
    inner: int
    """A multiple of 4."""
    matrices: int = 1


@dataclass(frozen=True, slots=True)
class TileShape:
    """Division of the work. A work item sums 4 * ``rows`` rows times 4 * ``columns`` columns, with
    matrix units 2 * ``rows`` rows."""

    items_x: int
    items_y: int
    rows: int
    columns: int
    parts: int = 1
    """Parts of a group. Each has ``items_x * items_y`` work items and every ``parts``-th tile."""
    splits: int = 1
    """Groups that share the inner axis; a separate kernel adds their sums."""
    unit: MatrixUnit = ""
    """The precision of the matrix units that multiply; "": work items multiply in float32. With
    matrix units, ``items_x`` is a multiple of 8 and ``items_y`` one of 4, see `matrix_units`."""
    chunks: int = 1
    """Length of a tile along the inner axis, in chunks that matrix units multiply at once."""
    stages: int = 2
    """Tiles in local memory at a time. From 3 on they are copied without passing through
    registers, while others are multiplied: only for matrix units that take vectors as they are
    stored."""

    @property
    def item_rows(self) -> int:
        """Rows of which a work item has sums."""
        return (2 if self.unit else 4) * self.rows

    @property
    def depth(self) -> int:
        """Scalars of a tile along the inner axis."""
        return DEPTH[self.unit] * self.chunks if self.unit else _DEPTH

    @property
    def height(self) -> int:
        """Rows of a tile."""
        return self.items_x * self.item_rows

    @property
    def width(self) -> int:
        """Columns of a tile."""
        return self.items_y * 4 * self.columns

    @property
    def items(self) -> int:
        return self.items_x * self.items_y

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory: tiles of all stages and parts, and memory for adding sums."""
        item_bytes = 2 if self.unit == "fp16" else 4
        pad = 0 if self.unit else PAD
        tiles = (
            self.stages * self.parts * self.depth * (self.height + pad + self.width) * item_bytes
        )
        return tiles + self.parts // 2 * self.items * 16

    def groups(self, sizes: Sizes) -> int:
        tiles = ceil_div(sizes.rows, self.height) * ceil_div(sizes.columns, self.width)
        return tiles * sizes.matrices

    def inner_tiles(self, sizes: Sizes) -> int:
        """Tiles along the inner axis that a part of a group multiplies, one after the other."""
        return ceil_div(sizes.inner, self.depth * self.parts * self.splits)


_SHAPES = (
    TileShape(16, 8, 2, 2),
    TileShape(16, 8, 1, 2),
    TileShape(8, 8, 1, 2, 2),
    TileShape(4, 8, 1, 2, 4),
    TileShape(8, 8, 1, 1, 4),
)
"""From large tiles, which load the least for each sum, to small tiles, which give more groups. The
best of these takes 1.01 of the time of the best of 60 divisions that were tried on an H200."""
WARP_SHAPES = (
    TileShape(32, 8, 4, 4),
    TileShape(16, 8, 4, 4),
    TileShape(16, 8, 4, 2),
    TileShape(16, 8, 2, 4),
    TileShape(32, 8, 2, 2),
    TileShape(16, 8, 2, 2),
    TileShape(16, 8, 2, 2, 2),
    TileShape(8, 8, 2, 2, 2),
    TileShape(8, 4, 2, 2, 4),
    TileShape(16, 8, 1, 2),
    TileShape(16, 8, 1, 2, 2),
    TileShape(16, 8, 1, 1, 2),
    TileShape(16, 8, 1, 1, 4),
)
"""For matrix units, with one chunk or two."""


@dataclass(frozen=True, slots=True)
class _Costs:
    """What a product costs on an H200, in microseconds."""

    start: float
    multiply: float
    """100,000 products of scalars, of one multiprocessor."""
    read: float
    """The same, for reading local memory where a work item uses each scalar once."""
    wait: float
    """A step that waits for its loads, if few groups run; half of it with more than two stages."""
    load: float
    """The same, for each vector that a work item loads."""
    add: float
    """Adding the sums of several groups, if they are few."""
    add_each: float
    """The same, for a million sums of a group."""


_COSTS: Mapping[MatrixUnit, _Costs] = {
    "": _Costs(3.3, 0.5, 0.26, 0.67, 0.0, 0.7, 0.03),
    "tf32": _Costs(3.46, 0.16, 0.159, 0.105, 0.057, 0.31, 0.162),
    "fp16": _Costs(3.48, 0.149, 0.043, 0.187, 0.043, 0.31, 0.279),
}
_SMALLEST = TileShape(8, 8, 1, 1)
"""For processors with small groups and little local memory."""
_MOST = 8
"""Candidates for measured tuning."""


def tile_shapes(sizes: Sizes, arch: Architecture, copies: bool = False) -> list[TileShape]:
    """Candidates, the one with the shortest expected time first; none if no group fits this
    processor.

    ``copies``: vectors of both sides may be copied to local memory as they are.
    """
    # Registers for 64 sums of a work item are what NVIDIA's GPUs have.
    shapes = [s for s in _SHAPES if arch.family == "nvidia" or s.rows * s.columns <= 2]
    if arch.unit:
        warps = [
            replace(shape, unit=arch.unit, chunks=chunks, stages=stages)
            for shape in WARP_SHAPES
            for chunks in (1, 2)
            for stages in ((2, 3, 4) if copies else (2,))
        ]
        shapes = [shape for shape in warps if _fits(shape, arch)] or shapes
    allowed = [
        replace(shape, splits=splits)
        for shape in [s for s in shapes if _fits(s, arch)] or [_SMALLEST]
        if _fits(shape, arch)
        for splits in (1, 2, 4, 8)
        if splits == 1 or _is_worth_splitting(shape, splits, sizes, arch)
    ]
    return sorted(allowed, key=lambda shape: expected_us(shape, sizes, arch))[:_MOST]


def _fits(shape: TileShape, arch: Architecture) -> bool:
    enough = shape.items * shape.parts <= arch.max_group
    return enough and shape.local_bytes <= arch.local_bytes


def _is_worth_splitting(shape: TileShape, splits: int, sizes: Sizes, arch: Architecture) -> bool:
    """Whether the groups are few, and each still has some tiles along the inner axis."""
    few = shape.groups(sizes) * splits <= 6 * arch.compute_units
    return few and sizes.inner >= 64 * shape.parts * splits


def expected_us(shape: TileShape, sizes: Sizes, arch: Architecture) -> float:
    """Microseconds on an H200, to compare tiles: 12 % from the measured ones in the mean, over 900
    products of seven networks in float32, 1,800 in TF32 and 1,500 in fp16.

    A group takes its steps one after the other. If few groups share a compute unit, a step takes as
    long as its loads; if many do, as long as all their multiplications and reads of local memory.
    """
    cost = _COSTS[shape.unit]
    side, square = shape.rows + shape.columns, shape.rows * shape.columns
    work = shape.depth * shape.height * shape.width * shape.parts / 1e5
    busy_us = work * (cost.multiply + cost.read * side / square)
    threads = shape.items * shape.parts
    loads = ceil_div(shape.depth // 4 * (shape.height + shape.width), shape.items)
    ahead = shape.stages > 2
    wait_us = (cost.wait + cost.load * loads) / (2 if ahead else 1)
    registers = 16 * square + 4 * side + 40
    if shape.unit:
        registers = min(255, int(12.9 * (square + side + 4 + (0 if ahead else loads / 2))))
    together = min(32, 2048 // threads, 4 * arch.local_bytes // shape.local_bytes)
    together = max(1, min(together, 65536 // (threads * registers)))
    groups = ceil_div(shape.groups(sizes) * shape.splits, arch.compute_units)
    step_us = max(wait_us * ceil_div(groups, together), busy_us * groups)
    sums = sizes.rows * sizes.columns * sizes.matrices
    adding_us = cost.add + cost.add_each * 1e-6 * sums * shape.splits if shape.splits > 1 else 0.0
    return cost.start + shape.inner_tiles(sizes) * step_us + adding_us
