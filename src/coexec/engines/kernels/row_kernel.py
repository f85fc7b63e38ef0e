"""Kernels that iterate over rows of a tensor: loops over parts of a row, folds of rows (sums,
maxima and others), and their work items.

A work item iterates over one row. Or a group of work items shares a row and merges its results in
local memory (on GPUs, where rows are long).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coexec.engines.kernels.base import CTYPES, KernelLaunch, Source, Value, ceil_div, indented
from coexec.engines.kernels.epilogue import Output
from coexec.engines.kernels.rows import Access, RowLayout, RowPart
from coexec.engines.kernels.touches import Touch, along, of_rows
from coexec.engines.kernels.value import neighbours, split

_ROWS = 32768
"""Most groups on one axis: CUDA allows 65,535 on all axes but the first."""
_WARP = 32
"""Work items that NVIDIA's GPUs run together."""
_LEAST = 8
"""Steps of a row that lies in one piece from which on a warp shares it, even if items are idle: the
items of a warp that have a row each would read far apart."""


class RowKernel:
    """A kernel over the rows of the tensor that ``source`` declares as ``x``.

    Its lines may use ``row`` and p0, p1, ... for the axes that distinguish rows.
    """

    def __init__(
        self,
        source: Source,
        x: Value,
        along: Sequence[int],
        *,
        vectors: bool = True,
        columns: bool = False,
    ) -> None:
        """For the arguments see `RowLayout`."""
        self._source, self._x = source, x
        on_cores = source.arch.family == "cpu"
        self.layout = RowLayout(source.arch, x, along, vectors, columns and on_cores)
        if self.layout.kind in ("contiguous", "columns"):
            aligned = source.arch.in_vectors(self.layout.length)
            source.define(neighbours("x", x.half, self.layout.block, aligned))
        self.ctype = source.arch.vector if self.layout.side_by_side else CTYPES[x.dtype]
        """Type of the result of a row."""
        self._steps = self.layout.vectors().count + self.layout.rest().count
        self.sharing = self._sharing()
        """Work items that share a row."""

    def _sharing(self) -> int:
        """Work items that share a row, a power of two: several on a GPU, if rows are long, and few
        or contiguous."""
        arch, layout = self._source.arch, self.layout
        few = layout.count < 64 * arch.compute_units or layout.kind == "contiguous"
        in_warps = arch.family == "nvidia" and layout.kind == "contiguous"
        if arch.family == "cpu" or not few or self._steps < (_LEAST if in_warps else _WARP):
            return 1
        most = 1 << (min(self._steps, 256, arch.max_group).bit_length() - 1)
        return max(_WARP, most) if in_warps else most

    def loop(
        self, part: RowPart, body: Callable[[Access], Sequence[str]], first: int = 0
    ) -> list[str]:
        """Lines of a loop over ``part`` from step ``first`` on, with the elements in ``v``."""
        if part.count <= first:
            return []
        access = part.access("k")
        start = "item" if self.sharing > 1 else str(first)
        return [
            f"for (int k = {start}; k < {part.count}; k += {self.sharing}) {{",
            f"  const {part.ctype} v = {part.load.format(access.at)};",
            *indented(body(access)),
            "}",
        ]

    def each(self, output: Output, make: Callable[[Access], str]) -> list[str]:
        """Lines that store the expression ``make`` of ``v``, in a tensor of equal layout."""
        layout = self.layout
        if layout.kind in ("contiguous", "columns") and not output.has_epilogue:
            aligned = self._source.arch.in_vectors(layout.length)
            self._source.define(neighbours("y", output.value.half, layout.block, aligned))
            lines = []
            for part in (layout.vectors(), layout.rest()):
                lines += self.loop(part, lambda access: [f"PUTS_y({access.at}, {make(access)});"])
            return lines
        part = layout.vectors(filled=False) if output.vector else layout.scalars()
        return self.loop(part, lambda access: output.store(make(access), access.coordinates))

    def finish(self, lines: Sequence[str], y: Value) -> KernelLaunch:
        """The launch of the kernel with these lines, which set ``y``."""
        self._source.lines((*self._start(), *lines))
        if self.sharing > 1:
            count = self.layout.count
            grid = self.sharing, min(count, _ROWS), ceil_div(count, _ROWS)
            return self._source.finish(grid, (self.sharing, 1, 1))
        return self._source.finish(self._grid(), touches=self._touches(y))

    def _touches(self, y: Value) -> dict[str, Touch]:
        """The parts that a box of the grid touches, where rows or their results lie one after the
        other."""
        layout, x = self.layout, self._x
        width, groups = self._grid()
        rows = along(1, groups, width) if groups > 1 else along(0, width)
        lies = {"x": layout.in_order, "y": layout.in_order}
        if (y.shape, y.block) != (x.shape, x.block):
            lies["y"] = layout.results_in_order(y)
        return {
            name: of_rows(value, value.items // layout.count, rows)
            for name, value in (("x", x), ("y", y))
            if lies[name] and not value.axes and not value.last
        }

    def _start(self) -> list[str]:
        """Lines that declare the row of a work item."""
        width, _ = self._grid()
        layout = self.layout
        if self.sharing > 1:
            lines = ["const int item = get_local_id(0);"]
            lines += [f"const int row = get_global_id(2) * {_ROWS} + get_global_id(1);"]
            if layout.count > _ROWS:
                lines += [f"if (row >= {layout.count}) return;"]
        else:
            lines = [f"const int row = get_global_id(1) * {width} + get_global_id(0);"]
            lines += [f"if (row >= {layout.count}) return;"] if layout.count % width else []
        texts = split("row", [layout.extents[a] for a in layout.kept])
        axes = zip(layout.kept, texts, strict=True)
        return [*lines, *(f"const int p{a} = {text};" for a, text in axes)]

    def _grid(self) -> tuple[int, int]:
        """The grid over the rows. One CPU thread computes a whole group, so long rows have groups
        of their own."""
        count = width = self.layout.count
        if self._source.arch.family == "cpu":
            width = min(count, max(1, 4096 // self._steps))
        return width, ceil_div(count, width)


@dataclass(frozen=True, slots=True)
class Fold:
    """An associative operation. Its texts serve scalars and vectors alike."""

    start: str
    """Neutral element."""
    term: str
    """Expression of an element ``v``."""
    merge: str
    """Expression of two partial results, ``{a}`` and ``{b}``."""

    def add(self, name: str, other: str) -> str:
        """The statement that merges ``other`` into ``name``."""
        return f"{name} = {self.merge.format(a=name, b=other)};"


MAXIMUM = Fold("-INFINITY", "v", "fmax({a}, {b})")
"""Maximum of floats."""


def total(term: str) -> Fold:
    """The sum of ``term`` over the elements ``v``."""
    return Fold("0.0f", term, "({a} + {b})")


def fold(rows: RowKernel, name: str, operation: Fold) -> list[str]:
    """Lines that declare ``name``, the result of ``operation`` over the row."""
    ctype = rows.ctype
    if rows.layout.kind == "plain":
        add = [operation.add(name, f"({operation.term})")]
        lines = [f"{ctype} {name} = {operation.start};"]
        lines += rows.loop(rows.layout.rest(), lambda _: add)
    else:
        lines = _vectors(rows, name, operation)
    return lines + _joined(rows.sharing, name, ctype, operation)


def _vectors(rows: RowKernel, name: str, operation: Fold) -> list[str]:
    """Lines of a fold by vectors, into several independent partial results."""
    layout = rows.layout
    part, tail = layout.vectors(), layout.rest()
    partials = 4 if part.count >= 16 and rows.sharing == 1 else 1
    vector = part.ctype
    names = [name if layout.side_by_side else f"{name}_lanes"]
    names += [f"{name}_{way}" for way in range(1, partials)]
    lines = [f"{vector} {n} = ({vector})({operation.start});" for n in names]
    whole = part.count - part.count % partials if partials > 1 else 0
    if whole:
        lines.append(f"for (int k = 0; k < {whole}; k += {partials}) {{")
        for way, n in enumerate(names):
            load = part.load.format(part.access(f"(k + {way})").at)
            lines.append(f"  {{ const {vector} v = {load}; {operation.add(n, operation.term)} }}")
        lines.append("}")
    lines += rows.loop(part, lambda _: [operation.add(names[0], operation.term)], whole)
    lane_term = _chosen(operation, tail, layout.block)
    lines += rows.loop(tail, lambda _: [operation.add(names[0], lane_term)])
    lines += [operation.add(names[0], partial) for partial in names[1:]]
    if layout.side_by_side:
        return lines
    return lines + across_lanes(name, names[0], operation, layout.block)


def _chosen(operation: Fold, part: RowPart, width: int) -> str:
    """The term in the lanes that count, and the neutral element in the other lanes."""
    lanes = ", ".join("-1" if lane in (part.lanes or ()) else "0" for lane in range(width))
    return f"SELECT((int{width})({lanes}), {operation.term}, (float{width})({operation.start}))"


def across_lanes(name: str, vector: str, operation: Fold, width: int) -> list[str]:
    """Lines that declare ``name``, the fold of all lanes of ``vector``."""
    lines = []
    while width > 1:
        width //= 2
        ctype = "float" if width == 1 else f"float{width}"
        result = name if width == 1 else f"{name}_lanes{width}"
        merged = operation.merge.format(a=f"{vector}.lo", b=f"{vector}.hi")
        lines.append(f"{ctype} {result} = {merged};")
        vector = result
    return lines


def _joined(sharing: int, name: str, ctype: str, operation: Fold) -> list[str]:
    """Lines that merge ``name`` of all work items of a group; then all of them have the result.

    ``sharing``: number of work items, a power of two; ``item`` is the number of a work item.
    """
    if sharing == 1:
        return []
    return [
        f"__local {ctype} {name}_all[{sharing}];",
        f"{name}_all[item] = {name};",
        f"for (int span = {sharing // 2}; span > 0; span /= 2) {{",
        "  barrier(CLK_LOCAL_MEM_FENCE);",
        "  if (item < span) {",
        f"    const {ctype} {name}_other = {name}_all[item + span];",
        f"    {operation.add(name, f'{name}_other')}",
        f"    {name}_all[item] = {name};",
        "  }",
        "}",
        "barrier(CLK_LOCAL_MEM_FENCE);",
        f"{name} = {name}_all[0];",
    ]
