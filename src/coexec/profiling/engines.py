"""Times of engines that do not depend on the model: to launch a program and to transfer tensors."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import permutations

from coexec.costs.table import LayoutChange, Reading
from coexec.engines.base import OpenEngine
from coexec.engines.opened import OpenDevice
from coexec.errors import UncompiledError
from coexec.hardware.hardware import Busy, Link, Place
from coexec.profiling.launch_and_transfer import (
    changing_layout,
    crossing,
    joining,
    launch_overhead,
    own_layout,
    reading,
    stitching,
    wake_up,
)
from coexec.profiling.store import Measurement, ProfileStore
from coexec.progress import ReportProgress
from coexec.runtime.compiler import Compiler
from coexec.settings import Waiting

_HANDOVER = "handover"
"""Name of the time of a handover in a shared memory."""


class EngineTimes:
    """Times of the devices, each measured on first use if it is not in the store."""

    def __init__(
        self,
        devices: Sequence[OpenDevice],
        store: ProfileStore,
        waiting: Waiting,
        key: Callable[[OpenEngine], str],
        fresh: bool,
        progress: ReportProgress,
    ) -> None:
        """
        Args:
            waiting: how devices will wait for each other.
            key: returns the key of an engine's times in the store; equal for equal engines.
            fresh: measure everything again, once, and replace the stored times.
            progress: called before and after each measurement; what it raises ends the profile.
        """
        self._devices, self._store = devices, store
        self._progress = progress
        self._waiting: Waiting = waiting
        self._key, self._fresh = key, fresh
        self._engines = [device.engine for device in devices]
        self._known: dict[tuple[str, str], float] = {}

    def launch_s(self, engine: OpenEngine) -> float:
        """Seconds to launch a program."""
        (seconds,) = self._cached(self._key(engine), ["launch"], lambda: [launch_overhead(engine)])
        return seconds

    def stitching_s(self, engine: OpenEngine) -> tuple[float, float]:
        """Seconds to stitch a tensor from boxes: a constant, and seconds per byte."""
        names = ["stitching a tensor", "stitching, a byte"]
        tensor_s, byte_s = self._cached(self._key(engine), names, lambda: stitching(engine))
        return tensor_s, byte_s

    def joining_s(self) -> float:
        """Seconds per byte to copy an output to memory of the caller; 0 for a single device, which
        writes none in parts."""
        if len(self._engines) < 2:
            return 0.0
        key = self._key(self._engines[0])
        (byte_s,) = self._cached(key, ["joining, a byte"], lambda: [joining()])
        return byte_s

    def readings(self) -> Mapping[Place, Reading]:
        """How CPU cores read weights, by device; empty for a single processor, as it gets no parts.
        Of devices that share cores, the first is measured."""
        processors = {engine.device.name: engine for engine in reversed(self._engines)}
        cores = [
            engine
            for engine in self._engines
            if engine.device.cores and engine is processors[engine.device.name]
        ]
        if len(processors) < 2 or not cores:
            return {}
        name = _named("reading, a byte", self._waiting)
        keys = [self._key(engine) for engine in cores]
        together_s = self._cached(
            " + ".join(keys),
            [f"{name}, {number}" for number, _ in enumerate(cores)],
            partial(reading, cores, self._waiting),
        )
        found: dict[Place, Reading] = {}
        for engine, key in zip(cores, keys, strict=True):
            (alone_s,) = self._cached(key, [name], partial(reading, [engine], self._waiting))
            # Equal places differ by chance only.
            equal_s = [s for s, other in zip(together_s, keys, strict=True) if other == key]
            if alone_s > 0 and (all_s := statistics.median(equal_s)) > 0:
                found[engine.place] = Reading(alone_s, max(alone_s, all_s))
        return found

    def layout_changes(self, compiler: Compiler) -> Mapping[tuple[Place, Place], LayoutChange]:
        """Layout changes of a model's tensors between different engines that share a memory.

        Links between different memories were measured with the layout changes in them.
        """
        near = [
            (a, b)
            for a, b in permutations(self._engines, 2)
            if a.memory == b.memory and self._key(a) != self._key(b)
        ]
        if not near:
            return {}
        tensors = compiler.changing_layout([e.place for e in self._engines], self._devices)
        changes: dict[tuple[Place, Place], LayoutChange] = {}
        for a, b in near:
            if names := tensors[a.place, b.place]:
                changes[a.place, b.place] = LayoutChange(names, *self._layout_change_s(a, b))
            names = tensors[b.place, b.place]
            if names and a.device.name != b.device.name:  # no tensor is divided on one processor
                before = changes.get((b.place, b.place), LayoutChange(names, 0.0, 0.0))
                byte_s = max(before.byte_s, self._own_layout_s(b, a))
                changes[b.place, b.place] = LayoutChange(names, 0.0, byte_s)
        return changes

    def _layout_change_s(self, source: OpenEngine, target: OpenEngine) -> tuple[float, float]:
        """Seconds of a layout change: a constant for a tensor besides the handover, and seconds per
        byte."""
        whole_s, byte_s = self._change_s(
            source,
            target,
            ["changing layout", "changing layout, a byte"],
            lambda: changing_layout(source, target, self._waiting),
        )
        return max(0.0, whole_s - self.link(source, target).sync_latency_s), byte_s

    def _own_layout_s(self, own: OpenEngine, other: OpenEngine) -> float:
        """Seconds per byte to stitch an engine's own results with those of another engine."""
        (byte_s,) = self._change_s(
            other,
            own,
            ["changing layout of its own, a byte"],
            lambda: [own_layout(own, other, self._waiting)],
        )
        return byte_s

    def link(self, source: OpenEngine, target: OpenEngine) -> Link:
        """The measured link: the time to use a result of ``source`` on ``target``."""
        link = partial(Link, source.place, target.place)
        if source.memory == target.memory:
            (latency_s,) = self._between(
                source, target, [_HANDOVER], lambda: [wake_up(source, target, self._waiting)]
            )
            # An engine that uses blocks only internally changes the layout itself, as the source.
            busy: Busy = "target" if source.dialect.inner is None else "source"
            return link(latency_s, busy=busy)
        latency_s, byte_s = self._between(
            source,
            target,
            ["crossing", "crossing, a byte"],
            lambda: crossing(source, target, self._waiting),
        )
        return link(latency_s, 1 / byte_s if byte_s else math.inf)

    def _between(
        self,
        source: OpenEngine,
        target: OpenEngine,
        names: Sequence[str],
        measure: Callable[[], Sequence[Measurement]],
    ) -> list[float]:
        """Seconds for each name, measured between two engines in this mode of waiting."""
        key = _pair(self._key(source), self._key(target))
        return self._cached(key, [_named(name, self._waiting) for name in names], measure)

    def _change_s(
        self,
        source: OpenEngine,
        target: OpenEngine,
        names: Sequence[str],
        measure: Callable[[], Sequence[Measurement]],
    ) -> list[float]:
        """As `_between`, for a change of layout. 0 if an engine does not run the convolutions with
        which it is measured: few tensors then change theirs."""

        def measured() -> Sequence[Measurement]:
            try:
                return measure()
            except UncompiledError:
                return [Measurement.of([0.0])] * len(names)

        return self._between(source, target, names, measured)

    def _cached(
        self, key: str, signatures: Sequence[str], measure: Callable[[], Sequence[Measurement]]
    ) -> list[float]:
        """Seconds for each signature: all from the store, or else all measured together."""
        if (key, signatures[0]) not in self._known:
            stored = {} if self._fresh else self._store.read(key)
            if not set(signatures) <= stored.keys():
                self._progress(f"devices: {signatures[0]}", 0, 1)
                stored = dict(zip(signatures, measure(), strict=True))
                self._store.write(key, stored)
                self._progress(f"devices: {signatures[0]}", 1, 1)
            self._known |= {(key, signature): stored[signature].seconds for signature in signatures}
        return [self._known[key, signature] for signature in signatures]


def stored_handover_s(
    store: ProfileStore, source: str, target: str, waiting: Waiting
) -> float | None:
    """Seconds of a handover in a shared memory, between places with these keys in the store; None
    if it was not measured."""
    measurement = store.read(_pair(source, target)).get(_named(_HANDOVER, waiting))
    return None if measurement is None else measurement.seconds


def _pair(source: str, target: str) -> str:
    """Key in the store for two places."""
    return f"{source} -> {target}"


def _named(name: str, waiting: Waiting) -> str:
    """Signature of a time between two places, in a mode of waiting."""
    return name if waiting == "passive" else f"{name}, awake"
