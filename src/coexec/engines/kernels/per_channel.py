"""A parameter with one number for each channel."""

import numpy as np

from coexec.arrays import Array
from coexec.engines.kernels.base import Source, Value, ceil_div
from coexec.engines.kernels.value import at


class PerChannel:
    """A parameter with one number for each channel: scale or bias of a norm."""

    def __init__(self, source: Source, argument: str, numbers: Array | Value) -> None:
        self._argument = argument
        self._block = source.arch.block
        self._channels = numbers.shape[0]
        self._packed = not isinstance(numbers, Value)
        if isinstance(numbers, Value):
            source.read(argument, numbers)
            return
        full = np.zeros(ceil_div(self._channels, self._block) * self._block, np.float32)
        full[: self._channels] = numbers
        source.constant(argument, full)

    def scalar(self, channel: str) -> str:
        """The number of a channel."""
        if self._packed:
            return f"GET_{self._argument}({channel})"
        return f"GET_{self._argument}({at(self._argument, [channel])})"

    def vector(self, slice_: str) -> str:
        """The numbers of a block of channels; lanes past the last channel have other numbers."""
        if self._packed:
            return f"LOAD_{self._argument}({slice_})"
        lanes = (
            self.scalar(f"min(({slice_}) * {self._block} + {lane}, {self._channels - 1})")
            for lane in range(self._block)
        )
        return f"(float{self._block})({', '.join(lanes)})"
