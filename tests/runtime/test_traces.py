"""Executed and simulated traces, kind by kind, on engines with memories of their own."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.arrays import Array
from coexec.cache import Cache
from coexec.costs.table import CostTable
from coexec.engines.base import InFlight, OpenEngine
from coexec.engines.null import NullEngine
from coexec.engines.opened import OpenDevice
from coexec.engines.reference import ReferenceEngine
from coexec.hardware.hardware import MAIN, Busy, Device, EngineInfo, Link, Place, System
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.reference_session import plain_session
from coexec.plan.derive import derive
from coexec.plan.plan import Plan, Provenance
from coexec.plan.schedule import Schedule
from coexec.runtime.compiled import CompiledPlan
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor
from coexec.runtime.recorder import RealRecorder
from coexec.timing.simulate import VirtualClock, simulate
from coexec.timing.trace import REORDER, Detail, Kind, Trace
from coexec.timing.waits import HAND_OVER
from tests.helpers.small_models import branches
from tests.helpers.virtual_recorder import VirtualRecorder
from tests.runtime.test_executor import MODEL, Elsewhere

PATIENCE_S = 60.0
"""Until a thread that waits for its turn gives up: the order of spans was another one."""
MEMORIES = {"D:0": (MAIN, "far"), "D:1": ("farther", "farthest")}
"""By device, the memory of each of its engines."""
FEEDS = random_inputs(MODEL.graph)
examples = settings(max_examples=20, deadline=None, derandomize=True)
caching = pytest.mark.parametrize("tensor_caching", [True, False])


class Far(NullEngine):
    """A null engine that copies what it receives and sends, as an engine does that has to."""

    def upload(self, array: Array, into: Any = None) -> Array:
        return array.copy()

    def download(self, tensor: Array) -> Array:
        return tensor.copy()


class FarReference(Elsewhere):
    """A reference engine with tensors of its own on any device."""

    def __init__(self, device: Device, info: EngineInfo) -> None:
        super().__init__()
        self.device, self.info = device, info


@dataclass(frozen=True, eq=False)
class Planned:
    """A random plan for two processors with two devices each."""

    schedule: Schedule
    cost: CostTable
    system: System

    @classmethod
    def of(cls, seed: int, tensor_caching: bool, busy: Busy | None = "target") -> "Planned":
        """Links that keep the target busy, as the executor's do, and of no latency; or any."""
        rng = np.random.default_rng(seed)
        graph = MODEL.graph
        devices = tuple(
            Device(name, "null", EngineInfo(f"in {memory}", memory=memory))
            for name, memories in MEMORIES.items()
            for memory in memories
        )
        places = [device.place for device in devices]
        seconds = {p: {t.name: float(rng.uniform(1e-4, 1e-2)) for t in graph.tasks} for p in places}
        links = tuple(
            Link(
                a,
                b,
                0.0 if busy else float(rng.uniform(0, 1e-3)),
                float(rng.uniform(1e6, 1e8)),
                busy or str(rng.choice(["source", "target", "none"])),  # type: ignore[arg-type]
            )
            for a in places
            for b in places
            if a != b
        )
        pieces = [graph.whole_piece(task) for task in graph.tasks]
        array_of = {piece: places[rng.integers(len(places))] for piece in pieces}
        order = {n: tuple(p for p in pieces if array_of[p].device == n) for n in MEMORIES}
        engine_of = {piece: place.engine for piece, place in array_of.items()}
        plan = Plan(graph.fingerprint, order, engine_of, Provenance("at random"))
        schedule = derive(plan, graph, tensor_caching)
        return cls(schedule, CostTable(seconds), System(devices, links))

    @property
    def simulated(self) -> Trace:
        return simulate(self.schedule, self.cost, self.system)

    def open(
        self,
        near: Callable[[Device, EngineInfo], OpenEngine] = NullEngine,
        far: Callable[[Device, EngineInfo], OpenEngine] = Far,
    ) -> list[OpenDevice]:
        return [
            OpenDevice.of((near if d.engine.memory == MAIN else far)(d, d.engine))
            for d in self.system.devices
        ]


class Turns:
    """The order in which what is simulated ends: by value that moves or "", and segment."""

    def __init__(self, simulated: Trace, compiled: CompiledPlan) -> None:
        self.segment_of = {m.outputs: i for i, m in enumerate(compiled.modules) if m.outputs}
        busy = sorted(simulated.of("compute", "transfer"), key=lambda span: span.end_s)
        keys = [(span.tensor, span.segment) for span in busy]
        computed = set(self.segment_of.values())
        self._order = [key for key in keys if key[0] or key[1] in computed]
        self._ended = len(self._order)
        self.ended_s: dict[int, float] = {}
        """By segment, when its turn ended."""
        self._changed = threading.Condition()

    def begin(self) -> None:
        self._ended = 0

    @contextmanager
    def turn(self, value: str, segment: int) -> Iterator[None]:
        """Begins when everything before has ended. What is behind it begins later than its end."""
        with self._changed:
            if self._ended < len(self._order):
                turn = self._order.index((value, segment))
                assert self._changed.wait_for(lambda: self._ended == turn, PATIENCE_S)
                yield
                self._ended += 1
                self._changed.notify_all()
            else:
                yield


class InOrder(RealRecorder):
    """Lets transfers end in their turn, and takes the ends of segments from their turns."""

    def __init__(self, compiled: CompiledPlan, simulated: Trace, turns: Turns) -> None:
        self._turns = turns
        super().__init__(compiled, simulated.devices)

    def start(self, device: str) -> None:
        super().start(device)
        self._turns.begin()

    def ran(self, node: int, begin_s: float, end_s: float, work: InFlight | None = None) -> None:
        super().ran(node, begin_s, self._turns.ended_s.get(node, end_s), work)

    def end_transfer(self, began: float, value: str, *rest: Any) -> None:
        if value in FEEDS or rest[2] is None:  # by the caller
            super().end_transfer(began, value, *rest)
        else:
            with self._turns.turn(value, rest[3]):
                super().end_transfer(began, value, *rest)


class Held(NullEngine):
    """Computes nothing, and lets segments end in their turn."""

    turns: Turns
    segment = -1

    def compile(self, module: Any) -> Any:
        program = copy(self)
        program.segment = self.turns.segment_of[module.outputs]
        return program

    def run(self) -> None:
        with self.turns.turn("", self.segment):
            self.turns.ended_s[self.segment] = time.perf_counter()


class HeldFar(Held, Far):
    """The same, with tensors of its own."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("traces"))


def of_kind(trace: Trace, kind: Kind) -> dict[str, list[Any]]:
    """By device, the spans of a kind in order without their times. Left out is what a plan has
    not: copies for the caller, and handing segments on."""
    found: dict[str, list[Any]] = {device: [] for device in trace.devices}
    for span in trace.of(kind):
        if kind == "transfer" and None in (span.source, span.target):
            continue
        if kind == "wait" and span.name == HAND_OVER:
            continue
        found[span.device].append(
            (
                span.name,
                span.place,
                span.tasks,
                span.segment,
                span.tensor,
                span.size_bytes,
                span.source,
                span.target,
                span.awaited,
            )
        )
    return found


def check_rows(trace: Trace) -> None:
    """Spans of a device's thread touch each other, from second 0 to its last one."""
    for device in trace.devices:
        row = [s for s in trace.of("compute", "transfer", "wait") if s.device == device]
        assert all(a.end_s == b.start_s for a, b in pairwise(row))
        assert not row or (row[0].start_s == 0.0 and row[-1].kind != "wait")
        assert all(a.kind != "wait" or b.kind != "wait" for a, b in pairwise(row))
        busy_s = sum(s.duration_s for s in row if s.kind != "wait")
        assert trace.busy_s(device) == busy_s and 0 <= trace.utilisation(device) <= 1


def executed(
    planned: Planned,
    devices: Sequence[OpenDevice],
    tensor_caching: bool,
    recorder: Callable[[CompiledPlan], RealRecorder],
    kept: Cache,
) -> tuple[Mapping[str, Array], Trace]:
    """Outputs and trace of the second run, in which buffers are used again."""
    compiled = Compiler(MODEL, kept).compile(planned.schedule, devices)
    with Executor(compiled, devices, tensor_caching=tensor_caching) as executor:
        executor.run(FEEDS)
        notes = recorder(compiled)
        found = executor.run(FEEDS, notes)
    return found, notes.trace()


@examples
@given(seed=st.integers(0, 10**6))
def test_the_executor_does_and_waits_for_what_is_simulated(kept: Cache, seed: int) -> None:
    """Every reader copies for itself, as in the simulation; spans end in the simulated order."""
    planned = Planned.of(seed, tensor_caching=False)
    simulated = planned.simulated
    devices = planned.open(Held, HeldFar)
    turns = Turns(simulated, Compiler(MODEL, kept).compile(planned.schedule, devices))
    for device in devices:
        device.engine.turns = turns  # type: ignore[attr-defined]
    _, trace = executed(planned, devices, False, lambda c: InOrder(c, simulated, turns), kept)
    for kind in ("compute", "transfer", "layout", "wait"):
        assert of_kind(trace, kind) == of_kind(simulated, kind), kind
    check_rows(trace)
    check_rows(simulated)
    assert not any(span.name == HAND_OVER for span in simulated.of("wait"))


@examples
@given(seed=st.integers(0, 10**6))
def test_with_tensor_caching_the_same_is_copied_maybe_earlier(kept: Cache, seed: int) -> None:
    planned = Planned.of(seed, tensor_caching=True)
    simulated = planned.simulated
    _, trace = executed(
        planned, planned.open(), True, lambda c: RealRecorder(c, simulated.devices), kept
    )
    assert of_kind(trace, "compute") == of_kind(simulated, "compute")
    copied, expected = of_kind(trace, "transfer"), of_kind(simulated, "transfer")
    assert {d: sorted(spans) for d, spans in copied.items()} == {
        d: sorted(spans) for d, spans in expected.items()
    }
    at = {span.segment: span for span in trace.of("compute")}
    for span in trace.of("transfer"):
        if span.source is not None and span.target is not None:
            maker = next(t.source for t in planned.schedule.transfers if t.tensor == span.tensor)
            assert at[maker].end_s <= span.start_s
            assert span.end_s <= at[span.segment].start_s
    check_rows(trace)


@caching
def test_transfers_of_the_caller_are_spans(tensor_caching: bool, kept: Cache) -> None:
    """On engines that compute, and with memory that is no array."""
    planned = Planned.of(3, tensor_caching)
    devices = planned.open(ReferenceEngine, FarReference)
    found, trace = executed(
        planned, devices, tensor_caching, lambda c: RealRecorder(c, ["D:0", "D:1"]), kept
    )
    expected = plain_session(branches(width=4)).run(["y", "joined"], FEEDS)
    for name, array in zip(["y", "joined"], expected, strict=True):
        assert worst_difference(found[name], array) < 1e-5
    copied = trace.of("transfer")
    up = {(s.tensor, s.size_bytes, s.name) for s in copied if s.source is None}
    readers = [s for s in planned.schedule.segments for name, _ in s.reads if name in FEEDS]
    memories = {planned.system.at[s.place].memory: s.device for s in readers}
    far = {device for memory, device in memories.items() if memory.name != MAIN}
    assert far and up == {
        (name, array.nbytes, f"{name}: caller -> {device}")
        for name, array in FEEDS.items()
        for device in far
    }
    down = [s for s in copied if s.target is None]
    assert {s.tensor for s in down} <= set(MODEL.graph.outputs) and down
    last = max(s.end_s for s in trace.of("compute"))
    for span in down:
        assert span.segment == -1 and span.start_s >= last
        assert span.device == planned.schedule.segments[-1].device
        assert span.size_bytes == found[span.tensor].nbytes
    check_rows(trace)


def test_most_virtual_traces_have_waits_and_transfers() -> None:
    """Else the traces below could not differ in them."""
    traces = [Planned.of(seed, tensor_caching=True, busy=None).simulated for seed in range(8)]
    assert sum(bool(trace.of("wait") and trace.of("transfer")) for trace in traces) > 4


@examples
@given(seed=st.integers(0, 10**6))
def test_virtual_traces_agree_to_the_last_digit(kept: Cache, seed: int) -> None:
    """All kinds; links of all kinds."""
    planned = Planned.of(seed, tensor_caching=True, busy=None)
    devices = planned.open()
    compiled = Compiler(MODEL, kept).compile(planned.schedule, devices)
    recorder = VirtualRecorder(VirtualClock(planned.schedule, planned.cost, planned.system))
    with Executor(compiled, devices) as executor:
        executor.run(FEEDS, recorder)
    simulated = planned.simulated
    assert recorder.trace() == simulated
    assert all(span.awaited >= 0 and span.name != HAND_OVER for span in simulated.of("wait"))
    check_rows(simulated)


def test_a_trace_starts_with_its_run_and_holds_the_latest_one(kept: Cache) -> None:
    planned = Planned.of(1, tensor_caching=True)
    devices = planned.open()
    compiled = Compiler(MODEL, kept).compile(planned.schedule, devices)
    recorder = RealRecorder(compiled, ["D:0", "D:1"])
    with Executor(compiled, devices) as executor:
        copies = []
        for _ in range(2):
            began_s = time.perf_counter()
            executor.run(FEEDS, recorder)
            seconds = time.perf_counter() - began_s
            trace = recorder.trace()
            assert trace.makespan_s < seconds
            assert len(trace.of("compute")) == len(compiled.segments)
            copies.append(len(trace.of("transfer")))
            check_rows(trace)
        assert copies[0] == copies[1]


def test_an_engines_changes_of_layout_are_spans_and_no_kernels() -> None:
    compiled = CompiledPlan((), (), {}, {}, (), (), ())
    recorder = RealRecorder(compiled, ["gpu:0"])
    origin_s = recorder.begin_transfer()
    times = [origin_s + s for s in (1.0, 1.0, 2.0, 3.0)]
    recorder.add([Detail(REORDER, "gpu:0", "kernel", *times, "x")])
    recorder.add([Detail("conv", "gpu:0", "kernel", *times, "y")])
    trace = recorder.trace()
    (span,) = trace.spans
    assert (span.kind, span.tensor, span.device) == ("layout", "x", "gpu:0")
    assert span.duration_s == pytest.approx(1.0)
    assert [detail.name for detail in trace.details] == ["conv"]
    assert trace.busy_s("gpu:0") == trace.makespan_s == 0.0


def test_places_of_transfers_within_a_device() -> None:
    planned = Planned.of(0, tensor_caching=True)
    names = {
        (s.source, s.target): s.name.removeprefix(s.tensor)
        for s in planned.simulated.of("transfer")
    }
    inside = (Place("D:1", "in farther"), Place("D:1", "in farthest"))
    across = (Place("D:0", "in far"), Place("D:1", "in farther"))
    assert names[inside] == ": D:1/in farther -> D:1/in farthest"
    assert names[across] == ": D:0 -> D:1"
