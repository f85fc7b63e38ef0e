"""Parameters packed in the order in which a kernel reads them, once, or once a run.

Constant parameters are packed when the kernel is generated. For parameters that the model computes,
the same function packs the positions of their elements into a table. A small kernel moves the
elements by this table at the start of each run.
"""

import math
from collections.abc import Callable

import numpy as np

from coexec.arrays import Array
from coexec.engines.kernels.base import Context, KernelLaunch, Source, Value, ceil_div

__all__ = ["Pack", "Packed"]

Pack = Callable[[Array], Array]
"""Moves elements of any type, and puts zeros where there are none."""


class Packed:
    """A parameter of the model, packed by ``pack``, in vectors of the processor's width.

    If ``name`` is empty, the parameter is absent, and ``pack`` gets an empty array.
    """

    def __init__(self, context: Context, name: str, pack: Pack) -> None:
        self.launches: list[KernelLaunch] = []
        """Launches that must run before the kernel that reads the parameter."""
        array = context.constant(name) if name else np.zeros(0, np.float32)
        self._what: Array | Value
        if array is not None:
            self._what = pack(array)
            return
        value = context.value(name)
        table = pack(_positions(value) + 1).reshape(-1).astype(np.int32)
        block = context.arch.block
        self._what = context.temporary((1, block, 1, ceil_div(table.size, block)), block)
        self.launches.append(_moved(context, value, self._what, table))

    def declare(self, source: Source, argument: str) -> None:
        """Declare it in ``source``; ``LOAD_argument(i)`` is then its i-th vector."""
        if isinstance(self._what, Value):
            source.read(argument, self._what)
        else:
            source.constant(argument, self._what)


def _positions(value: Value) -> Array:
    """Position of each element of a tensor in memory."""
    if not value.block:
        return np.arange(math.prod(value.shape)).reshape(value.shape)
    n, c, y, x = np.indices(value.shape)
    _, _, height, width = value.shape
    vector = ((n * value.slices + c // value.block) * height + y) * width + x
    return np.asarray(vector * value.block + c % value.block)


def _moved(context: Context, original: Value, packed: Value, table: Array) -> KernelLaunch:
    """The kernel that fills ``packed`` from ``original`` by the table.

    An entry of the table is 1 plus the position of the element in ``original``, or 0 for a zero.
    """
    source = Source("pack", context.arch)
    source.read("x", original)
    source.constant("table", table, vector=1)
    source.write("y", packed)
    source.add(
        "  const int index = get_global_id(0), from = GET_table(index);\n"
        "  PUT_y(index, from ? GET_x(max(from - 1, 0)) : 0.0f);"
    )
    return source.finish((len(table),))
