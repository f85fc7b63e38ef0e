"""Segments that are launched ahead: when, and what the host waits for."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import pairwise

import numpy as np
import pytest
from onnx import helper

from coexec.cache import Cache
from coexec.engines.opened import OpenDevice
from coexec.engines.reference import ReferenceEngine
from coexec.engines.registry import open_devices
from coexec.errors import ExecutionError, TerminatedError
from coexec.graph.graph import Piece
from coexec.hardware.hardware import Device, EngineInfo
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from coexec.plan.derive import derive, in_steps, stepwise
from coexec.plan.plan import Plan, Provenance
from coexec.runtime.compiled import CompiledPlan
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor
from coexec.runtime.recorder import RealRecorder
from tests.helpers.ahead import AheadEngine
from tests.helpers.core_programs import cpp_name, cpp_options
from tests.helpers.graphs import hand_made
from tests.helpers.onnx_models import direct, tensor
from tests.helpers.patience import until
from tests.helpers.small_models import branches
from tests.runtime.test_executor import Elsewhere, reference
from tests.runtime.test_traces import check_rows

MODEL = load(branches(width=4))
FEEDS = random_inputs(MODEL.graph)
EXPECTED = dict(zip(MODEL.graph.outputs, plain_session(branches(4)).run(None, FEEDS), strict=True))


@pytest.fixture
def ahead() -> Iterator[AheadEngine]:
    engine = AheadEngine(1)
    yield engine
    engine.open.set()


def opened(ahead: AheadEngine) -> list[OpenDevice]:
    return [OpenDevice.of(ReferenceEngine(*reference(0))), OpenDevice.of(ahead)]


def compiled(cache: Cache, devices: Sequence[OpenDevice], by_turns: bool = True) -> CompiledPlan:
    """Tasks on both devices in turn; or all on the last one, each a segment of its own."""
    graph, names = MODEL.graph, [device.spec.name for device in devices]
    order: dict[str, list[Piece]] = {name: [] for name in names}
    for number, task in enumerate(graph.tasks):
        order[names[number % 2]].append(graph.whole_piece(task))
    schedule = derive(hand_made(graph, order, "reference"), graph)
    if not by_turns:
        schedule = stepwise(graph, {task.name: devices[-1].engine.place for task in graph.tasks})
    return Compiler(MODEL, cache).compile(schedule, devices)


def right(found: dict[str, np.ndarray]) -> bool:
    return all(worst_difference(found[n], array) < 1e-5 for n, array in EXPECTED.items())


def test_a_device_is_given_more_before_it_has_ended(ahead: AheadEngine, cache: Cache) -> None:
    devices = opened(ahead)
    plan = compiled(cache, devices)
    ahead.open.clear()
    with Executor(plan, devices) as executor:
        found: list[dict[str, np.ndarray]] = []
        caller = threading.Thread(target=lambda: found.append(executor.run(FEEDS)))
        caller.start()
        try:
            until(lambda: len(ahead.launched_by) >= 2, "a second launch before the first ended")
        finally:
            ahead.open.set()
            caller.join()
    assert right(found[0])


def test_spans_are_the_devices_own(ahead: AheadEngine, cache: Cache) -> None:
    devices = opened(ahead)
    plan = compiled(cache, devices)
    recorder = RealRecorder(plan, [d.spec.name for d in devices])
    with Executor(plan, devices) as executor:
        executor.run(FEEDS)
        began_s = time.perf_counter()
        executor.run(FEEDS, recorder)
        took_s = time.perf_counter() - began_s
    trace = recorder.trace()
    check_rows(trace)
    spans = {span.segment: span for span in trace.of("compute")}
    assert len(spans) == len(plan.segments) and trace.makespan_s <= took_s
    for segment in plan.segments:
        for before in segment.after:
            assert spans[before].end_s <= spans[segment.index].start_s
    own = [s for s in trace.of("compute") if s.device == "ahead:1"]
    # What was launched while the device was busy begins where the one before ends.
    assert any(a.end_s == b.start_s for a, b in pairwise(own))


def test_a_failure_names_what_was_launched_and_spares_the_next_run(
    ahead: AheadEngine, cache: Cache
) -> None:
    devices = opened(ahead)
    plan = compiled(cache, devices)
    last = [s.index for s in plan.segments if s.device == "ahead:1"][-1]
    ahead.fails = plan.modules[last].outputs[0].name
    task = plan.segments[last].pieces[0].task
    with Executor(plan, devices) as executor:
        with pytest.raises(ExecutionError, match=rf"ahead:1 failed .*{task}.*out of magic"):
            executor.run(FEEDS)
        assert right(executor.run(FEEDS))


def test_the_next_run_waits_until_devices_of_an_interrupted_one_rest(
    ahead: AheadEngine, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Enough(Exception):
        pass

    devices = opened(ahead)
    with Executor(compiled(cache, devices), devices) as executor:
        executor.run(FEEDS)
        ahead.launched_by.clear()
        ahead.open.clear()

        def cancelled() -> bool:
            if ahead.launched_by:
                raise Enough  # as a signal handler of the caller would
            return False

        with pytest.raises(Enough):
            executor.run(FEEDS, cancelled=cancelled)
        rests: list[float] = []
        threading.Timer(0.2, ahead.open.set).start()
        monkeypatch.setattr(ahead, "rests", lambda end_s: rests.append(end_s) or True)
        assert right(executor.run(FEEDS))
        assert len(rests) == 1


def test_a_segment_without_outputs_ends_behind_those_before_it(
    ahead: AheadEngine, cache: Cache
) -> None:
    """Its reader waits for it alone, and it is never launched: nothing of it is computed."""
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], "exp"),
        helper.make_node("MaxPool", ["e"], ["y"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
    ]
    model = direct(nodes, [tensor("x", (1, 16, 5, 5))], ["y"], {})
    graph, devices = model.graph, opened(ahead)
    exp, pool = map(graph.whole_piece, graph.tasks)
    ours = [Piece(exp.task, exp.region.with_axis(2, *rows)) for rows in ((0, 4), (4, 5))]
    theirs = [Piece(pool.task, pool.region.with_axis(2, i, i + 1)) for i in range(2)]
    places = {ahead.place: tuple(ours), devices[0].engine.place: tuple(theirs)}
    plan = Plan.of_places(graph.fingerprint, places, Provenance("by hand"))
    made = Compiler(model, cache).compile(in_steps(plan, graph), devices)
    assert not made.modules[1].outputs
    with Executor(made, devices) as executor:
        for seed in range(10):
            x = np.random.default_rng(seed).random((1, 16, 5, 5), np.float32)
            expected = np.exp(x[:, :, :4, :4]).reshape(1, 16, 2, 2, 2, 2).max((3, 5))
            assert worst_difference(executor.run({"x": x})["y"], expected) < 1e-5


def test_what_a_device_sends_to_one_that_is_launched_ahead_is_sent_with_its_run(
    ahead: AheadEngine, cache: Cache
) -> None:
    far = Elsewhere()
    devices = [OpenDevice.of(far), OpenDevice.of(ahead)]
    plan = compiled(cache, devices)
    of_far = {
        t.name
        for s, m in zip(plan.segments, plan.modules, strict=True)
        for t in m.outputs
        if s.device == "reference:1"
    }
    read = {
        t.name
        for s, m in zip(plan.segments, plan.modules, strict=True)
        for t in m.inputs
        if s.device == "ahead:1"
    }
    with Executor(plan, devices) as executor:
        assert right(executor.run(FEEDS))
    assert of_far & read and far.leaving >= of_far & read


def test_a_run_can_be_cancelled_when_all_of_it_is_launched(
    ahead: AheadEngine, cache: Cache
) -> None:
    devices = opened(ahead)
    plan = compiled(cache, devices, by_turns=False)
    enough = threading.Event()

    def cancel() -> None:
        with suppress(AssertionError):  # without all of them the run ends, and is not cancelled
            until(lambda: len(ahead.launched_by) >= len(plan.segments))
            enough.set()
        ahead.open.set()

    with Executor(plan, devices) as executor:
        ahead.open.clear()
        threading.Thread(target=cancel).start()
        with pytest.raises(TerminatedError):
            executor.run(FEEDS, cancelled=enough.is_set)
        assert right(executor.run(FEEDS))


def test_spans_of_devices_that_share_a_processor_do_not_overlap(cache: Cache) -> None:
    near, far = AheadEngine(1, longest_s=5e-3), Elsewhere()
    near.info, far.info = EngineInfo("reference"), EngineInfo("elsewhere", memory="elsewhere")
    for engine in (near, far):
        engine.device = Device("ahead:1", "ahead", engine.info)
    other = ReferenceEngine(*reference(0))
    devices = [OpenDevice.of(engine) for engine in (near, far, other)]
    places, random = [near.place, far.place, other.place], np.random.default_rng(0)
    for _ in range(10):
        array_of = {task.name: places[random.integers(3)] for task in MODEL.graph.tasks}
        plan = Compiler(MODEL, cache).compile(stepwise(MODEL.graph, array_of), devices)
        recorder = RealRecorder(plan, ["ahead:1", other.device.name])
        with Executor(plan, devices) as executor:
            assert right(executor.run(FEEDS, recorder))
        check_rows(recorder.trace())


def test_executors_of_one_opencl_device_keep_their_order_while_one_is_traced(
    cache: Cache, gpu: str
) -> None:
    """Traced kernels have a queue of their own."""
    (device,) = open_devices([gpu], folder=cache.root)
    plan, place = compiled_on(cache, device), device.engine.place
    answers: dict[bool, list[bool]] = {True: [], False: []}

    def work(executor: Executor, traced: bool) -> None:
        """Runs beside the other, until both have answered often or one has failed."""
        while min(map(len, answers.values())) < 20 and all(map(all, answers.values())):
            recorder = RealRecorder(plan, [place.device]) if traced else None
            try:
                answers[traced].append(right(executor.run(FEEDS, recorder)))
            except BaseException:
                answers[traced].append(False)
                raise

    with Executor(plan, [device]) as first, Executor(plan, [device]) as second:
        threads = [
            threading.Thread(target=work, args=args) for args in ((first, True), (second, False))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    device.close()
    assert all(map(all, answers.values()))


def test_arrays_of_the_caller_are_only_read(cache: Cache) -> None:
    """Also where an aligned one, computed on as it lies, is followed by one that is not aligned."""
    (device,) = open_devices([cpp_name()], cpp_options(), cache.root)
    plan = compiled_on(cache, device)
    (name,) = MODEL.graph.inputs
    feeds = []
    for seed, offset in enumerate((0, 4, 0, 4)):
        values = random_inputs(MODEL.graph, seed)[name]
        raw = np.empty(values.nbytes + 128, np.uint8)
        start = -raw.ctypes.data % 64 + offset
        feeds.append(raw[start : start + values.nbytes].view(np.float32).reshape(values.shape))
        feeds[-1][...] = values
    with Executor(plan, [device]) as executor:
        for _ in range(2):
            for seed, feed in enumerate(feeds):
                executor.run({name: feed})
                np.testing.assert_array_equal(feed, random_inputs(MODEL.graph, seed)[name])
    device.close()


def compiled_on(cache: Cache, device: OpenDevice) -> CompiledPlan:
    """All tasks on one device, each a segment of its own."""
    schedule = stepwise(MODEL.graph, {t.name: device.engine.place for t in MODEL.graph.tasks})
    return Compiler(MODEL, cache).compile(schedule, [device])
