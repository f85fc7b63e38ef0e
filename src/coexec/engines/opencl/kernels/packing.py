"""Parameters in the order in which a kernel reads them: packed beforehand, or once a run.

Constant ones are packed when the kernel is generated. For those that the model computes, the same
function packs their positions into a table, by which a small kernel moves them in front of each
run.
"""

import math
from collections.abc import Callable

import numpy as np

from coexec.arrays import Array
from coexec.engines.opencl.kernels.base import Context, KernelLaunch, Source, Value, ceil_div

__all__ = ["Pack", "Packed"]

Pack = Callable[[Array], Array]
"""Moves elements of any type, and puts zeros where there are none."""


class Packed:
    """A parameter of the model as ``pack`` lays it out, in vectors of the processor's width.

    ``pack`` gets an empty array for a parameter without a name, which is absent.
    """

    def __init__(self, context: Context, name: str, pack: Pack) -> None:
        self.launches: list[KernelLaunch] = []
        """What has to run before the kernel that reads it."""
        array = context.constant(name) if name else np.zeros(0, np.float32)
        self._what: Array | Value
        if array is not None:
            self._what = pack(array)
            return
        given = context.value(name)
        table = pack(_positions(given) + 1).reshape(-1).astype(np.int32)
        block = context.arch.block
        self._what = context.temporary((1, block, 1, ceil_div(table.size, block)), block)
        self.launches.append(_moved(context, given, self._what, table))

    def declare(self, source: Source, argument: str) -> None:
        """``LOAD_argument(i)`` in ``source`` is then its i-th vector."""
        if isinstance(self._what, Value):
            source.read(argument, self._what)
        else:
            source.constant(argument, self._what)


def _positions(value: Value) -> Array:
    """Where each element of a tensor lies in memory."""
    if not value.block:
        return np.arange(math.prod(value.shape)).reshape(value.shape)
    n, c, y, x = np.indices(value.shape)
    _, _, height, width = value.shape
    vector = ((n * value.slices + c // value.block) * height + y) * width + x
    return np.asarray(vector * value.block + c % value.block)


def _moved(context: Context, given: Value, packed: Value, table: Array) -> KernelLaunch:
    """Sets each element of ``packed`` to that of ``given`` whose position, plus one, stands in the
    table, or to zero for a zero."""
    source = Source("pack", context.arch)
    source.read("x", given)
    source.constant("table", table, vector=1)
    source.write("y", packed)
    source.lines(
        "  const int index = get_global_id(0), from = GET_table(index);\n"
        "  PUT_y(index, from ? GET_x(max(from - 1, 0)) : 0.0f);"
    )
    return source.finish((len(table),))
