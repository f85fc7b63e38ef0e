"""How fast a device is at the moment: the same small network, again and again.

Processors change their clock with heat and with what other cores do, and a virtual machine gets
more or less of its host. Over the minutes that samples take, a core was seen to change its speed by
a fifth. What was measured at different times is compared in units of what the yardstick took then.
"""

import math
import tempfile
from functools import cached_property
from pathlib import Path

from coexec.cache import Cache
from coexec.compiling.compiler import Compiler
from coexec.engines.opened import OpenDevice
from coexec.frontend.load import load, random_inputs
from coexec.plans.derive import stepwise
from coexec.profiling.store import Measurement
from coexec.profiling.sweep import Effort, Part, sweep
from coexec.zoo.builder import Builder

__all__ = ["Yardstick"]

_LAYERS, _CHANNELS, _SIZE = 6, 64, 28
"""Convolutions of 30 million multiply-adds each, whose tensors stay in the caches of a core."""
_EFFORT = Effort(warm_up=2, least=9, most=9)


class Yardstick:
    """A network on a device. It is compiled when it is first asked for."""

    def __init__(self, device: OpenDevice) -> None:
        self._device = device
        builder = Builder("yardstick", (1, _CHANNELS, _SIZE, _SIZE))
        value = builder.input
        for layer in range(_LAYERS):
            value = builder.conv(value, f"layer{layer}", _CHANNELS, 3, pad=1)
        self._model = load(builder.finish(value, "y"))
        self._feeds = random_inputs(self._model.graph)

    def measure(self) -> Measurement:
        """What the network takes now, in seconds.

        Raises:
            DeviceError: the device does not run it.
        """
        rows = sweep(self._part, [self._device], self._feeds, _EFFORT, lambda done, total: None)
        return Measurement.of([math.fsum(row) for row in rows])

    @cached_property
    def _part(self) -> Part:
        graph, place = self._model.graph, self._device.first.place
        schedule = stepwise(graph, {task.name: place for task in graph.tasks})
        with tempfile.TemporaryDirectory(prefix="coexec-yardstick-") as folder:
            compiler = Compiler(self._model, Cache(Path(folder)))
            return Part(graph.tasks, compiler.compile(schedule, [self._device]))
