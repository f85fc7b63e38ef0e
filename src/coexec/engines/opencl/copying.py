"""Copies between arrays in host memory, as commands of a device that computes in that memory."""

import ctypes
import math
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

from coexec.arrays import address_of, joined_axes
from coexec.engines.base import BoxCopy, NativeCall
from coexec.engines.opencl.c_api import addresses
from coexec.engines.opencl.failures import refusal, translated
from coexec.engines.opencl.host_arrays import HostArrays
from coexec.errors import ExecutionError

_MOST = 16
"""Largest number of rectangles in a copy. To launch more of them takes longer than to copy."""


class Side(NamedTuple):
    """Position and pitches of rows and layers in an array, in the form of
    clEnqueueCopyBufferRect."""

    origin: tuple[int, int, int]
    """First byte in a row, first row, first layer."""
    pitches: tuple[int, int]
    """Bytes from row to row and from layer to layer."""


Rectangle = tuple[tuple[int, int, int], Side, Side]
"""Size (bytes of a row, rows, layers), and the sides in the target and in the source."""


def rectangles(copy: BoxCopy) -> list[Rectangle] | None:
    """The rectangles that make up a copy of at least one item.

    None if there are more than `_MOST`, if OpenCL does not accept their pitches, if an array is not
    contiguous, or if the two views differ in type or shape.
    """
    if copy.into.dtype != copy.part.dtype or copy.into.shape != copy.part.shape:
        return None
    whole, views = (copy.target, copy.source), (copy.into, copy.part)
    if not all(array.flags.c_contiguous for array in whole):
        return None
    row_bytes, axes = joined_axes(*views)
    outer, (layers, rows) = axes[:-2], ([(1, 0, 0)] * 2 + axes)[-2:]
    if math.prod(size for size, _, _ in outer) > _MOST:
        return None
    rects: list[Rectangle] = []
    for index in product(*(range(size) for size, _, _ in outer)):
        sides = []
        for side, (array, view) in enumerate(zip(whole, views, strict=True), start=1):
            steps = (i * axis[side] for i, axis in zip(index, outer, strict=True))
            start = address_of(view) - address_of(array) + sum(steps)
            sides.append(_side(array.nbytes, start, row_bytes, rows[0], rows[side], layers[side]))
        target, source = sides
        if target is None or source is None:
            return None
        rects.append(((row_bytes, rows[0], layers[0]), target, source))
    return rects


def _side(
    size: int, start: int, row_bytes: int, rows: int, row_pitch: int, layer_pitch: int
) -> Side | None:
    """The side of rows in an array.

    None if the layer pitch is not a multiple of the row pitch, or if the rows exceed a pitch.

    Args:
        size: bytes of the array.
        start: byte at which the rows start.
        row_pitch, layer_pitch: 0 where there is one row or one layer.
    """
    row_pitch = row_pitch or size
    layer_pitch = layer_pitch or math.ceil(size / row_pitch) * row_pitch
    layer, offset = divmod(start, layer_pitch)
    row, byte = divmod(offset, row_pitch)
    regular = row_pitch > 0 and layer_pitch % row_pitch == 0
    if not regular or byte + row_bytes > row_pitch or (row + rows) * row_pitch > layer_pitch:
        return None
    return Side((byte, row, layer), (row_pitch, layer_pitch))


class ArrayCopies:
    """A set of copies that a device can run any number of times.

    Its buffers share their memory with other buffers. OpenCL does not define the result;
    `HostArrays` has tested that the driver does not copy the memory.
    """

    def __init__(self, memory: HostArrays, copies: Sequence[tuple[BoxCopy, Rectangle]]) -> None:
        self._queue = memory.queue
        self._sizes: list[Any] = []
        arrays = {id(a): a for copy, _ in copies for a in (copy.target, copy.source)}
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
            for copy, (region, to, of) in copies
        ]
        self._latest: Any = None

    @cached_property
    def native(self) -> Sequence[NativeCall]:
        functions = addresses()
        if functions is None:
            return ()
        calls = []
        for target, source, where in self._copies:
            numbers = (where["src_origin"], where["dst_origin"], where["region"])
            arrays = [(ctypes.c_size_t * 3)(*triple) for triple in numbers]
            self._sizes += arrays
            arguments = (
                self._queue.untimed,
                source.int_ptr,
                target.int_ptr,
                *map(ctypes.addressof, arrays),
                *where["src_pitches"],
                *where["dst_pitches"],
            )
            calls.append(NativeCall(functions["clEnqueueCopyBufferRect"], (*arguments, 0, 0, 0)))
        return tuple(calls)

    def failure(self, result: int) -> Exception:
        return refusal(self._queue.name, "putting a tensor together", result)

    def __call__(self) -> None:
        """Enqueue the copies behind the commands that are in the queue.

        Raises:
            ExecutionError: the device rejected a copy.
        """
        with translated(self._queue.name, "putting a tensor together", ExecutionError):
            for target, source, where in self._copies:
                self._latest = self._queue.copy_box(target, source, where)

    def __del__(self) -> None:
        # The memory of an interrupted run must not be freed before the device has stopped using it.
        if self._latest is not None:
            with suppress(Exception):
                self._latest.wait()
