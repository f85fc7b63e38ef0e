"""Divides launches into tiles, and finds for which tiles of earlier launches each has to wait.

A tile waits for the tiles that write what it reads, and for those that read or write what it
overwrites. Where the generator of a kernel has declared which part of a tensor a box of the grid
touches, only overlapping parts count: the rows of a convolution wait for some rows of the layer
before. Everything else waits for whole launches.

Only ranges of tiles are recorded, so a tile may wait for more than it needs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import numpy as np
import numpy.typing as npt

from coexec.engines.kernels.base import KernelLaunch, Value
from coexec.engines.kernels.building import Build
from coexec.engines.kernels.dependencies import Use, uses_of
from coexec.engines.tiles import Box, Tile, TileRange

Place = tuple[str, int]
"""A memory, and a position in it in bytes."""

_TILE_S = 60e-6
"""Seconds that a tile should take: waiting for others costs it about one microsecond."""
_SMALL_S = 20e-6
"""A launch that takes less on one core is one tile."""
_MOST_ROUNDS = 16
"""Most tiles of a launch for each thread: that many share out evenly whatever they take."""
_WINDOW = 4096
"""Tiles that are looked back upon for waits that follow from others."""
_MACS_PER_S, _BYTES_PER_S = 50e9, 8e9
"""Rough speed of a core. An error by a factor of two changes the number of tiles by as much."""


def tiles_of(
    build: Build, threads: int, places: Mapping[str, Place] | None = None
) -> list[tuple[Tile, ...]]:
    """The tiles of each launch of a program, in its order.

    Args:
        threads: of the team.
        places: of the roots that share memory with others; each of the others has its own.
    """
    earlier: dict[str, list[_TileParts]] = {}
    tiles: list[tuple[Tile, ...]] = []
    order = _WaitOrder()
    for number, launch in enumerate(build.launches):
        boxes = boxes_of(launch, threads)
        waits: list[dict[int, tuple[int, int]]] = [{} for _ in boxes]
        all_parts = [
            _TileParts.of(number, use, boxes, (places or {}).get(use.root, (use.root, 0)))
            for use in uses_of(launch, build.aliases)
            if boxes
        ]
        for parts in all_parts:
            for other in earlier.get(parts.memory, ()):
                if parts.meets(other):
                    _add_waits(waits, parts, other)
        for parts in all_parts:
            others = earlier.setdefault(parts.memory, [])
            others[:] = [o for o in others if not parts.replaces(o)] + [parts]
        tiles.append(tuple(map(Tile, boxes, order.add(waits))))
    return tiles


def boxes_of(launch: KernelLaunch, threads: int) -> list[Box]:
    """The boxes of a launch's tiles: a multiple of ``threads``, if the grid is large enough.

    Tiles that are neighbours in the list touch neighbouring rows.
    """
    grid = launch.grid
    items = math.prod(grid)
    if not items:
        return []
    seconds = seconds_of(launch)
    order = _axes(launch)
    counts = dict.fromkeys(order, 1)
    if launch.group in (None, (1, 1, 1)) and seconds >= _SMALL_S:
        rounds = min(max(1, round(seconds / (_TILE_S * threads))), _MOST_ROUNDS)
        counts = _counts(grid, order, min(rounds * threads, items), threads)
    cuts = [[grid[axis] * i // counts[axis] for i in range(counts[axis] + 1)] for axis in order]
    boxes = []
    for parts in product(*map(pairwise, cuts)):
        by_axis = dict(zip(order, parts, strict=True))
        boxes.append((by_axis[0], by_axis[1], by_axis[2]))
    return boxes


def seconds_of(launch: KernelLaunch) -> float:
    """A rough time of a launch on one core."""
    size_bytes = sum(
        a.size_bytes if isinstance(a, Value) else a.nbytes
        for a in launch.arguments
        if not isinstance(a, int)
    )
    return max(launch.macs / _MACS_PER_S, size_bytes / _BYTES_PER_S)


def _axes(launch: KernelLaunch) -> list[int]:
    """The axes of the grid: those along which the rows, samples and planes of the result lie, then
    the others, the longest first.

    If the weights are larger than the tensors, planes are first: so each core reads a part of the
    weights, from its own cache.
    """
    weights = sum(a.nbytes for a in launch.arguments if isinstance(a, np.ndarray))
    tensors = sum(a.size_bytes for a in launch.arguments if isinstance(a, Value))
    touched = [
        along.axis
        for value, touch in zip(launch.arguments, launch.touches, strict=False)
        if touch and isinstance(value, Value) and value.name in launch.written
        for along in (
            (touch.planes, touch.rows, touch.samples)
            if weights > tensors
            else (touch.rows, touch.samples, touch.planes)
        )
        if along and launch.grid[along.axis] > 1
    ]
    others = sorted(range(3), key=lambda axis: -launch.grid[axis])
    return list(dict.fromkeys([*touched, *others]))


def _counts(grid: Sequence[int], order: Sequence[int], most: int, threads: int) -> dict[int, int]:
    """Number of parts along each axis: ``most`` in all, or less by a multiple of ``threads``; one
    for each item if there are fewer items than threads.

    Of several ways, the one with the most equal parts, and then with the most parts along the first
    axis.
    """
    for count in range(most - most % threads, 0, -threads):
        ways = [
            (first, second, count // first // second)
            for first in _divisors(count)
            for second in _divisors(count // first)
        ]
        sizes = [grid[axis] for axis in order]
        fits = [way for way in ways if all(n <= size for n, size in zip(way, sizes, strict=True))]
        if fits:
            best = min(fits, key=lambda way: (_largest(sizes, way), [-n for n in way]))
            return dict(zip(order, best, strict=True))
    return dict(enumerate(grid)) if most < threads else dict.fromkeys(order, 1)


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _largest(sizes: Sequence[int], counts: Sequence[int]) -> int:
    """Items of the largest part."""
    return math.prod(-(-size // count) for size, count in zip(sizes, counts, strict=True))


@dataclass(frozen=True, eq=False)
class _TileParts:
    """The parts of a memory that the tiles of a launch touch, for one of its tensors."""

    launch: int
    memory: str
    start: int
    """In bytes, as all positions here."""
    stop: int
    plane: int
    writes: bool
    covers: bool
    """Whether the tiles certainly touch everything from start to stop."""
    parts: npt.NDArray[np.int64]
    """By tile: its first plane, the one behind its last, and its range inside of these planes."""

    @classmethod
    def of(cls, launch: int, use: Use, boxes: Sequence[Box], place: Place) -> "_TileParts":
        memory, base = place
        scalar, touch = use.scalar_bytes, use.touch
        start, stop = base + use.start * scalar, base + use.stop * scalar
        if touch is None:
            parts = np.array([[0, 1, 0, stop - start]] * len(boxes))
            return cls(launch, memory, start, stop, stop - start, use.writes, True, parts)
        parts = np.array([touch.part(box) for box in boxes]) * [1, 1, scalar, scalar]
        plane = touch.plane * scalar
        return cls(launch, memory, start, stop, plane, use.writes, touch.covers(), parts)

    def meets(self, later: "_TileParts") -> bool:
        """Whether tiles of the later launch may have to wait for tiles of this one."""
        overlap = self.start < later.stop and later.start < self.stop
        return overlap and (self.writes or later.writes)

    def replaces(self, other: "_TileParts") -> bool:
        """Whether everything that meets ``other`` also meets this later use, which waits for
        ``other``."""
        inside = self.start <= other.start and other.stop <= self.stop
        return self.writes and self.covers and inside and other.launch < self.launch

    def overlaps(self, other: "_TileParts") -> npt.NDArray[np.bool_]:
        """By own tile and other tile, whether they touch the same memory.

        Parts of planes are compared if the planes of both lie at the same places. Else everything
        counts from the first to the last byte of a tile.
        """
        shift = other.start - self.start
        if self.plane == other.plane and self.plane and shift % self.plane == 0:
            planes = shift // self.plane
            mine, theirs = self.parts, other.parts + np.array([planes, planes, 0, 0])
            return _meeting(mine[:, :2], theirs[:, :2]) & _meeting(mine[:, 2:], theirs[:, 2:])
        return _meeting(self._hulls(), other._hulls())

    def _hulls(self) -> npt.NDArray[np.int64]:
        """By tile, its first byte in the memory and the one behind its last."""
        first, last, begin, end = self.parts.T
        starts, stops = first * self.plane + begin, (last - 1) * self.plane + end
        return self.start + np.stack([starts, stops], axis=1)


def _meeting(mine: npt.NDArray[np.int64], theirs: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Whether ranges overlap, for each pair."""
    result: npt.NDArray[np.bool_] = (mine[:, None, 0] < theirs[None, :, 1]) & (
        theirs[None, :, 0] < mine[:, None, 1]
    )
    return result


def _add_waits(
    waits: Sequence[dict[int, tuple[int, int]]], parts: _TileParts, other: _TileParts
) -> None:
    overlap = parts.overlaps(other)
    first = overlap.argmax(axis=1)
    last = overlap.shape[1] - 1 - overlap[:, ::-1].argmax(axis=1)
    for tile in np.flatnonzero(overlap.any(axis=1)).tolist():
        low, high = waits[tile].get(other.launch, (int(first[tile]), int(last[tile])))
        waits[tile][other.launch] = min(low, int(first[tile])), max(high, int(last[tile]))


class _WaitOrder:
    """The tiles that end before each tile starts, as the bits of numbers.

    A number has bits for `_WINDOW` tiles before the first tile of its launch and for those behind.
    """

    def __init__(self) -> None:
        self._starts: list[int] = []
        """By launch, the number of its first tile among all."""
        self._before: list[list[int]] = []
        """By launch and tile."""
        self._known: dict[tuple[int, int, int], tuple[int, int]] = {}

    def add(self, waits: Sequence[Mapping[int, tuple[int, int]]]) -> list[tuple[TileRange, ...]]:
        """The waits of a launch's tiles, without those that follow from others."""
        start = self._starts[-1] + len(self._before[-1]) if self._starts else 0
        self._known.clear()
        needed: list[tuple[TileRange, ...]] = []
        before: list[int] = []
        for by_launch in waits:
            covered, ranges = 0, []
            for launch, (first, last) in sorted(by_launch.items(), reverse=True):
                tiles, with_earlier = self._bits(start, launch, first, last)
                if not tiles or tiles & ~covered:
                    ranges.append(TileRange(launch, first, last))
                    covered |= with_earlier
            needed.append(tuple(reversed(ranges)))
            before.append(covered)
        self._starts.append(start)
        self._before.append(before)
        return needed

    def _bits(self, start: int, launch: int, first: int, last: int) -> tuple[int, int]:
        """Tiles of an earlier launch, none if some are too early; and with them all that end before
        one of them starts. ``start``: the first tile of the present launch."""
        key = launch, first, last
        if key not in self._known:
            shift = start - self._starts[launch]
            tiles = ((1 << (last - first + 1)) - 1) << (_WINDOW + first)
            with_earlier = tiles
            for before in self._before[launch][first : last + 1]:
                with_earlier |= before
            inside = first + _WINDOW >= shift
            self._known[key] = tiles >> shift if inside else 0, with_earlier >> shift
        return self._known[key]
