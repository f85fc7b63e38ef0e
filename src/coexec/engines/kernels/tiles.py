"""Matrix products in tiles, for GPUs with fast local memory: the text that all of them share.

A group of work items copies a tile of each side to local memory while it multiplies the previous
tiles. Each work item keeps a square of sums in registers. If a product has too few tiles to fill
the processor, several parts of a group, or several groups, share the inner axis, and their sums are
added.

Matrix units multiply tiles of lower precision (`matrix_units`); then a warp of 32 work items keeps
squares of 16 times 16 sums. Loads, parts, splits and the end of the kernel are the same.

A convolution is such a product, too: its rows are pixels, its columns output channels
(`conv_tiled`). That is implicit GEMM as in cuDNN (Chetlur et al., arXiv:1410.0759).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from coexec.arrays import Array, aligned, aligned_zeros
from coexec.engines.kernels import matrix_units
from coexec.engines.kernels.base import Grid, ceil_div, indented
from coexec.engines.kernels.tile_shapes import ALIGNED, PAD, Sizes, TileShape


class Tiled(ABC):
    """The text of a kernel that computes products in tiles.

    A subclass says how a work item loads its vectors: ``fx0``, ``fx1``, ... are four neighbours
    along the inner axis in a row, ``fw0``, ``fw1``, ... four neighbours in a row of the right side,
    or along the inner axis.
    """

    in_rows: bool = False
    """Whether a row lies in one piece in memory, and not a column: then work items that are
    neighbours load and store neighbours in a row."""
    packed: bool = True
    """Whether the right side is a constant, packed by `packed_right`."""
    inner_right: bool = False
    """Whether vectors of a right side that is not packed are neighbours along the inner axis."""
    raw_left: bool = False
    """Whether vectors of the left side are 16-bit floats that matrix units take as they are."""
    left_name = "x"
    """The name of the left side."""
    left_vector = "LOAD_x({})"
    """Its vector at a position, as an expression."""

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
    def all_inner(self) -> int:
        """Length of the inner axis, rounded up to whole tiles of all parts."""
        return self.steps * self.tile_shape.parts * self.tile_shape.splits * self.tile_shape.depth

    @property
    def bounds(self) -> list[str]:
        """Conditions, with ``m`` and ``q``, for a vector of the left side to exist: those that the
        last tile can violate."""
        inside = [f"q < {self.sizes.inner // 4}"] if self.all_inner > self.sizes.inner else []
        whole = self.sizes.rows % self.tile_shape.height == 0
        return inside if whole else [*inside, f"m < {self.sizes.rows}"]

    @abstractmethod
    def row_lines(self, number: int) -> list[str]:
        """Lines that declare what `load_row` needs of the row ``m{number}``, which may be past
        the last one."""

    @abstractmethod
    def left_place(self, number: int) -> tuple[list[str], str, str]:
        """Where the ``q``-th four scalars of the row ``m{number}`` are: lines before, the condition
        for them to exist, the position of the vector in the left side."""

    def load_row(self, number: int) -> list[str]:
        """Lines that set ``fx{number}`` to these four scalars, or to zeros if there are none."""
        lines, inside, at = self.left_place(number)
        vector = f"((__global const ushort4*){self.left_name})[{at}]"
        if not self.raw_left:
            vector = self.left_vector.format(at)
        return [
            *lines,
            f"fx{number} = ({self.left_type})(0);",
            f"if ({inside}) fx{number} = {vector};",
        ]

    def load_columns(self, number: int) -> str:
        """A line that sets ``fw{number}`` to four scalars from the row ``k`` and the column
        ``right`` on of the right side; to zeros if they are beyond the last ones. Only for a right
        side that is not packed."""
        raise NotImplementedError

    def packed_right(self, matrix: Array) -> Array:
        """A constant right side [inner, columns], for the kernel's vectors ``LOAD_w``: filled up to
        whole tiles with zeros; vectors lie along the axis along which they are multiplied."""
        full = aligned_zeros((self.all_inner, self.columns))
        full[: matrix.shape[0], : matrix.shape[1]] = matrix
        if not self.tile_shape.unit:
            return full
        stored = np.float16 if self.tile_shape.unit == "fp16" else np.float32
        return aligned(full.reshape(-1, 4, self.columns).transpose(0, 2, 1).astype(stored))

    @abstractmethod
    def place_lines(self) -> str:
        """A line that declares the place of the row ``m`` in the result."""

    def text(self, store: list[str], start: Sequence[str] = ()) -> str:
        """The body.

        Args:
            store: lines for ``total``, four columns (vector ``block``) of the row ``m``.
            start: lines before all others.
        """
        t, units = self.tile_shape, self._units
        part = "get_local_id(1)" if t.parts > 1 else "0"
        return "\n".join(
            [
                *indented(start),
                f"  const int item = get_local_id(0), part = {part};",
                *indented(units.declare()),
                f"  const int first = get_group_id(0) * {t.height};",
                f"  const int column = get_group_id(1) * {t.width};",
                f"  const int split = get_group_id(2) % {t.splits};",
                *self._loaders(),
                *(f"  float4 a{r}_{c} = (float4)(0.0f);" for r, c in self._sums()),
                f"  int tile = split * {self.steps * t.parts} + part;",
                *(self._through_registers() if t.stages == 2 else self._ahead()),
                *self._add_parts(),
                *self._finish(store),
            ]
        )

    def _through_registers(self) -> list[str]:
        """The loop over tiles: the next one is loaded to registers while this one is multiplied."""
        return [
            *self._load(),
            f"  for (int step = 0; step < {self.steps}; step++) {{",
            "    const int now = step & 1;",
            *self._keep(),
            "    barrier(CLK_LOCAL_MEM_FENCE);",
            f"    tile += {self.tile_shape.parts};",
            f"    if (step + 1 < {self.steps}) {{",
            *self._load(),
            "    }",
            *indented(self._units.multiply(), 2),
            "  }",
        ]

    def _ahead(self) -> list[str]:
        """The loop over tiles: several are being copied while one is multiplied."""
        t, ahead = self.tile_shape, self.tile_shape.stages - 1
        return [
            f"  for (int slot = 0; slot < {min(ahead, self.steps)}; slot++) {{",
            *self._copy(),
            f"    commit_copies(); tile += {t.parts};",
            "  }",
            *(["  commit_copies();"] * (ahead - self.steps)),
            f"  for (int step = 0; step < {self.steps}; step++) {{",
            f"    wait_copies({ahead - 1});",
            "    barrier(CLK_LOCAL_MEM_FENCE);",
            f"    const int now = step % {t.stages}, slot = (step + {ahead}) % {t.stages};",
            f"    if (step + {ahead} < {self.steps}) {{",
            *self._copy(),
            "    }",
            f"    commit_copies(); tile += {t.parts};",
            *indented(self._units.multiply(), 2),
            "  }",
        ]

    @cached_property
    def _units(self) -> "_Units":
        if self.tile_shape.unit:
            return matrix_units.MatrixUnits(self.tile_shape, self.raw_left, self._raw_right)
        return _WorkItems(self.tile_shape, self.in_rows)

    @property
    def _along_inner(self) -> bool:
        """Whether vectors of the right side are neighbours along the inner axis."""
        return bool(self.tile_shape.unit) if self.packed else self.inner_right

    @property
    def _raw_right(self) -> bool:
        return self.packed and self.tile_shape.unit == "fp16"

    @property
    def left_type(self) -> str:
        """The type of ``fx0``, ``fx1``, ..."""
        return "ushort4" if self.raw_left else "float4"

    def _sums(self) -> list[tuple[int, int]]:
        t = self.tile_shape
        return [(r, c) for r in range(t.item_rows) for c in range(t.columns)]

    @property
    def _x_vectors(self) -> int:
        return self.tile_shape.depth // 4 * self.tile_shape.height

    @property
    def _w_vectors(self) -> int:
        return self.tile_shape.depth * self.tile_shape.width // 4

    @property
    def _x_loads(self) -> int:
        return ceil_div(self._x_vectors, self.tile_shape.items)

    @property
    def _w_loads(self) -> int:
        return ceil_div(self._w_vectors, self.tile_shape.items)

    def _loaders(self) -> list[str]:
        """Lines that declare the vectors that an item loads of each tile."""
        t = self.tile_shape
        text = []
        for i in range(self._x_loads):
            if self.in_rows:
                xp, xq = self._divided(i, t.depth // 4)
            else:
                xq, xp = self._divided(i, t.height)
            text += [
                f"  const int xp{i} = {xp}, xq{i} = {xq};",
                f"  const int m{i} = first + xp{i};",
                *indented(self.row_lines(i)),
            ]
        if t.stages > 2:
            return text
        text += [f"  {self.left_type} fx{i};" for i in range(self._x_loads)]
        return [*text, *(f"  {self._right_type} fw{i};" for i in range(self._w_loads))]

    def _load(self) -> list[str]:
        """Lines that load an item's vectors of the current tile."""
        t = self.tile_shape
        text = []
        for i in range(self._x_loads):
            text += [
                f"    {{ const int m = m{i}, q = tile * {t.depth // 4} + xq{i};",
                *indented(self.load_row(i), 3),
                "    }",
            ]
        for i in range(self._w_loads):
            depth, right = self._place_of_columns(i)
            if self.packed:
                row = f"k / 4 * {self.columns} + right"
                at = row if self._along_inner else f"(k * {self.columns} + right) / 4"
                load = f"fw{i} = ((__global const ushort4*)w)[{at}];"
                if not self._raw_right:
                    load = f"fw{i} = LOAD_w({at});"
            else:
                load = self.load_columns(i)
            text += [
                f"    {{ const int k = tile * {t.depth} + {depth}, right = column + {right};",
                f"      {load} }}",
            ]
        return text

    def _copy(self) -> list[str]:
        """Lines that copy an item's vectors of the current tile to the stage ``slot``."""
        t, units = self.tile_shape, self._units
        assert isinstance(units, matrix_units.MatrixUnits) and self.packed
        text = []
        for i in range(self._x_loads):
            lines, inside, at = self.left_place(i)
            place = units.place(t.height, f"xp{i}", f"xq{i} * 4")
            source = f"(__global const ushort4*){self.left_name} + ({at})"
            copy = f"copy_raw(xs[slot][part] + {place}, {source}, {inside});"
            text += [
                f"    {{ const int m = m{i}, q = tile * {t.depth // 4} + xq{i};",
                *indented(lines, 3),
                f"      {self._if_left(i)}{copy} }}",
            ]
        for i in range(self._w_loads):
            k, right = self._place_of_columns(i)
            place = units.place(t.width, right, k)
            at = f"(tile * {t.depth} + {k}) / 4 * {self.columns} + column + {right}"
            copy = f"copy_raw(ws[slot][part] + {place}, (__global const ushort4*)w + {at}, 1);"
            text.append(f"    {self._if_right(i)}{copy}")
        return text

    @property
    def _right_type(self) -> str:
        return "ushort4" if self._raw_right else "float4"

    def _place_of_columns(self, number: int) -> tuple[str, str]:
        """Row and column in the tile of the first scalar of ``fw{number}``, as expressions."""
        width, depth = self.tile_shape.width, self.tile_shape.depth
        if self._along_inner and not self.packed:
            column, vector = self._divided(number, depth // 4)
            return f"{vector} * 4", column
        if self._along_inner:
            vector, column = self._divided(number, width)
            return f"{vector} * 4", column
        k, vector = self._divided(number, width // 4)
        return k, f"{vector} * 4"

    def _divided(self, number: int, by: int) -> tuple[str, str]:
        """Quotient and remainder of the index of an item's vector with this number, as expressions.
        Compilers do not see where they are the same for all items or all vectors."""
        items = self.tile_shape.items
        start = number * items
        if items % by == 0:
            return f"(item / {by} + {start // by})", f"(item % {by})"
        if by % items == 0:
            return f"{start // by}", f"(item + {start % by})"
        return f"((item + {start}) / {by})", f"((item + {start}) % {by})"

    def _keep(self) -> list[str]:
        """Lines that store loaded vectors in local memory."""
        text = []
        for i in range(self._x_loads):
            keep = self._units.keep_row(f"fx{i}", f"xp{i}", f"xq{i} * 4")
            text.append(f"    {self._if_left(i)}{{ {keep} }}")
        for i in range(self._w_loads):
            place = self._place_of_columns(i)
            keep = self._units.keep_columns(f"fw{i}", *place, self._along_inner)
            text.append(f"    {self._if_right(i)}{{ {keep} }}")
        return text

    def _if_left(self, number: int) -> str:
        """The test whether an item has this vector of the left side, where some items of large
        groups have none."""
        t = self.tile_shape
        if self._x_vectors % t.items == 0:
            return ""
        inside = f"xp{number} < {t.height}" if self.in_rows else f"xq{number} < {t.depth // 4}"
        return f"if ({inside}) "

    def _if_right(self, number: int) -> str:
        """As `_if_left`, of the right side."""
        items = self.tile_shape.items
        if self._w_vectors % items == 0:
            return ""
        return f"if (item + {number * items} < {self._w_vectors}) "

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
        for r in range(t.item_rows):
            text += [
                f"  {{ const int m = first + {self._units.row(r)};",
                f"    if (m < {self.sizes.rows}) {{",
                f"    {self.place_lines()}",
            ]
            for c in range(t.columns):
                text += [
                    f"    {{ const int block = column / 4 + {self._units.vector(c)};",
                    f"      if (block < {self.vectors}) {{",
                    f"        const float4 total = a{r}_{c};",
                    *indented(store, 4),
                    "      }",
                    "    }",
                ]
            text += ["    }", "  }"]
        return text


class _Units(Protocol):
    """What multiplies: the parts of the text that depend on it."""

    def declare(self) -> list[str]:
        """Lines that declare the place of the work item and the tiles in local memory."""

    def keep_row(self, vector: str, row: str, k: str) -> str:
        """Statements that store four neighbours along the inner axis in the tile of the left
        side."""

    def keep_columns(self, vector: str, k: str, column: str, along_inner: bool) -> str:
        """Statements that store four neighbours in the tile of the right side: along the inner
        axis, or in a row."""

    def multiply(self) -> list[str]:
        """Lines that add the products of the tiles ``now`` to the sums."""

    def row(self, number: int) -> str:
        """The row in the tile of the sums ``a{number}_...``."""

    def vector(self, number: int) -> str:
        """The vector of columns in the tile of the sums ``a..._{number}``."""


class _WorkItems:
    """Work items multiply in float32; ``xs`` and ``ws`` are [inner axis][row or column]."""

    def __init__(self, tile_shape: TileShape, in_rows: bool) -> None:
        self._shape = tile_shape
        self._in_rows = in_rows

    def declare(self) -> list[str]:
        t = self._shape
        pad = PAD if self._in_rows else 0  # neighbours then store to different banks
        x, y = f"item % {t.items_x}", f"item / {t.items_x}"
        if self._in_rows:
            x, y = f"item / {t.items_y}", f"item % {t.items_y}"
        return [
            f"const int tx = {x}, ty = {y};",
            f"__local float xs[2][{t.parts}][{t.depth}][{t.height + pad}] {ALIGNED};",
            f"__local float4 ws[2][{t.parts}][{t.depth}][{t.width // 4}];",
        ]

    def keep_row(self, vector: str, row: str, k: str) -> str:
        return " ".join(
            f"xs[now][part][{k} + {lane}][{row}] = {vector}.{axis};"
            for lane, axis in enumerate("xyzw")
        )

    def keep_columns(self, vector: str, k: str, column: str, along_inner: bool) -> str:
        if not along_inner:
            return f"ws[now][part][{k}][({column}) / 4] = {vector};"
        return " ".join(
            f"((__local float*)ws[now][part][{k} + {lane}])[{column}] = {vector}.{axis};"
            for lane, axis in enumerate("xyzw")
        )

    def multiply(self) -> list[str]:
        t = self._shape
        lines = ["#pragma unroll", f"for (int k = 0; k < {t.depth}; k++) {{"]
        for c in range(t.columns):
            lines.append(f"  const float4 w{c} = ws[now][part][k][{self.vector(c)}];")
        for g in range(t.rows):
            at = f"&xs[now][part][k][{g * t.items_x * 4} + tx * 4]"
            lines.append(f"  const float4 p{g} = *(__local const float4*)({at});")
        for r in range(t.item_rows):
            factor = f"p{r // 4}.{'xyzw'[r % 4]}"
            lines += [f"  a{r}_{c} += w{c} * {factor};" for c in range(t.columns)]
        return [*lines, "}"]

    def row(self, number: int) -> str:
        return f"{number // 4 * self._shape.items_x * 4} + tx * 4 + {number % 4}"

    def vector(self, number: int) -> str:
        return f"{number * self._shape.items_y} + ty"
