"""Makes a plan ready to start: lowers the model for each engine and cuts it into segments."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from itertools import permutations
from pathlib import Path

import numpy as np
import onnx_ir as ir

from coexec.arrays import Array
from coexec.cache import Cache
from coexec.engines.base import OpenEngine
from coexec.engines.opened import OpenDevice, engine_at
from coexec.errors import StoreError
from coexec.graph.graph import tensor_part
from coexec.hardware.hardware import Place
from coexec.keys import digest
from coexec.lowering.entry import import_lowered, load_lowered, without_tables
from coexec.lowering.lowered_model import LoweredModel, without_lowering
from coexec.lowering.module import Module
from coexec.lowering.pieces import border_tensors, changing_layout, cut_pieces, leaving_blocks
from coexec.model.model import Model
from coexec.model.stored import is_large
from coexec.plan.derive import stepwise
from coexec.plan.schedule import Schedule, TaskRegion
from coexec.runtime.compiled import CompiledPlan

_PROTOBUF_BYTES = 16 << 20
"""Bytes for three copies of a lowered model without its weights."""


class Compiler:
    """Compiles plans of one model; keeps the lowered models in memory and in the cache."""

    def __init__(self, model: Model, cache: Cache) -> None:
        self.model = model
        self._cache = cache
        self._lowered: dict[str, LoweredModel] = {}

    def compile(
        self, schedule: Schedule, devices: Sequence[OpenDevice], *, tasks_apart: bool = False
    ) -> CompiledPlan:
        """The compiled plan of ``schedule`` for ``devices``.

        Args:
            tasks_apart: engines fuse nothing across the tasks of a segment either, so that each of
                their operators belongs to one task.
        """
        graph = schedule.graph
        borders = _borders(schedule, tasks_apart)
        lowered = self._lower(schedule.places, devices, borders)
        modules, gathers = cut_pieces(schedule, lowered, self._unlowered)
        parts: dict[str, list[TaskRegion]] = {}
        for segment in schedule.segments:
            for name, region in segment.writes:
                part = tensor_part(name, region, graph)
                if name in graph.outputs and part != name:
                    parts.setdefault(name, []).append((part, region))
        constants = {
            name: _array(value.const_value)
            for name, value in self.model.source.graph.initializers.items()
            if name in graph.outputs and value.const_value is not None
        }
        return CompiledPlan(
            tuple(graph.tensors[n] for n in graph.inputs),
            tuple(graph.tensors[n] for n in graph.outputs),
            constants,
            {name: tuple(made) for name, made in parts.items()},
            schedule.segments,
            schedule.transfers,
            modules,
            gathers,
        )

    def reference_modules(self, schedule: Schedule) -> tuple[Module, ...]:
        """The modules of ``schedule`` in the model's own operators, for any engine that runs
        ONNX."""
        return cut_pieces(
            schedule, dict.fromkeys(schedule.places, self._unlowered), self._unlowered
        )[0]

    def changing_layout(
        self, places: Sequence[Place], devices: Sequence[OpenDevice]
    ) -> Mapping[tuple[Place, Place], Set[str]]:
        """The tensors that change their layout, by source and target place: the target reads what
        the source has made. For a pair of equal places: the tensors of which the place assembles
        its own part with parts of others."""
        graph = self.model.graph
        apart = stepwise(graph, {task.name: places[0] for task in graph.tasks})
        lowered = self._lower(places, devices, _borders(apart, tasks_apart=False))
        between = {
            (a, b): changing_layout(graph, lowered[a], lowered[b])
            for a, b in permutations(places, 2)
        }
        own = {(a, a): leaving_blocks(graph, lowered[a], lowered.values()) for a in places}
        return between | own

    @cached_property
    def _unlowered(self) -> LoweredModel:
        """The given model, with all tasks apart."""
        graph = self.model.graph
        return without_lowering(self.model.source, [n for t in graph.tasks for n in t.outputs])

    def _lower(
        self, places: Sequence[Place], devices: Sequence[OpenDevice], borders: Sequence[str]
    ) -> dict[Place, LoweredModel]:
        """The model by place, as lowered for its engine; equal engines share one.

        It does not depend on how tasks are split: another split of the same tasks needs no new
        lowering.
        """
        lowered: dict[Place, LoweredModel] = {}
        for place in places:
            engine = engine_at(place, devices)
            device, info = engine.device, engine.info
            alike = f"{device.kind} {device.processor} {device.features} {info.name} {info.version}"
            text = f"{alike}{engine.dialect.block}{sorted(borders)}"
            key = f"{self.model.digest}-{digest(text)}"
            if key not in self._lowered:
                restored = self._restored(key, borders, engine)
                self._lowered[key] = restored or self._made(key, borders, engine)
            lowered[place] = self._lowered[key]
        return lowered

    def _restored(
        self, key: str, borders: Sequence[str], engine: OpenEngine
    ) -> LoweredModel | None:
        """The lowered model from the cache; None if it or one of its weights is missing."""
        entry = self._cache.find("lowered", key)
        if entry is None:
            return None
        try:
            return load_lowered(entry, self._cache, borders, engine.dialect)
        except (StoreError, ValueError):
            self._cache.drop("lowered", key)
            return None

    def _made(self, key: str, borders: Sequence[str], engine: OpenEngine) -> LoweredModel:
        """The model as `OpenEngine.lower` writes it, stored in the cache.

        If the engine has no such step, or the step fails, it is the given model: slower, but
        correct.
        """
        source, tables = without_tables(self.model.source)

        def work(folder: Path) -> LoweredModel | None:
            path = engine.lower(source, borders, folder)
            if path is None:
                return None
            lowered, entry = import_lowered(path, self._cache, borders, engine.dialect, tables)
            if entry is not None:
                self._cache.add("lowered", key, entry)
            return lowered

        weights = (value.const_value for value in source.graph.initializers.values())
        size_bytes = sum(t.nbytes for t in weights if t is not None and is_large(t))
        try:
            lowered = self._cache.with_scratch(3 * size_bytes + _PROTOBUF_BYTES, work)
        except Exception:  # no disk has room, a file ends too early, or an optimizer refuses its
            lowered = None  # own output; the engine reports for each module whether it runs
        return replace(self._unlowered, dialect=engine.dialect) if lowered is None else lowered


def _borders(schedule: Schedule, tasks_apart: bool) -> list[str]:
    """Names of the tensors that must exist when a task has ended: those that segments hand over,
    and the outputs of split tasks. Opaque tensors are not among them: those leave the model."""
    graph = schedule.graph
    names = border_tensors(schedule)
    for piece in (piece for segment in schedule.segments for piece in segment.pieces):
        task = graph.task[piece.task]
        if tasks_apart or piece != graph.whole_piece(task):
            names.update(task.outputs)
    return sorted(n for n in names if n in graph.producer and not graph.tensors[n].opaque)


def _array(tensor: ir.TensorProtocol) -> Array:
    """The values of a weight; texts as Python strings, not as bytes in UTF-8."""
    if tensor.dtype != ir.DataType.STRING:
        return tensor.numpy()
    texts = np.array([t if isinstance(t, str) else t.decode() for t in tensor.numpy().flat], object)
    return texts.reshape(tensor.shape.numpy())
