"""Inputs of a kernel that may be tensors or constants of the model."""

import numpy as np

from coexec.devices.opencl.kernels.base import Context, Source, Value, ceil_div, row_major
from coexec.devices.opencl.kernels.positions import at

__all__ = ["PerChannel", "declare"]


def declare(source: Source, context: Context, argument: str, name: str) -> Value:
    """Declare ``name`` as ``argument``, to be read by ``GET_`` and ``AT_`` whatever it is.

    Returns how it lies: constants are row-major.
    """
    array = context.constant(name)
    if array is None:
        value = context.value(name)
        source.read(argument, value)
        return value
    source.constant(argument, array, vector=1)
    source.define(row_major(argument, array.shape))
    return Value(name, array.shape, array.dtype.name)


class PerChannel:
    """A parameter with one number for each channel: scale or bias of a norm."""

    def __init__(
        self, source: Source, context: Context, argument: str, name: str, repeat: int = 1
    ) -> None:
        """``repeat`` channels in a row share a number."""
        self._argument = argument
        self._block = context.arch.block
        self._repeat = repeat
        self._channels = context.tensors[name].shape[0] * repeat
        array = context.constant(name)
        self._packed = array is not None
        if array is None:
            source.read(argument, context.value(name))
        else:
            blocks = ceil_div(self._channels, self._block)
            full = np.zeros(blocks * self._block, array.dtype)
            full[: self._channels] = np.repeat(array, repeat)
            source.constant(argument, full)

    def scalar(self, channel: str) -> str:
        """The number of a channel."""
        if self._packed:
            return f"GET_{self._argument}({channel})"
        return f"GET_{self._argument}({at(self._argument, [f'({channel}) / {self._repeat}'])})"

    def vector(self, slice_: str) -> str:
        """The numbers of a block of channels; lanes past the last channel hold some number."""
        if self._packed:
            return f"LOAD_{self._argument}({slice_})"
        lanes = (
            self.scalar(f"min(({slice_}) * {self._block} + {lane}, {self._channels - 1})")
            for lane in range(self._block)
        )
        return f"(float{self._block})({', '.join(lanes)})"
