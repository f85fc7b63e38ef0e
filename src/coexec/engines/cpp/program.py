"""A compiled module on CPU cores: its launches, constants and memory, and its runs."""

import ctypes
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coexec.arrays import Array, address_of, aligned, aligned_bytes
from coexec.engines.base import NativeCall
from coexec.engines.kernels.base import Grid, Value
from coexec.engines.kernels.building import Build, offsets_of
from coexec.errors import ExecutionError

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 7)


class KernelCall(NamedTuple):
    """A function that computes the work items of a box of ``grid``, see `dialect`."""

    function: int
    """Its address."""
    arguments: Array
    """Addresses and integers, in memory that stays where it is."""
    grid: Grid


class CppProgram:
    """The launches of a module."""

    def __init__(self, device: str, build: Build, functions: Sequence[int]) -> None:
        """
        Args:
            device: its name, for messages.
            functions: addresses, one for each launch.
        """
        self.device = device
        self.build = build
        self.functions = functions
        self._offsets, self.scratch_bytes = offsets_of(build.scratch)
        self._arena = aligned_bytes(self.scratch_bytes)
        copies: dict[int, Array] = {}
        self.constants = [
            [
                copies.setdefault(id(argument), aligned(argument))
                for argument in launch.arguments
                if isinstance(argument, np.ndarray)
            ]
            for launch in build.launches
        ]
        """Constants of each launch; the same array is there once."""

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> "BoundKernels":
        return BoundKernels(self, {**inputs, **outputs})

    def address(self, value: Value, tensors: Mapping[str, Array]) -> int:
        """The address of a tensor's first element.

        Args:
            tensors: those that enter and leave the program.
        """
        place = self.build.aliases.of(value.name)
        start = place.offset * (value.size_bytes // max(value.items, 1))
        if place.root in tensors:
            return address_of(tensors[place.root]) + start
        return address_of(self._arena) + self._offsets[place.root] + start


class BoundKernels:
    """The launches with the tensors that they read and write; one after the other is run."""

    def __init__(self, program: CppProgram, tensors: Mapping[str, Array]) -> None:
        self._program = program
        self._callers = dict(tensors)
        self._tensors = {name: _usable(tensor) for name, tensor in tensors.items()}
        self._uses: dict[str, list[tuple[Array, int, Value]]] = {}
        """Arguments that are addresses of a tensor, with their lists, by name of the tensor."""
        build = program.build
        self.launches = [
            KernelCall(function, self._arguments(launch.arguments, constants), launch.grid)
            for launch, function, constants in zip(
                build.launches, program.functions, program.constants, strict=True
            )
        ]
        self.native = tuple(
            NativeCall(function, (address_of(arguments), 0, x, 0, y, 0, z))
            for function, arguments, (x, y, z) in self.launches
        )
        self._calls = [(_FUNCTION(call.function), call.arguments) for call in self.native]

    def _arguments(self, arguments: Sequence[object], constants: Sequence[Array]) -> Array:
        numbers: list[int] = []
        values = []
        copies = iter(constants)
        for argument in arguments:
            if isinstance(argument, Value):
                values.append((len(numbers), argument))
                # The second number is the offset, which the address has already.
                numbers += [self._program.address(argument, self._tensors), 0]
            elif isinstance(argument, int):
                numbers.append(argument)
            else:
                numbers.append(address_of(next(copies)))
        words = np.array(numbers, np.int64)
        for index, value in values:
            root = self._program.build.aliases.of(value.name).root
            self._uses.setdefault(root, []).append((words, index, value))
        return words

    def set_input(self, name: str, tensor: Array) -> None:
        if tensor is self._callers.get(name) and tensor is self._tensors[name]:
            return
        self._callers[name], self._tensors[name] = tensor, _usable(tensor)
        for words, index, value in self._uses.get(name, ()):
            words[index] = self._program.address(value, self._tensors)

    set_output = set_input

    def run(self) -> None:
        for function, arguments in self._calls:
            function(*arguments)

    def failure(self, result: int) -> Exception:
        return ExecutionError(f"{self._program.device}: a kernel has returned {result}")


def _usable(tensor: Array) -> Array:
    """The array that kernels use: a caller's array that is not aligned to its elements is copied,
    as kernels only read it."""
    return tensor if tensor.flags.aligned else tensor.copy()
