"""The values of one run, and their transfers into the memories of their readers.

A value moves into a memory once in a run. The thread of the first reader's device moves it, right
before the reader starts. Later readers use the moved value. Without tensor caching, every reader
moves its inputs.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

import numpy as np

from coexec.arrays import Array, numpy_type
from coexec.engines.base import OpaqueValue, OpenEngine
from coexec.graph.graph import Tensor
from coexec.graph.region import Region
from coexec.hardware.hardware import MAIN, Memory
from coexec.runtime.allocation import Allocation
from coexec.runtime.loaded_plan import LoadedPlan
from coexec.runtime.recorder import Recorder

Landed = dict[tuple[str, Memory], Any]
"""By value and memory: the device tensor that it moves into."""


class Transfers:
    """The values of one run: their tensors, and copies into other memories and for the caller."""

    def __init__(
        self,
        installed: LoadedPlan,
        allocation: Allocation,
        landed: Landed,
        feeds: Mapping[str, Any],
        recorder: Recorder,
    ) -> None:
        """Allocate the outputs that segments write directly to the caller's arrays.

        Args:
            allocation: the tensors that are the same in every run.
            landed: tensors for moved values, filled by the first run and used again by later ones.
        """
        self._installed = installed
        self._allocation = allocation
        self._static = allocation.static
        self._landed = landed
        self._feeds = feeds
        self._recorder = recorder
        home = installed.home
        self.returned = {
            t.name: OpaqueValue() if t.opaque else home[t.name].allocate(t)
            for t in installed.returned
        }
        """By output, the caller's array, or the `OpaqueValue` of an opaque output."""
        self._moved: Landed = {}

    def tensor(self, value: str) -> Any:
        """The tensor of a value that a segment computes, in the memory of its engine."""
        return self._static[value] if value in self._static else self.returned[value]

    def array(self, value: str) -> Array:
        """The array of a value that is fed, or computed in the host's memory."""
        array: Array = self._feeds[value] if value in self._feeds else self.tensor(value)
        return array

    def input(self, value: str, engine: OpenEngine, reader: int) -> Any:
        """A value in the memory of ``engine``, for the segment ``reader``; moved if necessary."""
        if value in self._installed.compiled.gathers:
            return self._gathered(value, engine, reader)
        source = self._installed.home.get(value)
        if source is None:
            if engine.memory.name == MAIN:
                return self._feeds[value]
        elif source.memory == engine.memory:
            return self.tensor(value)
        key = (value, engine.memory)
        # Only the thread of a device moves tensors into its memory, unless devices share one.
        if key not in self._moved or (source is not None and not self._installed.tensor_caching):
            began_s = self._recorder.begin_transfer()
            array = self._feeds[value] if source is None else source.download(self.tensor(value))
            self._landed[key] = self._moved[key] = engine.upload(array, self._landed.get(key))
            self._recorder.end_transfer(began_s, value, array, source, engine, reader)
        return self._moved[key]

    def _gathered(self, value: str, engine: OpenEngine, reader: int) -> Any:
        """A value that is put together from boxes of other values, in the memory of ``engine``.

        Only the boxes move. Each reader puts the value together again.
        """
        gather = self._installed.compiled.gathers[value]
        target = self._allocation.gathers[reader, value]
        boxes: list[tuple[Array, Region]] = []
        moved: list[tuple[str, Array, OpenEngine | None]] = []
        began_s = self._recorder.begin_transfer()
        for name, source_region, target_region in gather.boxes:
            source = self._installed.home.get(name)
            array = self._feeds[name] if source is None else source.download(self.tensor(name))
            part = gather.layout.view(array, source_region)
            boxes.append((part, target_region))
            if source is None or source.memory != engine.memory:
                moved.append((name, part, source))
        engine.fill(target, boxes, gather.layout)
        for name, part, source in moved:  # moved together: the first one counts all of the time
            self._recorder.end_transfer(began_s, name, part, source, engine, reader)
            began_s = self._recorder.begin_transfer()
        return target

    def output(self, tensor: Tensor) -> Any:
        """An output of the model in memory that belongs to the caller. An opaque output has the
        form in which ONNX Runtime returns it."""
        name, compiled = tensor.name, self._installed.compiled
        if tensor.opaque and name in self.returned:
            return self.returned[name].value
        if name in compiled.parts:
            whole = np.empty(tensor.shape, numpy_type(tensor.dtype))
            for value, region in compiled.parts[name]:
                self._copy(value, whole[region.slices])
            return whole
        if name in self._static:
            return self._copy(name)
        if name in self.returned:
            return self._installed.home[name].download(self.returned[name])
        return deepcopy(self._feeds[name] if name in self._feeds else compiled.constants[name])

    def _copy(self, value: str, into: Array | None = None) -> Array:
        """A copy of a value that a segment computed, in the caller's memory."""
        source = self._installed.home[value]
        began_s = self._recorder.begin_transfer()
        array = source.download(self._static[value])
        if into is None:
            into = array.copy()
        else:
            into[...] = array
        self._recorder.end_transfer(began_s, value, into, source, None)
        return into
