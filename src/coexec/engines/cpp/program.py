"""A compiled module on CPU cores: its kernels, constants and memory, and its runs."""

import ctypes
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from coexec.arrays import Array, address_of, aligned, aligned_bytes
from coexec.engines.base import NativeCall
from coexec.engines.kernels.base import Grid, KernelLaunch, Value
from coexec.engines.kernels.building import Build, offsets_of
from coexec.errors import ExecutionError

_FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 7)


class KernelCall(NamedTuple):
    """A function that computes the work items of a box of ``grid``, see `dialect`."""

    function: int
    """Its address."""
    words: tuple[tuple[str, int], ...]
    """Its arguments: the name of a tensor that enters or leaves the program, and the distance in
    bytes from the start of that tensor; or "" and an address or a number."""
    grid: Grid


class CppProgram:
    """The kernels of a module, with their constants and the memory between them."""

    def __init__(
        self, device: str, build: Build, functions: Sequence[int], ends: Collection[str]
    ) -> None:
        """
        Args:
            device: its name, for messages.
            functions: addresses, one for each launch.
            ends: names of the tensors that enter or leave.
        """
        self.device = device
        self.build = build
        self._ends = ends
        self._offsets, self.scratch_bytes = offsets_of(build.scratch)
        self._arena = aligned_bytes(self.scratch_bytes)
        self._constants: dict[int, tuple[Array, Array]] = {}
        """Constants as kernels read them, by the identity of the arrays of the launches."""
        self.calls = [
            KernelCall(function, self._words(launch), launch.grid)
            for launch, function in zip(build.launches, functions, strict=True)
        ]

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> "BoundKernels":
        return BoundKernels(self, {**inputs, **outputs})

    def _words(self, launch: KernelLaunch) -> tuple[tuple[str, int], ...]:
        words: list[tuple[str, int]] = []
        for argument in launch.arguments:
            if isinstance(argument, Value):
                # The second word is the offset in scalars, which the address contains.
                words += [self._place(argument), ("", 0)]
            elif isinstance(argument, int):
                words.append(("", argument))
            else:
                pair = self._constants.setdefault(id(argument), (argument, aligned(argument)))
                words.append(("", address_of(pair[1])))
        return tuple(words)

    def _place(self, value: Value) -> tuple[str, int]:
        location = self.build.aliases.of(value.name)
        start = location.offset * (value.size_bytes // max(value.items, 1))
        if location.root in self._ends:
            return location.root, start
        return "", address_of(self._arena) + self._offsets[location.root] + start


class BoundKernels:
    """The kernels with the tensors that enter and leave; one after the other is run."""

    def __init__(self, program: CppProgram, tensors: Mapping[str, Array]) -> None:
        self._program = program
        self._tensors = {name: _usable(tensor) for name, tensor in tensors.items()}
        self._uses: dict[str, list[tuple[Array, int, int]]] = {}
        """By tensor: the arguments of a kernel, the number of one of them, and its distance."""
        self._arguments = [self._filled(call) for call in program.calls]
        self.native = tuple(
            NativeCall(call.function, (address_of(words), 0, x, 0, y, 0, z))
            for call, words in zip(program.calls, self._arguments, strict=True)
            for x, y, z in [call.grid]
        )
        self._calls = [(_FUNCTION(call.function), call.arguments) for call in self.native]

    def _filled(self, call: KernelCall) -> Array:
        words = np.zeros(len(call.words), np.int64)
        for index, (name, number) in enumerate(call.words):
            words[index] = number + (address_of(self._tensors[name]) if name else 0)
            if name:
                self._uses.setdefault(name, []).append((words, index, number))
        return words

    def set_input(self, name: str, tensor: Array) -> None:
        if tensor is self._tensors.get(name):
            return
        usable = self._tensors[name] = _usable(tensor)
        for words, index, number in self._uses.get(name, ()):
            words[index] = address_of(usable) + number

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
