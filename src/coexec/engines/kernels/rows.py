"""Rows of a tensor in memory, over which reductions, softmax and norms iterate.

A row is all elements that differ in some axes only. A work item, or a group of work items, iterates
over a row (see `row_kernel`). In a step it reads

* "lanes": a vector of channels that belong to different rows, as the channel distinguishes rows;
* "across": a vector of channels that belong to one row;
* "contiguous": a vector of neighbours in a row-major row;
* "columns": a vector of neighbours that belong to different rows of a row-major tensor;
* "plain": one scalar, in any layout.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from coexec.engines.kernels.architecture import Architecture
from coexec.engines.kernels.base import CTYPES, Value, ceil_div
from coexec.engines.kernels.value import at, split, step


@dataclass(frozen=True, slots=True)
class Access:
    """The read of one step along a row; the variable ``v`` has its elements."""

    vector: bool
    at: str
    """Position in memory: of a vector of channels, else of the first scalar."""
    coordinates: tuple[str, ...]
    """Coordinates of the first element. For vectors of channels, the slice replaces the channel."""
    index: str
    """Number of the first element in the row; "" for vectors of channels."""


@dataclass(frozen=True, slots=True)
class RowPart:
    """A part of a row over which one loop iterates."""

    count: int
    access: Callable[[str], Access]
    """The access of a step, by the name of the loop's variable."""
    load: str
    """Expression of the elements at the position ``{}``."""
    ctype: str
    lanes: range | None = None
    """Lanes of a vector that count; None: all lanes."""


class RowLayout:
    """The layout of the rows of a tensor ``x``, and the parts and steps in which they are read.

    Positions are expressions of ``row`` and of p0, p1, ... for the axes that distinguish rows.
    """

    def __init__(
        self,
        arch: Architecture,
        x: Value,
        along: Sequence[int],
        vectors: bool,
        columns: bool = False,
    ) -> None:
        """
        Args:
            along: the axes of a row.
            vectors: whether a step may read several elements.
            columns: whether a step may read a vector with one element of several rows.
        """
        self._x, self._vector = x, arch.vector
        self._sizes, self._along = x.shape, tuple(along)
        self.block = arch.block
        self._columns = columns
        self.length = math.prod(self._sizes[a] for a in along)
        """Number of elements in a row."""
        self.kept = tuple(a for a in range(len(self._sizes)) if a not in self._along)
        """The axes that distinguish rows."""
        self.kind = self._kind() if vectors and x.dtype == "float32" else "plain"
        self.side_by_side = self.kind in ("lanes", "columns")
        """Whether results are vectors, with the result of one row in each lane."""
        self.extents = self._extents()
        """Sizes of the axes, where channel vectors and columns are counted in vectors."""
        self.count = math.prod(self.extents[a] for a in self.kept)
        """Number of rows, or of vectors of rows if each lane has a row."""

    def _kind(self) -> Literal["lanes", "across", "columns", "contiguous", "plain"]:
        if self._x.block:
            return "across" if 1 in self._along else "lanes"
        apart = step(self._sizes, self._along)
        if apart == 1 and self.length >= self.block:
            return "contiguous"
        last = len(self._sizes) - 1
        beside = last in self.kept and self._sizes[last] >= self.block
        return "columns" if self._columns and apart is not None and beside else "plain"

    def _extents(self) -> tuple[int, ...]:
        if self.kind in ("contiguous", "plain"):
            return self._sizes
        if self.kind == "columns":
            return *self._sizes[:-1], ceil_div(self._sizes[-1], self.block)
        return self._sizes[0], ceil_div(self._sizes[1], self.block), *self._sizes[2:]

    @property
    def in_order(self) -> bool:
        """Whether rows lie in memory one after the other."""
        kept, along = (
            [a for a in axes if self.extents[a] > 1] for axes in (self.kept, self._along)
        )
        as_numbered = self.kind != "columns" and not (self._x.block and self.kind == "plain")
        return as_numbered and self.count > 0 and not (kept and along and kept[-1] > along[0])

    def results_in_order(self, y: Value) -> bool:
        """Whether the results of rows lie one after the other in ``y``."""
        if self.kind == "lanes":
            images = any(self.extents[a] > 1 for a in self.kept if a > 1)
            plain = not images and y.items == self.count * self.block
            return self.count > 0 and (y.block == self._x.block or (not y.block and plain))
        return self.kind != "columns" and not y.block and y.items == self.count

    def vectors(self, *, filled: bool = True) -> RowPart:
        """The vectors of a row; ``filled``: without vectors that reach past its elements."""
        extents, vector = self.extents, self._vector
        if self.kind == "plain":
            return RowPart(0, self._scalar, "", "")
        if self.kind == "contiguous":
            count = self.length // self.block
            return RowPart(
                count, lambda k: self._neighbours(f"({k} * {self.block})"), "NEAR_x({})", vector
            )
        if self.kind == "columns":
            return RowPart(self.length, self._column, "NEAR_x({})", vector)
        if filled and self.kind == "across":
            extents = (extents[0], self._sizes[1] // self.block, *extents[2:])
        count = math.prod(extents[a] for a in self._along)
        return RowPart(count, lambda k: self._channels(k, extents), "LOAD_x({})", vector)

    def rest(self) -> RowPart:
        """The elements outside of filled vectors: lanes of other vectors, or scalars if plain."""
        vector, b = self._vector, self.block
        if self.kind == "contiguous":
            tail, last = self.length % b, str(self.length - b)
            lanes = range(b - tail, b)  # the other lanes are in the previous vector
            return RowPart(
                min(tail, 1), lambda _: self._neighbours(last), "NEAR_x({})", vector, lanes
            )
        if self.kind == "across":
            extents = (self._sizes[0], 1, *self._sizes[2:])
            tail, slices = self._sizes[1] % b, self._sizes[1] // b
            count = math.prod(extents[a] for a in self._along) if tail else 0
            return RowPart(
                count,
                lambda k: self._channels(k, extents, slices),
                "LOAD_x({})",
                vector,
                range(tail),
            )
        return RowPart(0, self._scalar, "", "") if self.side_by_side else self.scalars()

    def scalars(self) -> RowPart:
        """All elements as scalars; not if rows are lanes."""
        return RowPart(self.length, self._scalar, "GET_x({})", CTYPES[self._x.dtype])

    def _scalar(self, index: str) -> Access:
        coordinates = self._coordinates(index, self._sizes)
        where = at("x", coordinates)
        apart = step(self._sizes, self._along)
        if not self._x.block and apart is not None:
            where = f"{at('x', self._first)} + {index} * {apart}"
        return Access(False, where, tuple(coordinates), index)

    @property
    def first_column(self) -> str:
        """Start of the vector of "columns" on the last axis. The last one starts earlier, so that
        it is whole: it does not reach past the axis."""
        last = len(self._sizes) - 1
        return f"min(p{last} * {self.block}, {self._sizes[-1] - self.block})"

    def _column(self, index: str) -> Access:
        coordinates = [*self._coordinates(index, self._sizes)[:-1], self.first_column]
        start = [*self._first[:-1], self.first_column]
        where = f"{at('x', start)} + {index} * {step(self._sizes, self._along)}"
        return Access(True, where, tuple(coordinates), index)

    def _neighbours(self, index: str) -> Access:
        coordinates = self._coordinates(index, self._sizes)
        return Access(True, f"{at('x', self._first)} + {index}", tuple(coordinates), index)

    def _channels(self, index: str, extents: tuple[int, ...], slices: int = 0) -> Access:
        """Access to vector ``index`` of ``extents``, behind the first ``slices`` slices."""
        coordinates = self._coordinates(index, extents)
        if slices:
            coordinates[1] = str(slices)
        where = f"VEC_x({', '.join(coordinates)})"
        apart = step(extents, self._along)
        if apart is not None and not slices and (self.kind == "lanes" or self._along[0] == 1):
            # The offset comes first, as positions in images are no numbers: see `Parameter`.
            where = f"{index} * {apart} + VEC_x({', '.join(self._first)})"
        return Access(True, where, tuple(coordinates), "")

    def _coordinates(self, index: str, sizes: Sequence[int]) -> list[str]:
        inner = iter(split(index, [sizes[a] for a in self._along]))
        return [next(inner) if a in self._along else f"p{a}" for a in range(len(sizes))]

    @property
    def _first(self) -> list[str]:
        """Coordinates of the start of the row."""
        return ["0" if a in self._along else f"p{a}" for a in range(len(self._sizes))]
