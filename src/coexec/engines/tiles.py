"""Launches in tiles, as plain data: what a team of threads computes together.

A tile is a box of a launch's grid. It waits for tiles of earlier launches and for nothing else.
`coexec.engines.kernels.tiling` finds tiles and waits; the run loop computes them (native/team.hpp).
"""

import ctypes
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from coexec.arrays import Array, address_of, aligned_bytes

Box = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]
"""Begin and end along each axis of a grid."""


@dataclass(frozen=True, slots=True)
class TileRange:
    """Tiles of an earlier launch: from ``first`` to ``last``, inclusive."""

    launch: int
    """Its position among the launches."""
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Tile:
    """A box of a launch's grid, and all tiles for which it waits."""

    box: Box
    waits: tuple[TileRange, ...] = ()


@dataclass(frozen=True, slots=True)
class TiledLaunch:
    """A kernel with its arguments, in tiles.

    The kernel is a C function that computes the work items of a box:

        void kernel(const intptr_t* arguments, void* memory, int64_t begin0, int64_t end0,
                    int64_t begin1, int64_t end1, int64_t begin2, int64_t end2);
    """

    kernel: int
    """Address of the C function."""
    arguments: tuple[tuple[int, int], ...]
    """64-bit words, each a slot and an offset in bytes: the pointer of the slot, which each run
    sets, plus the offset. Slot -1: the offset is the word, an address or a number."""
    tiles: tuple[Tile, ...]
    name: str = ""
    result: str = ""
    """A tensor that it computes. For traces, as its name."""
    memory_bytes: int = 0
    """Memory that the kernel needs while it computes a tile, in each thread. It begins at a cache
    line and has any content."""


_KERNEL = ctypes.CFUNCTYPE(None, *(ctypes.c_void_p,) * 2, *(ctypes.c_int64,) * 6)


def calls_of(
    launch: TiledLaunch, slots: Sequence[int], memory: Array
) -> Iterator[Callable[[], None]]:
    """A function that computes each tile, in order.

    Args:
        slots: the pointers of the slots.
        memory: of the thread that computes, `thread_memory` of this launch or of several.
    """
    words = [(slots[slot] if slot >= 0 else 0) + offset for slot, offset in launch.arguments]
    arguments = (ctypes.c_ssize_t * len(words))(*words)
    kernel = _KERNEL(launch.kernel)
    for tile in launch.tiles:
        box = (side for axis in tile.box for side in axis)
        yield partial(kernel, arguments, address_of(memory), *box)


def thread_memory(launches: Iterable[TiledLaunch]) -> Array:
    """New memory for one thread that computes these launches.

    Raises:
        MemoryError: there is not as much.
    """
    return aligned_bytes(max((launch.memory_bytes for launch in launches), default=0))


def check_launches(launches: Sequence[TiledLaunch], slots: int) -> None:
    """Check that waits lead to earlier launches and that all slots exist.

    Raises:
        IndexError: they do not.
    """
    for number, launch in enumerate(launches):
        if any(slot >= slots for slot, _ in launch.arguments):
            raise IndexError("a launch names a slot that the team has not")
        for tile in launch.tiles:
            for w in tile.waits:
                if w.launch >= number or not 0 <= w.first <= w.last < len(launches[w.launch].tiles):
                    raise IndexError("a tile waits for tiles that no earlier launch has")
