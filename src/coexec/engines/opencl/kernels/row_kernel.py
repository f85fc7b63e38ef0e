"""Kernels that go along rows of a tensor: loops over parts of a row, and the work items for them.

A work item goes along one row, or a group of work items shares one and joins its parts in local
memory (on GPUs, where rows are long).
"""

from collections.abc import Callable, Sequence

from coexec.engines.opencl.architecture import Architecture
from coexec.engines.opencl.kernels.base import CTYPES, KernelLaunch, Source, Value, ceil_div
from coexec.engines.opencl.kernels.output import Output
from coexec.engines.opencl.kernels.positions import neighbours, split
from coexec.engines.opencl.kernels.rows import Access, IndexMap, RowLayout, RowPart

__all__ = ["RowKernel", "sharing"]


def sharing(arch: Architecture, steps: int, most: int = 256) -> int:
    """How many work items should share ``steps``: a power of two; one where a core has a thread."""
    if arch.family == "cpu":
        return 1
    return 1 << (min(steps, most, arch.max_group).bit_length() - 1)


class RowKernel:
    """A kernel over the rows of the tensor that ``source`` knows as ``x``.

    Its lines may use ``row`` and, for each axis that tells rows apart, p0, p1, ...
    """

    def __init__(
        self,
        source: Source,
        x: Value,
        along: Sequence[int],
        *,
        sizes: Sequence[int] | None = None,
        index_map: IndexMap | None = None,
        vectors: bool = True,
        columns: bool = False,
        shared: bool = True,
    ) -> None:
        """``shared``: whether work items may share a row. The others: see `RowLayout`."""
        self._source = source
        self.layout = RowLayout(source.arch, x, along, sizes or x.shape, index_map, vectors,
                                columns and source.arch.family == "cpu")  # fmt: skip
        if self.layout.kind in ("contiguous", "columns"):
            source.define(neighbours("x", x.half, self.layout.block))
        self.ctype = source.arch.vector if self.layout.side_by_side else CTYPES[x.dtype]
        """Of what is found of a row."""
        self._steps = self.layout.vectors().count + self.layout.rest().count
        self.sharing = self._sharing() if shared else 1
        """Work items that share a row."""

    def _sharing(self) -> int:
        """Where rows are long, and few or read best by neighbours."""
        arch, layout = self._source.arch, self.layout
        few = layout.count < 64 * arch.compute_units or layout.kind == "contiguous"
        return sharing(arch, self._steps) if few and self._steps >= 32 else 1

    def loop(
        self, part: RowPart, body: Callable[[Access], Sequence[str]], first: int = 0
    ) -> list[str]:
        """Lines that go along ``part`` from ``first`` on, with its elements in ``v``."""
        if part.count <= first:
            return []
        access = part.access("k")
        start = "item" if self.sharing > 1 else str(first)
        return [
            f"for (int k = {start}; k < {part.count}; k += {self.sharing}) {{",
            f"  const {part.ctype} v = {part.load.format(access.at)};",
            *(f"  {line}" for line in body(access)),
            "}",
        ]

    def each(self, output: Output, make: Callable[[Access], str]) -> list[str]:
        """Lines that store what ``make`` says of elements ``v``, in a tensor of equal layout."""
        layout = self.layout
        if layout.kind in ("contiguous", "columns") and not output.has_epilogue:
            self._source.define(neighbours("y", output.value.half, layout.block))
            lines = []
            for part in (layout.vectors(), layout.rest()):
                lines += self.loop(part, lambda access: [f"PUTS_y({access.at}, {make(access)});"])
            return lines
        part = layout.vectors(filled=False) if output.vector else layout.scalars()
        return self.loop(part, lambda access: output.store(make(access), access.coordinates))

    def finish(self, lines: Sequence[str]) -> KernelLaunch:
        """The finished kernel of these lines."""
        self._source.lines("\n".join(f"  {line}" for line in (*self._start(), *lines)))
        if self.sharing > 1:
            return self._source.finish((self.sharing, self.layout.count), (self.sharing, 1, 1))
        return self._source.finish(self._grid())

    def _start(self) -> list[str]:
        """Lines that say which row a work item is at."""
        width, _ = self._grid()
        layout = self.layout
        if self.sharing > 1:
            lines = ["const int item = get_local_id(0), row = get_global_id(1);"]
        else:
            lines = [f"const int row = get_global_id(1) * {width} + get_global_id(0);"]
            lines += [f"if (row >= {layout.count}) return;"] if layout.count % width else []
        texts = split("row", [layout.extents[a] for a in layout.kept])
        axes = zip(layout.kept, texts, strict=True)
        return [*lines, *(f"const int p{a} = {text};" for a, text in axes)]

    def _grid(self) -> tuple[int, int]:
        """One thread of a CPU computes a whole group, so long rows are groups of their own."""
        count = width = self.layout.count
        if self._source.arch.family == "cpu":
            width = min(count, max(1, 4096 // self._steps))
        return width, ceil_div(count, width)
