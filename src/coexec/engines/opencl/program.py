"""A compiled module: its kernels, constants and memory, and its runs."""

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from coexec.engines.kernels.base import Grid, KernelLaunch, Value
from coexec.engines.kernels.building import Build
from coexec.engines.kernels.tuner import rounded
from coexec.engines.opencl.binaries import kernel_of
from coexec.engines.opencl.failures import translated
from coexec.engines.opencl.scratch import ScratchMemory
from coexec.engines.opencl.tensors import DeviceMemory, DeviceTensor
from coexec.errors import ExecutionError

_UPLOADED = np.zeros(0, np.float32)


class OpenClProgram:
    """The launches of a module on one device."""

    def __init__(
        self,
        build: Build,
        memory: DeviceMemory,
        group_of: Callable[[KernelLaunch], Grid | None],
    ) -> None:
        """``group_of``: number of work items in a group; None leaves the choice to the driver."""
        self._build = build
        self.memory = memory
        self.queue = queue = memory.queue
        self.groups = [group_of(launch) for launch in build.launches]
        """For each launch, the number of work items in a group; None: the driver's choice."""
        self._programs = self._compile()
        with translated(queue.name, f"taking memory for {len(build.launches)} kernels"):
            self._constants = self._upload()
            self._build = replace(build, launches=tuple(map(_without_arrays, build.launches)))
            self._scratch = ScratchMemory(build, queue)

    @property
    def launches(self) -> tuple[KernelLaunch, ...]:
        return self._build.launches

    @property
    def tasks(self) -> tuple[str, ...]:
        """Name of the operator's result, for each launch."""
        return self._build.tasks

    def bind(
        self, inputs: Mapping[str, DeviceTensor], outputs: Mapping[str, DeviceTensor]
    ) -> "_BoundLaunches":
        return _BoundLaunches(self, {**inputs, **outputs}, tuple(outputs))

    def _compile(self) -> list[Any]:
        queue = self.queue
        programs: dict[str, Any] = {}
        for launch, task in zip(self._build.launches, self._build.tasks, strict=True):
            if launch.source not in programs:
                with translated(queue.name, f"compiling the kernel {launch.name} of {task!r}"):
                    programs[launch.source] = queue.binaries.program(launch.source, queue.options)
        return [programs[launch.source] for launch in self._build.launches]

    def _upload(self) -> list[list[Any]]:
        """Buffers of the constants of each launch. The same array has one buffer."""
        buffers: dict[int, Any] = {}
        rows: list[list[Any]] = []
        for launch in self._build.launches:
            row = []
            for argument in launch.arguments:
                if isinstance(argument, np.ndarray):
                    if id(argument) not in buffers:
                        buffers[id(argument)] = self.memory.constant(argument)
                    row.append(buffers[id(argument)])
            rows.append(row)
        return rows

    @property
    def images(self) -> Collection[str]:
        """Tensors between launches that are stored as images."""
        return self._build.images.keys()

    @property
    def planned_bytes(self) -> int:
        """Bytes of memory for the tensors between the launches, as planned."""
        return self._scratch.planned_bytes

    @property
    def scratch_bytes(self) -> int:
        """Bytes of memory for the tensors between the launches, as allocated."""
        return self._scratch.allocated_bytes

    def buffer_of(self, value: Value, tensors: Mapping[str, Any]) -> tuple[Any, int | None]:
        """The buffer of a tensor and its offset there, in scalars; or its image and None."""
        location = self._build.aliases.of(value.name)
        if location.root in tensors:
            return tensors[location.root].buffer, location.offset
        buffer, start_bytes = self._scratch.of(location.root)
        if start_bytes is None:
            return buffer, None
        return buffer, start_bytes // (value.size_bytes // max(value.items, 1)) + location.offset


def _without_arrays(launch: KernelLaunch) -> KernelLaunch:
    """``launch`` without the values of its constants, which are in buffers now."""
    arguments = (_UPLOADED if isinstance(a, np.ndarray) else a for a in launch.arguments)
    return replace(launch, arguments=tuple(arguments), with_images=lambda names: "")


class _BoundLaunches:
    def __init__(
        self,
        program: OpenClProgram,
        tensors: Mapping[str, DeviceTensor],
        written: Collection[str],
    ) -> None:
        self._program = program
        self._tensors = dict(tensors)
        self._written = written
        self._last: Any = None
        """Event of the last command of a run that has not ended."""
        self.calls: list[tuple[Any, Any, Any]] = []
        """Kernel, grid and group of each launch."""
        self._uses: dict[str, list[tuple[Any, int, Value]]] = {}
        for launch, group, compiled, constants in zip(
            program.launches, program.groups, program._programs, program._constants, strict=True
        ):
            kernel = kernel_of(compiled, launch.name)
            self._set_arguments(kernel, launch, constants)
            grid = launch.grid if group is None else rounded(launch.grid, group)
            self.calls.append((kernel, grid, group))

    def _set_arguments(self, kernel: Any, launch: KernelLaunch, constants: list[Any]) -> None:
        index = 0
        buffers = iter(constants)
        for argument in launch.arguments:
            if isinstance(argument, np.ndarray):
                kernel.set_arg(index, next(buffers))
                index += 1
                continue
            if isinstance(argument, int):
                kernel.set_arg(index, np.int32(argument))
                index += 1
                continue
            root = self._program._build.aliases.of(argument.name).root
            self._uses.setdefault(root, []).append((kernel, index, argument))
            index += self._set(kernel, index, argument)

    def _set(self, kernel: Any, index: int, value: Value) -> int:
        """Set a tensor as an argument. Returns how many arguments it takes."""
        buffer, offset = self._program.buffer_of(value, self._tensors)
        kernel.set_arg(index, buffer)
        if offset is None:
            return 1
        kernel.set_arg(index + 1, np.int32(offset))
        return 2

    def set_input(self, name: str, tensor: DeviceTensor) -> None:
        if tensor is self._tensors.get(name):
            return
        self._tensors[name] = tensor
        for kernel, index, value in self._uses.get(name, ()):
            self._set(kernel, index, value)

    set_output = set_input

    def run(self) -> None:
        program = self._program
        memory, queue, tasks = program.memory, program.queue, program.tasks
        doing = f"running {tasks[0]!r} to {tasks[-1]!r}" if tasks else "waiting"
        with translated(queue.name, doing, ExecutionError):
            written = [self._tensors[name] for name in self._written]
            memory.recycle(written)
            for call, launch, result in zip(self.calls, program.launches, tasks, strict=True):
                self._last = queue.launch(*call, launch.name, result)
            self._last = memory.send(written) or self._last
            queue.commands.flush()
            if self._last is not None:
                queue.wait(self._last)
        self._last = None
        memory.sent(written)

    def __del__(self) -> None:
        # The memory of an interrupted run must not be freed before the device has stopped using it.
        if self._last is not None:
            with suppress(Exception):
                self._last.wait()
