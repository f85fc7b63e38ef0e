"""Exhaustive tuning: run the candidates on the device, and store the choice of the fastest one."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pyopencl as cl

from coexec.engines.kernels.base import Grid, KernelLaunch, Value
from coexec.engines.kernels.tuner import candidates, rounded, rule
from coexec.engines.opencl.binaries import kernel_of
from coexec.engines.opencl.device_queue import DeviceQueue
from coexec.engines.tuning_cache import Choices

_RUNS = 5


class Measuring:
    """Chooses variants and groups by their time on the device, with random numbers as data."""

    def __init__(self, queue: DeviceQueue, choices: Choices) -> None:
        self._queue = queue
        self._choices = choices
        properties = cl.command_queue_properties.PROFILING_ENABLE
        self._commands = cl.CommandQueue(queue.context, properties=properties)

    def variant(self, key: str, variants: Mapping[str, Callable[[], list[KernelLaunch]]]) -> str:
        """The name of the fastest variant of a node."""
        stored_choice = self._choices.get(key)
        if stored_choice in variants:
            return str(stored_choice)
        seconds = {}
        for name, make in variants.items():
            launches = make()
            groups = [rule(launch, self._queue.arch) for launch in launches]
            seconds[name] = self._seconds(launches, groups)
        best = min(seconds, key=seconds.__getitem__)
        self._choices.set(key, best)
        return best

    def group(self, launch: KernelLaunch) -> Grid:
        """The group of a launch: the one that the launch fixes, else the fastest one."""
        if launch.group:
            return launch.group
        sizes = [str(a) for a in launch.arguments if isinstance(a, int)]
        key = " ".join(["group", str(launch.grid), *sizes, launch.source])
        choice = self._choices.get(key)
        options = {str(group): group for group in candidates(launch, self._queue.arch)}
        if choice not in options:
            seconds = {text: self._seconds([launch], [group]) for text, group in options.items()}
            choice = min(seconds, key=seconds.__getitem__)
            self._choices.set(key, choice)
        return options[choice]

    def _seconds(self, launches: Sequence[KernelLaunch], groups: Sequence[Grid]) -> float:
        """Median seconds of all launches together; infinite if the device cannot run them."""
        buffers: dict[Any, Any] = {}  # kernels do not keep their buffers alive
        try:
            calls = [
                (self._kernel(launch, buffers), rounded(launch.grid, group), group)
                for launch, group in zip(launches, groups, strict=True)
            ]
            totals = []
            for _ in range(_RUNS):
                events = [cl.enqueue_nd_range_kernel(self._commands, *call) for call in calls]
                self._commands.finish()
                totals.append(sum(1e-9 * (e.profile.end - e.profile.start) for e in events))
            return statistics.median(totals)
        except cl.Error:
            return float("inf")

    def _kernel(self, launch: KernelLaunch, buffers: dict[Any, Any]) -> Any:
        program = self._queue.binaries.program(launch.source, self._queue.options)
        kernel = kernel_of(program, launch.name)
        index = 0
        for argument in launch.arguments:
            if isinstance(argument, Value):
                if argument.name not in buffers:
                    buffers[argument.name] = self._random(argument)
                kernel.set_arg(index, buffers[argument.name])
                kernel.set_arg(index + 1, np.int32(0))
                index += 2
            elif isinstance(argument, int):
                kernel.set_arg(index, np.int32(argument))
                index += 1
            else:
                buffers[id(argument)] = self._queue.constant(argument)
                kernel.set_arg(index, buffers[id(argument)])
                index += 1
        return kernel

    def _random(self, value: Value) -> Any:
        """A buffer of random numbers. Zeros would hide denormals, and be faster than real data."""
        ctype = np.float16 if value.half else np.dtype(value.dtype)
        numbers = np.random.default_rng(0).integers(0, 2, max(value.items, 1)).astype(ctype)
        return self._queue.constant(numbers, writable=True)
