"""Matrix products in tiles, for GPUs with fast local memory: the text that all of them share.

A group of work items copies a tile of each side to local memory while it multiplies the previous
tiles. Each work item keeps a square of sums in registers. If a product has too few tiles to fill
the processor, several parts of a group, or several groups, share the inner axis, and their sums are
added.

A convolution is such a product, too: its rows are pixels, its columns output channels
(`conv_tiled`). That is implicit GEMM as in cuDNN (Chetlur et al., arXiv:1410.0759).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import Grid, ceil_div, indented

DEPTH = 16
"""Scalars of a tile along the inner axis: four vectors of four."""
_PAD = 4
_ALIGNED = "__attribute__((aligned(16)))"
"""Scalars of local memory are read by vectors, too."""


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
    """Division of the work. A work item sums 4 * ``rows`` rows times 4 * ``columns`` columns."""

    items_x: int
    items_y: int
    rows: int
    columns: int
    parts: int = 1
    """Parts of a group. Each has ``items_x * items_y`` work items and every ``parts``-th tile."""
    splits: int = 1
    """Groups that share the inner axis; a separate kernel adds their sums."""

    @property
    def height(self) -> int:
        """Rows of a tile."""
        return self.items_x * 4 * self.rows

    @property
    def width(self) -> int:
        """Columns of a tile."""
        return self.items_y * 4 * self.columns

    @property
    def items(self) -> int:
        return self.items_x * self.items_y

    @property
    def local_bytes(self) -> int:
        """Bytes of local memory: two tiles for each part, and memory for adding the parts' sums."""
        tiles = 2 * self.parts * DEPTH * (self.height + _PAD + self.width) * 4
        return tiles + self.parts // 2 * self.items * 16

    def groups(self, sizes: Sizes) -> int:
        tiles = ceil_div(sizes.rows, self.height) * ceil_div(sizes.columns, self.width)
        return tiles * sizes.matrices

    def inner_tiles(self, sizes: Sizes) -> int:
        """Tiles along the inner axis that a part of a group multiplies, one after the other."""
        return ceil_div(sizes.inner, DEPTH * self.parts * self.splits)


_SHAPES = (
    TileShape(16, 8, 2, 2),
    TileShape(16, 8, 1, 2),
    TileShape(8, 8, 1, 2, 2),
    TileShape(4, 8, 1, 2, 4),
    TileShape(8, 8, 1, 1, 4),
)
"""From large tiles, which load the least for each sum, to small tiles, which give more groups. The
best of these takes 1.01 of the time of the best of 60 divisions that were tried on an H200."""
_SMALLEST = TileShape(8, 8, 1, 1)
"""For processors with small groups and little local memory."""
_MOST = 8
"""Candidates for measured tuning."""


def tile_shapes(sizes: Sizes, arch: Architecture) -> list[TileShape]:
    """Candidates, the one with the shortest expected time first; none if no group fits this
    processor."""
    # Registers for 64 sums of a work item are what NVIDIA's GPUs have.
    shapes = [s for s in _SHAPES if arch.family == "nvidia" or s.rows * s.columns <= 2]
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
    return few and sizes.inner // (DEPTH * shape.parts * splits) >= 4


def expected_us(shape: TileShape, sizes: Sizes, arch: Architecture) -> float:
    """Microseconds on an H200, to compare tiles: 12 % from the measured ones in the mean, over 900
    products of seven networks.

    A group takes its steps one after the other. If few groups share a compute unit, a step takes as
    long as its loads; if many do, as long as all their multiplications and reads of local memory.
    """
    side = shape.rows + shape.columns
    work = DEPTH * shape.height * shape.width * shape.parts / 1e5
    busy_us = work * (0.5 + 0.26 * side / (shape.rows * shape.columns))
    threads = shape.items * shape.parts
    registers = 16 * shape.rows * shape.columns + 4 * side + 40
    together = min(32, 2048 // threads, 4 * arch.local_bytes // shape.local_bytes)
    together = max(1, min(together, 65536 // (threads * registers)))
    groups = ceil_div(shape.groups(sizes) * shape.splits, arch.compute_units)
    step_us = max(0.67 * ceil_div(groups, together), busy_us * groups)
    sums = sizes.rows * sizes.columns * sizes.matrices
    adding_us = 0.7 + 0.03e-6 * sums * shape.splits if shape.splits > 1 else 0.0
    return 3.3 + shape.inner_tiles(sizes) * step_us + adding_us


class Tiled(ABC):
    """The text of a kernel that computes products in tiles.

    A subclass says how a work item loads its vectors: ``fx0``, ``fx1``, ... are four neighbours
    along the inner axis in a row, ``fw0``, ``fw1``, ... four neighbours in a row of the right side.
    """

    in_rows: bool = False
    """Whether a row lies in one piece in memory, and not a column: then work items that are
    neighbours load and store neighbours in a row."""

    def __init__(self, sizes: Sizes, tile_shape: TileShape) -> None:
        self.sizes = sizes
        self.tile_shape = tile_shape
        self.vectors = ceil_div(sizes.columns, 4)
        """Vectors of four columns that a row has."""
        self.columns = ceil_div(self.vectors * 4, tile_shape.width) * tile_shape.width
        """Number of columns, rounded up to whole tiles."""
        self.steps = tile_shape.inner_tiles(sizes)
        self.group: Grid = (tile_shape.items, tile_shape.parts, 1)
        self.grid: Grid = (
            ceil_div(sizes.rows, tile_shape.height) * tile_shape.items,
            (self.columns // tile_shape.width) * tile_shape.parts,
            tile_shape.splits * sizes.matrices,
        )

    @property
    def _pad(self) -> int:
        """Scalars behind each row of local memory, so that neighbours store to different banks."""
        return _PAD if self.in_rows else 0

    @property
    def all_inner(self) -> int:
        """Length of the inner axis, rounded up to whole tiles of all parts."""
        return self.steps * self.tile_shape.parts * self.tile_shape.splits * DEPTH

    @abstractmethod
    def row_lines(self, number: int) -> list[str]:
        """Lines that declare what `load_row` needs of the row ``m{number}``."""

    @abstractmethod
    def load_row(self, number: int) -> list[str]:
        """Lines that set ``fx{number}`` to the ``q``-th four scalars of the row ``m{number}``, or
        to zeros if there are none."""

    @abstractmethod
    def load_columns(self, number: int) -> str:
        """A line that sets ``fw{number}`` to four scalars from ``right`` on, a column that may be
        beyond the last one, in the row ``k`` of the right side; to zeros if there are none."""

    @abstractmethod
    def place_lines(self) -> str:
        """A line that declares the place of the row ``m`` in the result."""

    def text(self, store: list[str], start: Sequence[str] = ()) -> str:
        """The body.

        Args:
            store: lines for ``total``, four columns (vector ``block``) of the row ``m``.
            start: lines before all others.
        """
        t = self.tile_shape
        x, y = f"item % {t.items_x}", f"item / {t.items_x}"
        if self.in_rows:
            x, y = f"item / {t.items_y}", f"item % {t.items_y}"
        return "\n".join(
            [
                *indented(start),
                "  const int item = get_local_id(0), part = get_local_id(1);",
                f"  const int tx = {x}, ty = {y};",
                f"  const int first = get_group_id(0) * {t.height};",
                f"  const int column = get_group_id(1) * {t.width};",
                f"  const int split = get_group_id(2) % {t.splits};",
                f"  __local float xs[2][{t.parts}][{DEPTH}][{t.height + self._pad}] {_ALIGNED};",
                f"  __local float4 ws[2][{t.parts}][{DEPTH}][{t.width // 4}];",
                *self._loaders(),
                *(f"  float4 a{r}_{c} = (float4)(0.0f);" for r, c in self._sums()),
                f"  int tile = split * {self.steps * t.parts} + part;",
                *self._load(),
                f"  for (int step = 0; step < {self.steps}; step++) {{",
                "    const int now = step & 1;",
                *self._keep(),
                "    barrier(CLK_LOCAL_MEM_FENCE);",
                f"    tile += {t.parts};",
                f"    if (step + 1 < {self.steps}) {{",
                *self._load(),
                "    }",
                "    #pragma unroll",
                f"    for (int k = 0; k < {DEPTH}; k++) {{",
                *self._multiply(),
                "    }",
                "  }",
                *self._add_parts(),
                *self._finish(store),
            ]
        )

    def _sums(self) -> list[tuple[int, int]]:
        t = self.tile_shape
        return [(r, c) for r in range(4 * t.rows) for c in range(t.columns)]

    @property
    def _x_loads(self) -> int:
        return ceil_div(DEPTH // 4 * self.tile_shape.height, self.tile_shape.items)

    @property
    def _w_loads(self) -> int:
        return ceil_div(DEPTH * self.tile_shape.width // 4, self.tile_shape.items)

    def _loaders(self) -> list[str]:
        """Lines that declare the vectors that an item loads of each tile."""
        t = self.tile_shape
        text = []
        for i in range(self._x_loads):
            xp, xq = f"xv{i} % {t.height}", f"xv{i} / {t.height}"
            if self.in_rows:
                xp, xq = f"xv{i} / {DEPTH // 4}", f"xv{i} % {DEPTH // 4}"
            text += [
                f"  const int xv{i} = item + {i * t.items}, xp{i} = {xp}, xq{i} = {xq};",
                f"  const int m{i} = first + xp{i};",
                *indented(self.row_lines(i)),
                f"  float4 fx{i};",
            ]
        return [*text, *(f"  float4 fw{i};" for i in range(self._w_loads))]

    def _load(self) -> list[str]:
        """Lines that load an item's vectors of the current tile."""
        t = self.tile_shape
        vectors = t.width // 4
        text = []
        for i in range(self._x_loads):
            text += [
                f"    {{ const int q = tile * {DEPTH // 4} + xq{i};",
                *indented(self.load_row(i), 3),
                "    }",
            ]
        for i in range(self._w_loads):
            text += [
                f"    {{ const int v = item + {i * t.items}, k = tile * {DEPTH} + v / {vectors};",
                f"      const int right = column + v % {vectors} * 4;",
                f"      {self.load_columns(i)} }}",
            ]
        return text

    def _keep(self) -> list[str]:
        """Lines that store loaded vectors in local memory; some items of large groups have none."""
        t = self.tile_shape
        text = []
        for i in range(self._x_loads):
            inside = f"xp{i} < {t.height}" if self.in_rows else f"xq{i} < {DEPTH // 4}"
            guard = f"if ({inside}) " if self._spare(DEPTH // 4 * t.height) else ""
            lanes = "".join(
                f" xs[now][part][xq{i} * 4 + {lane}][xp{i}] = fx{i}.{axis};"
                for lane, axis in enumerate("xyzw")
            )
            text.append(f"    {guard}{{{lanes} }}")
        for i in range(self._w_loads):
            vectors = t.width // 4
            spare = self._spare(DEPTH * vectors)
            guard = f"if (item + {i * t.items} < {DEPTH * vectors}) " if spare else ""
            at = f"[(item + {i * t.items}) / {vectors}][(item + {i * t.items}) % {vectors}]"
            text.append(f"    {guard}ws[now][part]{at} = fw{i};")
        return text

    def _spare(self, vectors: int) -> bool:
        return vectors % self.tile_shape.items != 0

    def _multiply(self) -> list[str]:
        t = self.tile_shape
        text = []
        for c in range(t.columns):
            text.append(f"      const float4 w{c} = ws[now][part][k][{c * t.items_y} + ty];")
        for g in range(t.rows):
            at = f"&xs[now][part][k][{g * t.items_x * 4} + tx * 4]"
            text.append(f"      const float4 p{g} = *(__local const float4*)({at});")
        for r, c in self._sums():
            text.append(f"      a{r}_{c} += w{c} * p{r // 4}.{'xyzw'[r % 4]};")
        return text

    def _add_parts(self) -> list[str]:
        """Lines that add the sums of all parts of the group in local memory."""
        t = self.tile_shape
        if t.parts == 1:
            return []
        text = [f"  __local float4 shared[{t.parts // 2}][{t.items}];"]
        half = t.parts // 2
        while half:
            for r, c in self._sums():
                text += [
                    "  barrier(CLK_LOCAL_MEM_FENCE);",
                    f"  if (part >= {half} && part < {2 * half})"
                    f" shared[part - {half}][item] = a{r}_{c};",
                    "  barrier(CLK_LOCAL_MEM_FENCE);",
                    f"  if (part < {half}) a{r}_{c} += shared[part][item];",
                ]
            half //= 2
        return [*text, "  if (part > 0) return;"]

    def _finish(self, store: list[str]) -> list[str]:
        t = self.tile_shape
        text = []
        for r in range(4 * t.rows):
            at = f"{r // 4 * t.items_x * 4} + tx * 4 + {r % 4}"
            text += [
                f"  {{ const int m = first + {at};",
                f"    if (m < {self.sizes.rows}) {{",
                f"    {self.place_lines()}",
            ]
            for c in range(t.columns):
                text += [
                    f"    {{ const int block = column / 4 + {c * t.items_y} + ty;",
                    f"      if (block < {self.vectors}) {{",
                    f"        const float4 total = a{r}_{c};",
                    *indented(store, 4),
                    "      }",
                    "    }",
                ]
            text += ["    }", "  }"]
        return text
