"""A compiled module on CPU cores: its kernels, constants and memory, and its runs."""

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from coexec.arrays import Array, address_of, aligned, aligned_bytes
from coexec.engines.kernels.base import Grid, KernelLaunch, Value
from coexec.engines.kernels.building import Build, offsets_of
from coexec.engines.kernels.tiling import tiles_of
from coexec.engines.tiles import Tile, TiledLaunch, calls_of, thread_memory

_SCRATCH = "scratch"


class CppProgram:
    """The kernels of a module, with their constants and the memory between them."""

    def __init__(
        self, build: Build, functions: Sequence[int], ends: Collection[str], threads: int
    ) -> None:
        """
        Args:
            functions: addresses, one for each launch.
            ends: names of the tensors that enter or leave.
            threads: that compute together.
        """
        self.slots = {name: slot for slot, name in enumerate(sorted(ends))}
        """By tensor that enters or leaves, the slot for its address."""
        self._aliases = build.aliases
        self._offsets, self.scratch_bytes = offsets_of(build.scratch)
        self._arena = aligned_bytes(self.scratch_bytes)
        self._constants: dict[int, tuple[Array, Array]] = {}
        """Constants as kernels read them, by the identity of the arrays of the launches."""
        places = {name: (_SCRATCH, start) for name, start in self._offsets.items()}
        if threads > 1:
            tiles = tiles_of(build, threads, places)
        else:  # whole launches in their order, so none has to wait
            tiles = [_whole(launch.grid) for launch in build.launches]
        self.launches = [
            TiledLaunch(function, self._words(launch), row, launch.name, task, launch.thread_bytes)
            for launch, task, function, row in zip(
                build.launches, build.tasks, functions, tiles, strict=True
            )
        ]

    def bind(self, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> "BoundKernels":
        return BoundKernels(self, {**inputs, **outputs})

    def _words(self, launch: KernelLaunch) -> tuple[tuple[int, int], ...]:
        words: list[tuple[int, int]] = []
        for argument in launch.arguments:
            if isinstance(argument, Value):
                # The second word is the offset in scalars, which the address contains.
                words += [self._place(argument), (-1, 0)]
            elif isinstance(argument, int):
                words.append((-1, argument))
            else:
                pair = self._constants.setdefault(id(argument), (argument, aligned(argument)))
                words.append((-1, address_of(pair[1])))
        return tuple(words)

    def _place(self, value: Value) -> tuple[int, int]:
        location = self._aliases.of(value.name)
        start = location.offset * (value.size_bytes // max(value.items, 1))
        if location.root in self.slots:
            return self.slots[location.root], start
        return -1, address_of(self._arena) + self._offsets[location.root] + start


class BoundKernels:
    """The kernels with the tensors that enter and leave."""

    def __init__(self, program: CppProgram, tensors: Mapping[str, Array]) -> None:
        self._program = program
        self._tensors: dict[str, Array] = {}
        self.launches = program.launches
        self.pointers = np.zeros(len(program.slots), np.int64)
        for name, tensor in tensors.items():
            self.set_input(name, tensor)

    def set_input(self, name: str, tensor: Array) -> None:
        if tensor is not self._tensors.get(name):
            usable = self._tensors[name] = _usable(tensor)
            self.pointers[self._program.slots[name]] = address_of(usable)

    set_output = set_input

    def run(self) -> None:
        memory = thread_memory(self.launches)
        for launch in self.launches:
            for call in calls_of(launch, self.pointers.tolist(), memory):
                call()


def _whole(grid: Grid) -> tuple[Tile, ...]:
    """The only tile of a launch."""
    x, y, z = grid
    return (Tile(((0, x), (0, y), (0, z))),) if math.prod(grid) else ()


def _usable(tensor: Array) -> Array:
    """The array that kernels use: a caller's array that is not aligned to its elements is copied,
    as kernels only read it."""
    return tensor if tensor.flags.aligned else tensor.copy()
