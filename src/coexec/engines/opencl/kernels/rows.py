"""Kernels that go along rows of a tensor: reductions, softmax, norms.

A row is all elements that differ in some axes only. A work item goes along one row, or a group of
work items shares one and joins its parts in local memory (on GPUs, where rows are long). It takes

* "lanes": vectors of channels that belong to rows side by side, as the channel tells rows apart;
* "across": vectors of channels that belong to one row;
* "contiguous": neighbours of a row-major row as vectors;
* "plain": one scalar after the other, in any layout.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from coexec.engines.opencl.architecture import Architecture
from coexec.engines.opencl.kernels.base import CTYPES, KernelLaunch, Source, Value, ceil_div
from coexec.engines.opencl.kernels.output import Output
from coexec.engines.opencl.kernels.positions import at, neighbours, split, step

__all__ = ["Place", "Rows", "Span", "Unit", "sharing"]

Place = Callable[[Sequence[str], int], list[str]]
"""The coordinates in a tensor of those that are counted, and of how many channels a unit holds."""


def sharing(arch: Architecture, steps: int, most: int = 256) -> int:
    """How many work items should share ``steps``: a power of two; one where a core has a thread."""
    if arch.family == "cpu":
        return 1
    return 1 << (min(steps, most, arch.max_group).bit_length() - 1)


@dataclass(frozen=True, slots=True)
class Unit:
    """What one step along a row works on; its elements are in the variable ``v``."""

    vector: bool
    at: str
    """Its position in memory: of a vector, or of a scalar if rows are row-major."""
    coordinates: tuple[str, ...]
    """Of the first element; in vectors of channels the slice stands for the channel."""
    index: str
    """Of the first element in the row; not of vectors of channels."""


@dataclass(frozen=True, slots=True)
class Span:
    """A part of a row that one loop goes along."""

    count: int
    unit: Callable[[str], Unit]
    """By the name of the loop's variable."""
    load: str
    """What makes the elements of the position ``{}``."""
    ctype: str
    lanes: range | None = None
    """Of vectors, the lanes that count; None: all."""


class Rows:
    """Rows of the tensor that ``source`` knows as ``x``.

    Lines of the kernel may use ``row`` and, for each axis that tells rows apart, p0, p1, ...
    """

    def __init__(
        self,
        source: Source,
        x: Value,
        along: Sequence[int],
        *,
        sizes: Sequence[int] | None = None,
        place: Place | None = None,
        vectors: bool = True,
        shared: bool = True,
    ) -> None:
        """
        Args:
            along: the axes of a row.
            sizes: of all axes, where these are not those of ``x`` itself; then with ``place``.
            vectors: whether elements may be taken several at once.
            shared: whether work items may share a row.
        """
        self._source, self._x = source, x
        self._sizes = tuple(sizes or x.shape)
        self._along = tuple(along)
        self._place = place or (lambda coordinates, _: list(coordinates))
        self.block = source.arch.block
        self.length = math.prod(self._sizes[a] for a in along)
        """Elements of a row."""
        self.kept = tuple(a for a in range(len(self._sizes)) if a not in self._along)
        self.kind = self._kind() if vectors and x.dtype == "float32" else "plain"
        if self.kind == "contiguous":
            source.define(neighbours("x", x.half, self.block))
        self.vector = self.kind == "lanes"
        """Whether what is found of a row is a vector, of a row for each lane."""
        self.ctype = source.arch.vector if self.vector else CTYPES[x.dtype]
        """Of what is found of a row."""
        units = self._units()
        self.rows = math.prod(units[a] for a in self.kept)
        """Of vectors if rows lie side by side."""
        self._steps = self.vectors().count + self.rest().count
        self.sharing = self._sharing() if shared else 1
        """Work items that share a row."""

    def _kind(self) -> Literal["lanes", "across", "contiguous", "plain"]:
        if self._x.block:
            return "across" if 1 in self._along else "lanes"
        inner = step(self._sizes, self._along) == 1
        return "contiguous" if inner and self.length >= self.block else "plain"

    def _units(self) -> tuple[int, ...]:
        """The sizes, with slices for channels where those are taken in vectors."""
        if self.kind in ("contiguous", "plain"):
            return self._sizes
        return self._sizes[0], ceil_div(self._sizes[1], self.block), *self._sizes[2:]

    def _sharing(self) -> int:
        """Where rows are long, and few or read best by neighbours."""
        arch = self._source.arch
        few = self.rows < 64 * arch.compute_units or self.kind == "contiguous"
        return sharing(arch, self._steps) if few and self._steps >= 32 else 1

    def _start(self) -> list[str]:
        """Lines that say which row a work item is at."""
        width, _ = self._grid()
        units = self._units()
        if self.sharing > 1:
            lines = ["const int item = get_local_id(0), row = get_global_id(1);"]
        else:
            lines = [f"const int row = get_global_id(1) * {width} + get_global_id(0);"]
            lines += [f"if (row >= {self.rows}) return;"] if self.rows % width else []
        texts = split("row", [units[a] for a in self.kept])
        return [*lines, *(f"const int p{a} = {t};" for a, t in zip(self.kept, texts, strict=True))]

    def finish(self, lines: Sequence[str]) -> KernelLaunch:
        """The finished kernel of these lines."""
        self._source.lines("\n".join(f"  {line}" for line in (*self._start(), *lines)))
        if self.sharing > 1:
            return self._source.finish((self.sharing, self.rows), (self.sharing, 1, 1))
        return self._source.finish(self._grid())

    def _grid(self) -> tuple[int, int]:
        """One thread of a CPU computes a whole group, so long rows are groups of their own."""
        width = self.rows
        if self._source.arch.family == "cpu":
            width = min(self.rows, max(1, 4096 // self._steps))
        return width, ceil_div(self.rows, width)

    def vectors(self, *, filled: bool = True) -> Span:
        """The vectors of the row; ``filled``: without those that reach past its elements."""
        units, vector = self._units(), self._source.arch.vector
        if self.kind == "plain":
            return Span(0, self._scalar, "", "")
        if self.kind == "contiguous":
            count = self.length // self.block
            return Span(count, lambda k: self._neighbours(f"({k} * {self.block})"), "NEAR_x({})",
                        vector)  # fmt: skip
        if filled and self.kind == "across":
            units = (units[0], self._sizes[1] // self.block, *units[2:])
        count = math.prod(units[a] for a in self._along)
        return Span(count, lambda k: self._channels(k, units), "LOAD_x({})", vector)

    def rest(self) -> Span:
        """The elements that are in no filled vector: some lanes of others; one by one if plain."""
        vector, b = self._source.arch.vector, self.block
        if self.kind == "contiguous":
            tail, last = self.length % b, str(self.length - b)
            lanes = range(b - tail, b)  # the others are in the vector before
            return Span(min(tail, 1), lambda _: self._neighbours(last), "NEAR_x({})", vector, lanes)
        if self.kind == "across":
            units = (self._sizes[0], 1, *self._sizes[2:])
            tail, slices = self._sizes[1] % b, self._sizes[1] // b
            count = math.prod(units[a] for a in self._along) if tail else 0
            return Span(count, lambda k: self._channels(k, units, slices), "LOAD_x({})", vector,
                        range(tail))  # fmt: skip
        return Span(0, self._scalar, "", "") if self.kind == "lanes" else self.scalars()

    def scalars(self) -> Span:
        """All elements one by one; not where rows lie side by side."""
        return Span(self.length, self._scalar, "GET_x({})", CTYPES[self._x.dtype])

    def _scalar(self, index: str) -> Unit:
        coordinates = self._place(self._coordinates(index, self._sizes), 1)
        where = at("x", coordinates)
        apart = step(self._sizes, self._along)
        if not self._x.block and apart is not None:
            where = f"{at('x', self._first(1))} + {index} * {apart}"
        return Unit(False, where, tuple(coordinates), index)

    def _neighbours(self, index: str) -> Unit:
        coordinates = self._place(self._coordinates(index, self._sizes), 1)
        return Unit(True, f"{at('x', self._first(1))} + {index}", tuple(coordinates), index)

    def _channels(self, index: str, units: tuple[int, ...], slices: int = 0) -> Unit:
        """The vector ``index`` of those in ``units`` behind the first ``slices``."""
        found = self._coordinates(index, units)
        if slices:
            found[1] = str(slices)
        coordinates = self._place(found, self.block)
        where = f"VEC_x({', '.join(coordinates)})"
        apart = step(units, self._along)
        if apart is not None and not slices and (self.kind == "lanes" or self._along[0] == 1):
            # The offset comes first, as positions in images are no numbers: see `Parameter`.
            where = f"{index} * {apart} + VEC_x({', '.join(self._first(self.block))})"
        return Unit(True, where, tuple(coordinates), "")

    def _coordinates(self, index: str, sizes: Sequence[int]) -> list[str]:
        own = iter(split(index, [sizes[a] for a in self._along]))
        return [next(own) if a in self._along else f"p{a}" for a in range(len(sizes))]

    def _first(self, channels: int) -> list[str]:
        """Where the row starts."""
        zero = ["0" if a in self._along else f"p{a}" for a in range(len(self._sizes))]
        return self._place(zero, channels)

    def loop(self, span: Span, body: Callable[[Unit], Sequence[str]], first: int = 0) -> list[str]:
        """Lines that go along ``span`` from ``first`` on, with its elements in ``v``."""
        if span.count <= first:
            return []
        unit = span.unit("k")
        start = "item" if self.sharing > 1 else str(first)
        return [
            f"for (int k = {start}; k < {span.count}; k += {self.sharing}) {{",
            f"  const {span.ctype} v = {span.load.format(unit.at)};",
            *(f"  {line}" for line in body(unit)),
            "}",
        ]

    def each(self, output: Output, make: Callable[[Unit], str]) -> list[str]:
        """Lines that store what ``make`` says of elements ``v``, in a tensor of equal layout."""
        if self.kind == "contiguous" and not output.chained:
            self._source.define(neighbours("y", output.value.half, self.block))
            lines = []
            for span in (self.vectors(), self.rest()):
                lines += self.loop(span, lambda u: [f"PUTS_y({u.at}, {make(u)});"])
            return lines
        span = self.vectors(filled=False) if output.vector else self.scalars()
        return self.loop(span, lambda u: output.store(make(u), u.coordinates))
