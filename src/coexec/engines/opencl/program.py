"""A compiled module: its kernels, constants and memory, and its runs."""

import ctypes
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from coexec.engines.base import NativeCall
from coexec.engines.kernels.base import Grid, KernelLaunch, Value
from coexec.engines.kernels.building import Build
from coexec.engines.kernels.tuner import rounded
from coexec.engines.opencl.binaries import Binaries, kernel_of
from coexec.engines.opencl.c_api import addresses
from coexec.engines.opencl.compiling import programs
from coexec.engines.opencl.device_queue import DeviceQueue
from coexec.engines.opencl.failures import refusal, translated
from coexec.engines.opencl.host_arrays import HostArrays
from coexec.engines.opencl.scratch import ScratchMemory
from coexec.engines.opencl.tensors import DeviceMemory
from coexec.errors import ExecutionError

_UPLOADED = np.zeros(0, np.float32)


class OpenClProgram:
    """The launches of a module on one device."""

    def __init__(
        self,
        build: Build,
        memory: DeviceMemory | HostArrays,
        group_of: Callable[[KernelLaunch], Grid | None],
    ) -> None:
        """``group_of``: number of work items in a group; None leaves the choice to the driver."""
        self._build = build
        self.memory = memory
        self.queue = queue = memory.queue
        self.groups = [group_of(launch) for launch in build.launches]
        """For each launch, the number of work items in a group; None: the driver's choice."""
        self._programs = self._compile(queue.binaries, queue.options)
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

    def bind(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> "_BoundLaunches":
        return _BoundLaunches(self, {**inputs, **outputs}, tuple(outputs))

    def _compile(self, binaries: Binaries, options: str) -> list[Any]:
        launches = self._build.launches
        first: dict[str, tuple[str, str]] = {}
        for launch, task in zip(launches, self._build.tasks, strict=True):
            first.setdefault(launch.source, (launch.name, task))

        def build(source: str) -> Any:
            kernel, task = first[source]
            with translated(self.queue.name, f"compiling the kernel {kernel} of {task!r}"):
                return binaries.program(source, options)

        programs_by_source = programs(binaries, list(first), options, build, self.queue.arch)
        return [programs_by_source[launch.source] for launch in launches]

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
        self, program: OpenClProgram, tensors: Mapping[str, Any], written: tuple[str, ...]
    ) -> None:
        self._program = program
        self._memory: Any = program.memory
        self._queue = program.queue
        self._tensors = {n: self._memory.bound(tensor, None) for n, tensor in tensors.items()}
        """Tensors in the form that kernels use, by name."""
        self._written = written
        launches = program._build.launches
        self._sizes: list[Any] = []
        self.calls: list[tuple[Any, Any, Any]] = []
        """Kernel, grid and group of each launch."""
        self._uses: dict[str, list[tuple[Any, int, Value]]] = {}
        for launch, group, compiled, constants in zip(
            launches, program.groups, program._programs, program._constants, strict=True
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

    def set_input(self, name: str, tensor: Any) -> None:
        previous = self._tensors.get(name)
        bound = self._memory.bound(tensor, previous)
        if bound is previous:
            return
        self._tensors[name] = bound
        for kernel, index, value in self._uses.get(name, ()):
            self._set(kernel, index, value)

    set_output = set_input

    @cached_property
    def _native(self) -> tuple[tuple[NativeCall, ...], tuple[NativeCall, ...]]:
        """The calls that launch the kernels, and those that wait for them."""
        functions = addresses()
        if functions is None or not isinstance(self._memory, HostArrays) or not self.calls:
            return (), ()
        queue = self._queue.untimed
        self._event = ctypes.c_void_p()
        event = ctypes.addressof(self._event)
        launches = []
        for number, (kernel, grid, group) in enumerate(self.calls, start=1):
            ends = event if number == len(self.calls) else 0
            sizes = [0 if size is None else self._kept(size) for size in (grid, group)]
            arguments = (queue, kernel.int_ptr, len(grid), 0, *sizes, 0, 0, ends)
            launches.append(NativeCall(functions["clEnqueueNDRangeKernel"], arguments))
        launches.append(NativeCall(functions["clFlush"], (queue,)))
        waits = (
            NativeCall(functions["clWaitForEvents"], (1, event)),
            NativeCall(functions["clReleaseEvent"], (event,), loaded=0),
        )
        return tuple(launches), waits

    def _kept(self, sizes: Sequence[int]) -> int:
        """The address of numbers of work items, which live as long as this object."""
        array = (ctypes.c_size_t * len(sizes))(*sizes)
        self._sizes.append(array)
        return ctypes.addressof(array)

    @property
    def native(self) -> Sequence[NativeCall]:
        return self._native[0]

    @property
    def native_wait(self) -> Sequence[NativeCall]:
        return self._native[1]

    def failure(self, result: int) -> Exception:
        return refusal(self._queue.name, self._doing, result)

    def __del__(self) -> None:
        # The memory of an interrupted run must not be freed before the device has stopped using it.
        if "_native" in self.__dict__:
            with suppress(Exception):
                self._queue.finish()

    def run(self) -> None:
        self.launch().wait()

    def launch(self) -> "_EnqueuedKernels":
        memory, queue, program = self._memory, self._queue, self._program
        with self.translated():
            written = [self._tensors[name] for name in self._written]
            memory.recycle(written)
            events = [
                queue.launch(*call, launch.name, result)
                for call, launch, result in zip(
                    self.calls, program.launches, program.tasks, strict=True
                )
            ]
            sent = memory.send(written)
            queue.commands.flush()
        return _EnqueuedKernels(self, memory, queue, written, events, sent)

    def translated(self) -> AbstractContextManager[None]:
        """Convert errors of OpenCL; the message names the tasks of this program."""
        return translated(self._queue.name, self._doing, ExecutionError)

    @property
    def _doing(self) -> str:
        tasks = self._program.tasks
        return f"running {tasks[0]!r} to {tasks[-1]!r}" if tasks else "waiting"


class _EnqueuedKernels:
    """The kernels of a program in a queue, with the memory that they use."""

    def __init__(
        self,
        bound: _BoundLaunches,
        memory: DeviceMemory | HostArrays,
        queue: DeviceQueue,
        written: Sequence[Any],
        events: Sequence[Any],
        sent: Any,
    ) -> None:
        """
        Args:
            written: the tensors that are complete when all commands have ended.
            events: events of the kernels, in order.
            sent: last event of the transfer of tensors to the host behind the kernels, if any.
        """
        self._bound, self._memory, self._queue = bound, memory, queue
        self._timer = queue.timer
        self._written = written
        self._events = events
        self._last = events[-1] if sent is None and events else sent
        self._launched_s = time.perf_counter()
        self._waited = False

    @property
    def ended(self) -> bool:
        if self._waited or self._last is None:
            return True
        with self._bound.translated():
            return self._queue.ended(self._last)

    def wait(self) -> None:
        if self._waited:
            return
        if self._last is not None:
            with self._bound.translated():
                self._queue.wait(self._last)
        self._waited = True
        self._memory.sent(self._written)

    def span_s(self) -> tuple[float, float]:
        if self._timer is None or not self._events:
            return self._launched_s, self._launched_s
        return self._timer.span_s(self._events[0], self._last)

    def __del__(self) -> None:
        # The memory of an interrupted run must not be freed before the device has stopped using it.
        if not self._waited and self._last is not None:
            with suppress(Exception):
                self._last.wait()
