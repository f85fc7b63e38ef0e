"""Products of tiles by matrix units (tensor cores), in TF32 or in 16-bit floats, with float32 sums.

A warp of 32 work items multiplies 16 rows by 16 columns of a chunk of the inner axis at once. The
text calls functions for it that the compiler's prelude defines, ``left_of_tf32``,
``multiply_tf32`` and so on, as OpenCL C has none.

A chunk is 64 bytes of a row or a column in local memory: four quarters. Item ``lane`` of a warp
multiplies the quarter ``lane % 4`` of the rows ``lane / 4`` and ``lane / 4 + 8``. That is another
order of the inner axis than the instruction's, but the same for both sides, so that one load of 16
bytes serves two instructions. It has sums of four columns, ``lane % 4 * 4`` and its neighbours, in
these two rows. The quarters of a row are exchanged (by ``row / 2 % 4``), so that neighbours use
different banks.

Source: NVIDIA, PTX ISA, "Warp-level matrix instructions", mma.m16n8k8 and mma.m16n8k16.
"""

from coexec.engines.kernels.tile_shapes import ALIGNED, DEPTH, TileShape

_CTYPES = {"tf32": "float", "fp16": "ushort"}


class MatrixUnits:
    """The parts of a kernel's text that depend on the matrix units, see `tiles`."""

    def __init__(self, tile_shape: TileShape, raw_left: bool, raw_right: bool) -> None:
        """``raw_left``, ``raw_right``: the vectors of that side have the type of the units."""
        self._shape = tile_shape
        self._keep_left, self._keep_right = (
            f"keep_{'raw' if raw else tile_shape.unit}" for raw in (raw_left, raw_right)
        )
        self._depth = DEPTH[tile_shape.unit]

    def declare(self) -> list[str]:
        t, ctype = self._shape, _CTYPES[self._shape.unit]
        warps = t.items_x // 8
        return [
            "const int lane = item % 32, warp = item / 32;",
            f"const int wx = warp % {warps}, wy = warp / {warps};",
            *(
                f"__local {ctype} {name}[{t.stages}][{t.parts}][{size * t.depth}] {ALIGNED};"
                for name, size in (("xs", t.height), ("ws", t.width))
            ),
        ]

    def keep_row(self, vector: str, row: str, k: str) -> str:
        place = self.place(self._shape.height, row, k)
        return f"{self._keep_left}({vector}, {place}, xs[now][part]);"

    def keep_columns(self, vector: str, k: str, column: str, along_inner: bool) -> str:
        width, unit = self._shape.width, self._shape.unit
        if along_inner:
            return f"{self._keep_right}({vector}, {self.place(width, column, k)}, ws[now][part]);"
        return " ".join(
            f"keep_one_{unit}({vector}.{axis}, {self.place(width, f'({column} + {lane})', k)},"
            f" ws[now][part]);"
            for lane, axis in enumerate("xyzw")
        )

    def place(self, rows: int, row: str, k: str) -> str:
        """The place of a scalar in a tile: [chunk][row][quarter, exchanged][scalar]."""
        depth, quarter = self._depth, self._depth // 4
        k = f"({k})"
        exchanged = f"({k} % {depth} / {quarter} ^ {row} / 2 % 4)"
        scalar = f"{exchanged} * {quarter} + {k} % {quarter}"
        return f"({k} / {depth} * {rows} + {row}) * {depth} + {scalar}"

    def multiply(self) -> list[str]:
        t = self._shape
        lines = ["#pragma unroll", f"for (int chunk = 0; chunk < {t.chunks}; chunk++) {{"]
        sides = (("left", "x", t.rows, t.height, "wx"), ("right", "w", t.columns, t.width, "wy"))
        for side, name, count, size, warp in sides:
            for i in range(count):
                at = f"(chunk * {size} + {warp} * {16 * count} + {16 * i}) * {self._depth}"
                source = f"{side}_of_{t.unit}({name}s[now][part] + {at}, lane)"
                lines.append(f"  const {side}_{t.unit} {name}{i} = {source};")
        lines += [
            f"  multiply_{t.unit}(&a{2 * r}_{c}, &a{2 * r + 1}_{c}, x{r}, w{c}, lane);"
            for r in range(t.rows)
            for c in range(t.columns)
        ]
        return [*lines, "}"]

    def row(self, number: int) -> str:
        first = number // 2 * 16 + number % 2 * 8
        return f"wx * {16 * self._shape.rows} + {first} + lane / 4"

    def vector(self, number: int) -> str:
        return f"wy * {4 * self._shape.columns} + {4 * number} + lane % 4"
