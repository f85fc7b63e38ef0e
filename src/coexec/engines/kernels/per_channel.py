"""Inputs of a kernel that may be tensors or constants of the model."""

import numpy as np

from coexec.arrays import Array
from coexec.engines.kernels.base import Context, Source, Value, ceil_div, row_major
from coexec.engines.kernels.positions import at

__all__ = ["PerChannel", "declare", "given"]


def given(context: Context, name: str) -> Array | Value:
    """The values of ``name`` if it is constant, else the tensor."""
    array = context.constant(name)
    return context.value(name) if array is None else array


def declare(source: Source, context: Context, argument: str, name: str) -> Value:
    """Declare the tensor or constant ``name`` as ``argument``, for ``GET_`` and ``AT_``."""
    operand = given(context, name)
    if isinstance(operand, Value):
        source.read(argument, operand)
        return operand
    source.constant(argument, operand, vector=1)
    source.define(row_major(argument, operand.shape))
    return Value(name, operand.shape, operand.dtype.name)


class PerChannel:
    """A parameter with one number for each channel: scale or bias of a norm."""

    def __init__(
        self, source: Source, argument: str, numbers: Array | Value, repeat: int = 1
    ) -> None:
        """``repeat`` channels in a row share a number."""
        self._argument = argument
        self._block = source.arch.block
        self._repeat = repeat
        self._channels = numbers.shape[0] * repeat
        self._packed = not isinstance(numbers, Value)
        if isinstance(numbers, Value):
            source.read(argument, numbers)
            return
        full = np.zeros(ceil_div(self._channels, self._block) * self._block, np.float32)
        full[: self._channels] = np.repeat(numbers, repeat)
        source.constant(argument, full)

    def scalar(self, channel: str) -> str:
        """The number of a channel."""
        if self._packed:
            return f"GET_{self._argument}({channel})"
        return f"GET_{self._argument}({at(self._argument, [f'({channel}) / {self._repeat}'])})"

    def vector(self, slice_: str) -> str:
        """The numbers of a block of channels; lanes past the last channel have other numbers."""
        if self._packed:
            return f"LOAD_{self._argument}({slice_})"
        lanes = (
            self.scalar(f"min(({slice_}) * {self._block} + {lane}, {self._channels - 1})")
            for lane in range(self._block)
        )
        return f"(float{self._block})({', '.join(lanes)})"
