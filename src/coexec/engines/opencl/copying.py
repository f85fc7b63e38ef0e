"""Copies between arrays in the host's memory, as commands of a device that computes there."""

import math
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from typing import Any, NamedTuple

from coexec.arrays import Array
from coexec.engines.base import BoxCopy
from coexec.engines.opencl.failures import translated
from coexec.engines.opencl.host_arrays import HostArrays
from coexec.errors import ExecutionError

__all__ = ["ArrayCopies", "Side", "rectangles"]

_MOST = 16
"""Rectangles of one copy. To launch more takes longer than to copy."""


class Side(NamedTuple):
    """Rows in layers of one array, in bytes, as clEnqueueCopyBufferRect takes them."""

    origin: tuple[int, int, int]
    """Byte in a row, row, layer."""
    pitches: tuple[int, int]
    """From row to row and from layer to layer."""


Rectangle = tuple[tuple[int, int, int], Side, Side]
"""Bytes of a row, rows and layers, and where they are in the target and in the source."""


def rectangles(copy: BoxCopy) -> list[Rectangle] | None:
    """The rectangles that make up a copy of at least one item. None if there are more than `_MOST`,
    if OpenCL does not take their pitches, if an array is not contiguous, or if the two views differ
    in type or shape."""
    if copy.into.dtype != copy.part.dtype or copy.into.shape != copy.part.shape:
        return None
    whole, views = (copy.target, copy.source), (copy.into, copy.part)
    if not all(array.flags.c_contiguous for array in whole):
        return None
    row_bytes, axes = _joined(*views)
    outer, (layers, rows) = axes[:-2], ([(1, 0, 0)] * 2 + axes)[-2:]
    if math.prod(size for size, _, _ in outer) > _MOST:
        return None
    found: list[Rectangle] = []
    for index in product(*(range(size) for size, _, _ in outer)):
        sides = []
        for side, (array, view) in enumerate(zip(whole, views, strict=True), start=1):
            steps = (i * axis[side] for i, axis in zip(index, outer, strict=True))
            start = _address(view) - _address(array) + sum(steps)
            sides.append(_side(array.nbytes, start, row_bytes, rows[0], rows[side], layers[side]))
        target, source = sides
        if target is None or source is None:
            return None
        found.append(((row_bytes, rows[0], layers[0]), target, source))
    return found


def _side(
    size: int, start: int, row_bytes: int, rows: int, row_pitch: int, layer_pitch: int
) -> Side | None:
    """Where rows lie in an array; None if the pitches are not multiples of each other, or if rows
    go beyond them.

    Args:
        size: bytes of the array.
        start: byte at which the rows start.
        row_pitch, layer_pitch: 0 where there is one row or one layer.
    """
    row_pitch = row_pitch or size
    layer_pitch = layer_pitch or math.ceil(size / row_pitch) * row_pitch
    layer, left = divmod(start, layer_pitch)
    row, byte = divmod(left, row_pitch)
    regular = row_pitch > 0 and layer_pitch % row_pitch == 0
    if not regular or byte + row_bytes > row_pitch or (row + rows) * row_pitch > layer_pitch:
        return None
    return Side((byte, row, layer), (row_pitch, layer_pitch))


def _joined(target: Array, source: Array) -> tuple[int, list[tuple[int, int, int]]]:
    """The bytes that lie together in both views, and the axes over them, outermost first: size and
    both strides. Axes of size 1 are left out; two that lie one behind the other in both are one."""
    run = target.itemsize
    axes: list[tuple[int, int, int]] = []
    for axis in zip(target.shape[::-1], target.strides[::-1], source.strides[::-1], strict=True):
        size, *strides = axis
        if size == 1:
            continue
        if not axes and strides == [run, run]:
            run *= size
        elif axes and strides == [axes[-1][0] * stride for stride in axes[-1][1:]]:
            axes[-1] = (axes[-1][0] * size, *axes[-1][1:])
        else:
            axes.append(axis)
    return run, axes[::-1]


def _address(array: Array) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class ArrayCopies:
    """Some copies, to be given to a device any number of times.

    Its buffers lie over memory that other buffers lie over, too. OpenCL leaves open what happens
    then; `HostArrays` has tried that the driver keeps no copies.
    """

    def __init__(self, memory: HostArrays, found: Sequence[tuple[BoxCopy, Rectangle]]) -> None:
        self._queue = memory.queue
        arrays = {id(a): a for copy, _ in found for a in (copy.target, copy.source)}
        buffers = {key: memory.seen(array).buffer for key, array in arrays.items()}
        self._copies: list[tuple[Any, Any, dict[str, Any]]] = [
            (
                buffers[id(copy.target)],
                buffers[id(copy.source)],
                {
                    "region": region,
                    "dst_origin": to.origin,
                    "dst_pitches": to.pitches,
                    "src_origin": of.origin,
                    "src_pitches": of.pitches,
                },
            )
            for copy, (region, to, of) in found
        ]
        self._latest: Any = None

    def __call__(self) -> None:
        """Copy, behind what the device was given before.

        Raises:
            ExecutionError: the device did not take it.
        """
        with translated(self._queue.name, "putting a tensor together", ExecutionError):
            for target, source, where in self._copies:
                self._latest = self._queue.copy_box(target, source, where)

    def __del__(self) -> None:
        # The memory of an interrupted run must not be freed before the device has stopped using it.
        if self._latest is not None:
            with suppress(Exception):
                self._latest.wait()
