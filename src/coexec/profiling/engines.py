"""What engines take whatever the model: to start a program, and to hand tensors to each other."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import permutations

from coexec.compiling.compiler import Compiler
from coexec.costs.table import LayoutChange
from coexec.defaults import Waiting
from coexec.engines.base import OpenEngine
from coexec.engines.opened import OpenDevice
from coexec.profiling.links import (
    changing_layout,
    crossing,
    feeding,
    launch_overhead,
    own_layout,
    stitching,
    wake_up,
)
from coexec.profiling.store import Measurement, ProfileStore
from coexec.system.hardware import Busy, Link, Place

__all__ = ["EngineTimes"]


class EngineTimes:
    """Measures of the devices' first engines what the store does not hold yet, and when asked."""

    def __init__(
        self, devices: Sequence[OpenDevice], store: ProfileStore, waiting: Waiting,
        key: Callable[[OpenEngine], str], fresh: bool,
    ) -> None:  # fmt: skip
        """
        Args:
            waiting: whether cores will stay awake while devices wait for each other.
            key: under which an engine's times are stored; equal for engines that are alike.
            fresh: measure everything again, once, and replace what is stored.
        """
        self._devices, self._store = devices, store
        self._waiting: Waiting = waiting
        self._key, self._fresh = key, fresh
        self._engines = [device.first for device in devices]
        self._known: dict[tuple[str, str], float] = {}

    def launch_s(self, engine: OpenEngine) -> float:
        """Seconds of starting a program."""
        (seconds,) = self._cached(self._key(engine), ["launch"], lambda: [launch_overhead(engine)])
        return seconds

    def stitching_s(self, engine: OpenEngine) -> tuple[float, float]:
        """Seconds of putting a tensor together from boxes, and of each byte of it."""
        names = ["stitching a tensor", "stitching, a byte"]
        tensor_s, byte_s = self._cached(self._key(engine), names, lambda: stitching(engine))
        return tensor_s, byte_s

    def feeding_s(self, engine: OpenEngine) -> float:
        """Seconds of launching, between its own segments, one of the slowest of the devices that
        are launched ahead from this engine's thread."""
        fed = [e for e in self._engines if e.launches_ahead and e.memory == engine.memory]
        if engine.launches_ahead or not fed:
            return 0.0
        return max(self._fed_s(engine, target) for target in fed)

    def _fed_s(self, source: OpenEngine, target: OpenEngine) -> float:
        (seconds,) = self._between(
            source, target, ["feeding, divided layers"],
            lambda: [feeding(source, target, self._waiting)],
        )  # fmt: skip
        return seconds

    def layout_changes(self, compiler: Compiler) -> Mapping[tuple[Place, Place], LayoutChange]:
        """Of a model's tensors, between engines that are unlike and have one memory; links between
        memories were measured with theirs."""
        near = [(a, b) for a, b in permutations(self._engines, 2)
                if a.memory == b.memory and self._key(a) != self._key(b)]  # fmt: skip
        if not near:
            return {}
        tensors = compiler.changing_layout([e.place for e in self._engines], self._devices)
        found: dict[tuple[Place, Place], LayoutChange] = {}
        for a, b in near:
            if names := tensors[a.place, b.place]:
                found[a.place, b.place] = LayoutChange(names, *self._layout_change_s(a, b))
            if names := tensors[b.place, b.place]:
                before = found.get((b.place, b.place), LayoutChange(names, 0.0, 0.0))
                byte_s = max(before.byte_s, self._own_layout_s(b, a))
                found[b.place, b.place] = LayoutChange(names, 0.0, byte_s)
        return found

    def _layout_change_s(self, source: OpenEngine, target: OpenEngine) -> tuple[float, float]:
        """Seconds of a tensor besides handing it over, and of each byte."""
        whole_s, byte_s = self._between(
            source, target, ["changing layout", "changing layout, a byte"],
            lambda: changing_layout(source, target, self._waiting),
        )  # fmt: skip
        return max(0.0, whole_s - self.link(source, target).sync_latency_s), byte_s

    def _own_layout_s(self, own: OpenEngine, other: OpenEngine) -> float:
        """Seconds of each byte that an engine has made and puts together with another's."""
        (byte_s,) = self._between(
            other, own, ["changing layout of its own, a byte"],
            lambda: [own_layout(own, other, self._waiting)],
        )  # fmt: skip
        return byte_s

    def link(self, source: OpenEngine, target: OpenEngine) -> Link:
        """What it takes to go on with a tensor on another device."""
        link = partial(Link, source.device.name, target.device.name,
                       source_engine=source.info.name, target_engine=target.info.name)  # fmt: skip
        if source.memory == target.memory:
            (latency_s,) = self._between(
                source, target, ["handover"], lambda: [wake_up(source, target, self._waiting)]
            )
            # An engine that has blocks inside of it only changes the layout itself.
            busy: Busy = "target" if source.dialect.inner is None else "source"
            return link(latency_s, busy=busy)
        latency_s, byte_s = self._between(
            source, target, ["crossing", "crossing, a byte"],
            lambda: crossing(source, target, self._waiting),
        )  # fmt: skip
        return link(latency_s, 1 / byte_s if byte_s else math.inf)

    def _between(
        self, source: OpenEngine, target: OpenEngine, names: Sequence[str],
        measure: Callable[[], Sequence[Measurement]],
    ) -> list[float]:  # fmt: skip
        """What was measured of two engines in the way in which cores wait here."""
        key = f"{self._key(source)} -> {self._key(target)}"
        how = "" if self._waiting == "passive" else ", awake"
        return self._cached(key, [f"{name}{how}" for name in names], measure)

    def _cached(
        self, key: str, signatures: Sequence[str], measure: Callable[[], Sequence[Measurement]]
    ) -> list[float]:
        """Seconds of each signature: all from the store, or else all measured together."""
        if (key, signatures[0]) not in self._known:
            stored = {} if self._fresh else self._store.read(key)
            if not set(signatures) <= stored.keys():
                stored = dict(zip(signatures, measure(), strict=True))
                self._store.write(key, stored)
            self._known |= {(key, signature): stored[signature].seconds for signature in signatures}
        return [self._known[key, signature] for signature in signatures]
