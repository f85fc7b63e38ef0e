"""Indices out of range that the kernels of a bound program have stored."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from coexec.engines.base import aligned_empty
from coexec.engines.kernels.index_check import IndexCheck
from coexec.engines.opencl.host_arrays import HostArrays
from coexec.engines.opencl.tensors import DeviceMemory
from coexec.errors import InputError
from coexec.graph.graph import Tensor

__all__ = ["NotedIndices"]


class NotedIndices:
    """One number for each check: 0, or an index that is out of range. 0 is always in range."""

    def __init__(self, checks: Mapping[str, IndexCheck], memory: DeviceMemory | HostArrays) -> None:
        self._checks = tuple(checks.values())
        self.position = {name: number for number, name in enumerate(checks)}
        """Position of a check's number, by name of the check."""
        self._numbers = aligned_empty(Tensor("", (len(checks),), "int64"))
        self._numbers[...] = 0
        self._memory = memory
        self.buffer: Any
        if isinstance(memory, HostArrays):
            self.buffer = memory.seen(self._numbers).buffer
        else:
            self.buffer = memory.queue.constant(self._numbers, writable=True)

    def refuse(self) -> None:
        """
        Raises:
            InputError: a kernel that has ended has found an index that is out of range.
        """
        if isinstance(self._memory, DeviceMemory):
            self._memory.read(self.buffer, self._numbers)
        (noted,) = np.nonzero(self._numbers)
        if not noted.size:
            return
        check, number = self._checks[noted[0]], int(self._numbers[noted[0]])
        self._numbers[...] = 0
        if isinstance(self._memory, DeviceMemory):
            self._memory.write(self.buffer, self._numbers)
        raise InputError(check.refusal(number))
