"""Make a plan ready to start: lower the model for each engine, cut it into the plan's segments."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from coexec.cache import Cache
from coexec.compiling.compiled import CompiledPlan
from coexec.engines.base import OpenEngine
from coexec.engines.opened import OpenDevice, engine_at
from coexec.errors import ModelError, StoreError
from coexec.frontend.extract import extract, tensor_part
from coexec.frontend.lowered import Lowered, as_it_is, cut, premature, read_lowered
from coexec.frontend.model import Model
from coexec.frontend.module import Array, Gather, Module
from coexec.frontend.pieces import cut_pieces
from coexec.frontend.stored import import_lowered, is_kept, is_large, stored_weights
from coexec.ir.graph import Graph, Piece
from coexec.plans.schedule import Part, Schedule, Segment
from coexec.system.hardware import Place

__all__ = ["Compiler"]

_PROTOBUF_BYTES = 16 << 20
"""Room for a lowered model without its weights, three times."""


@dataclass(frozen=True, eq=False)
class _Share:
    """What equal engines run of a plan."""

    engine: OpenEngine
    """One of them."""
    engine_key: str
    places: Sequence[Place]
    pieces: Sequence[Piece]
    whole: bool
    """Whether the pieces are the whole model."""
    written: Sequence[Part]
    """What leaves its segments."""
    borders: Sequence[str]
    """The parts that segments exchange."""

    @property
    def named(self) -> Sequence[tuple[str, str]]:
        """What tells it from other shares of the model."""
        return [] if self.whole else [(p.task, str(p.region)) for p in self.pieces]

    def source(self, model: Model, schedule: Schedule) -> ir.Model:
        """These pieces as a model of their own."""
        if self.whole:
            return model.source
        return extract(model, self.pieces, self.written, _foreign(schedule, self.places))


class Compiler:
    """Compiles plans of one model; keeps what it has lowered, here and in the cache."""

    def __init__(self, model: Model, cache: Cache) -> None:
        self.model = model
        self._cache = cache
        self._lowered: dict[str, Lowered] = {}

    def compile(
        self, schedule: Schedule, devices: Sequence[OpenDevice], *, tasks_apart: bool = False
    ) -> CompiledPlan:
        """The plan behind ``schedule`` for ``devices``.

        Args:
            tasks_apart: an engine fuses nothing across the tasks of a segment either, so that what
                it computes can be told by task.

        Raises:
            ModelError: an engine does not accept its part of the model.
        """
        graph = schedule.graph
        made_in: dict[str, int] = {}
        parts: dict[str, list[Part]] = {}
        for segment in schedule.segments:
            for name, region in _made(segment, graph, tasks_apart):
                part = tensor_part(name, region, graph)
                made_in[part] = segment.index
                if part != name:
                    parts.setdefault(name, []).append((part, region))
        returned = [
            part for n in graph.outputs for part, _ in parts.get(n, [(n, graph.tensors[n].whole)])
        ]
        gathers: Mapping[str, Gather] = {}
        if all(p == graph.whole_piece(graph.task[p.task])
               for s in schedule.segments for p in s.pieces):  # fmt: skip
            modules = self._cut(schedule, devices, made_in, returned, tasks_apart)
        else:
            modules, gathers = self._cut_pieces(schedule, devices)
        constants = {
            name: _array(value.const_value)
            for name, value in self.model.source.graph.initializers.items()
            if name in graph.outputs and value.const_value is not None
        }
        return CompiledPlan(
            tuple(graph.tensors[n] for n in graph.inputs),
            tuple(graph.tensors[n] for n in graph.outputs),
            constants,
            {n: tuple(parts[n]) for n in graph.outputs if n in parts},
            schedule.segments,
            schedule.transfers,
            modules,
            gathers,
        )

    def _cut_pieces(
        self, schedule: Schedule, devices: Sequence[OpenDevice]
    ) -> tuple[tuple[Module, ...], Mapping[str, Gather]]:
        """The modules of a plan that splits tasks: what each engine makes of the whole model, with
        its tasks apart, cut in pieces. Another split of the same tasks needs nothing else."""
        graph = self.model.graph
        borders = [n for t in graph.tasks for n in t.outputs if not graph.tensors[n].opaque]
        lowered: dict[Place, Lowered] = {}
        for share in _shares(schedule, devices, tasks_apart=True):
            whole = replace(share, whole=True, borders=borders)
            lowered |= dict.fromkeys(share.places, self._lower(whole, schedule))
        return cut_pieces(schedule, lowered, as_it_is(self.model.source, borders))

    def _cut(
        self, schedule: Schedule, devices: Sequence[OpenDevice], made_in: Mapping[str, int],
        returned: Sequence[str], tasks_apart: bool,
    ) -> tuple[Module, ...]:  # fmt: skip
        """A module for each segment, none of which reads what its segment does not wait for.

        An engine whose optimizer moves an operator across a border can make a segment need what the
        plan knows nothing of. Such an engine gets the model as it is.
        """
        shares = _shares(schedule, devices, tasks_apart)
        lowered: dict[Place, Lowered] = {}
        for share in shares:
            lowered |= dict.fromkeys(share.places, self._lower(share, schedule))
        modules = cut(lowered, schedule.segments, made_in, returned)
        early = premature(modules, lowered, schedule.segments, made_in)
        if not early:
            return modules
        for share in shares:
            if not early.isdisjoint(share.places):
                plain = as_it_is(share.source(self.model, schedule), share.borders)
                lowered |= dict.fromkeys(share.places, plain)
        return cut(lowered, schedule.segments, made_in, returned)

    def _lower(self, share: _Share, schedule: Schedule) -> Lowered:
        """What equal engines run of the plan, with borders; everything else they may fuse."""
        text = f"{share.engine_key}{sorted(share.borders)}{share.named}"
        key = f"{self.model.digest}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"
        if key in self._lowered:
            return self._lowered[key]
        lowered = self._restored(key, share.borders, share.engine)
        if lowered is None:
            source = share.source(self.model, schedule)
            lowered = self._made(key, source, share.borders, share.engine)
        self._lowered[key] = lowered
        return lowered

    def _restored(self, key: str, borders: Sequence[str], engine: OpenEngine) -> Lowered | None:
        """The lowered model in the cache, if there is one with all of its weights."""
        entry = self._cache.find("lowered", key)
        if entry is None:
            return None
        try:
            weights = stored_weights(entry, self._cache)
            return read_lowered(entry.files["lowered.onnx"], weights, borders, engine.dialect)
        except (StoreError, ValueError):
            self._cache.drop("lowered", key)
            return None

    def _made(
        self, key: str, source: ir.Model, borders: Sequence[str], engine: OpenEngine
    ) -> Lowered:
        """The model as `OpenEngine.lower` writes it, kept in the cache.

        It is the model as it is for an engine that has no such step, and where no disk can be
        written: that is slower, but right.
        """

        def work(folder: Path) -> Lowered | None:
            path = engine.lower(source, borders, folder)
            if path is None:
                return None
            entry, weights = import_lowered(path, self._cache)
            lowered = read_lowered(entry.files["lowered.onnx"], weights, borders, engine.dialect)
            if all(is_kept(tensor) for tensor in weights.values()):
                self._cache.add("lowered", key, entry)
            return lowered

        weights = (value.const_value for value in source.graph.initializers.values())
        size_bytes = sum(t.nbytes for t in weights if t is not None and is_large(t))
        try:
            lowered = self._cache.with_scratch(3 * size_bytes + _PROTOBUF_BYTES, work)
        except ModelError:
            raise
        except Exception:  # no disk has room, or whatever a file leads to that ends too early
            lowered = None
        return as_it_is(source, borders) if lowered is None else lowered


def _shares(schedule: Schedule, devices: Sequence[OpenDevice], tasks_apart: bool) -> list[_Share]:
    """The plan divided among unlike engines."""
    alike: dict[str, list[OpenEngine]] = {}
    places: dict[str, list[Place]] = {}
    for place in schedule.places:
        engine = engine_at(place, devices)
        device, info = engine.device, engine.info
        key = f"{device.kind} {device.processor} {device.features} {info.name} {info.version}"
        alike.setdefault(key, []).append(engine)
        places.setdefault(key, []).append(place)
    return [
        _share(schedule, engines[0], key, places[key], tasks_apart)
        for key, engines in alike.items()
    ]


def _share(
    schedule: Schedule, engine: OpenEngine, key: str, places: Sequence[Place], tasks_apart: bool
) -> _Share:
    graph = schedule.graph
    own = [s for s in schedule.segments if s.place in places]
    pieces = [piece for segment in own for piece in segment.pieces]
    read = {name for segment in schedule.segments for name, _ in segment.reads}
    written = [part for segment in own for part in _made(segment, graph, tasks_apart)]
    borders = [
        tensor_part(*part, graph)
        for part in written
        if (tasks_apart or part[0] in read)
        and not graph.tensors[part[0]].opaque  # those leave the model
    ]
    whole = set(pieces) == {graph.whole_piece(task) for task in graph.tasks}
    return _Share(engine, key, places, pieces, whole, written, borders)


def _made(segment: Segment, graph: Graph, tasks_apart: bool) -> Sequence[Part]:
    """What leaves a segment; with ``tasks_apart`` all that its tasks compute."""
    if not tasks_apart:
        return segment.writes
    return [
        (name, piece.region if position == 0 else graph.tensors[name].whole)
        for piece in segment.pieces
        for position, name in enumerate(graph.task[piece.task].outputs)
    ]


def _foreign(schedule: Schedule, places: Sequence[Place]) -> list[Part]:
    """The parts that these places read and do not make, as they are made elsewhere."""
    graph = schedule.graph
    made: dict[str, list[tuple[Part, Place]]] = {}
    for segment in schedule.segments:
        for part in segment.writes:
            made.setdefault(part[0], []).append((part, segment.place))
    found: dict[Part, None] = {}
    for segment in schedule.segments:
        if segment.place not in places:
            continue
        for name, region in segment.reads:
            if name in graph.inputs:
                found[name, graph.tensors[name].whole] = None
            for part, place in made.get(name, []):
                if place not in places and part[1].overlap(region).size:
                    found[part] = None
    return list(found)


def _array(tensor: ir.TensorProtocol) -> Array:
    """The values of a weight; texts as Python's, not in UTF-8."""
    if tensor.dtype != ir.DataType.STRING:
        return tensor.numpy()
    texts = np.array([t if isinstance(t, str) else t.decode() for t in tensor.numpy().flat], object)
    return texts.reshape(tensor.shape.numpy())
