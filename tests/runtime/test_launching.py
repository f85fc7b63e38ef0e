"""Segments that are launched ahead: by whom, when, and what the host waits for."""

import threading
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pytest
from ahead import AheadEngine
from graphs import hand_made
from small_models import branches
from test_executor import reference
from test_traces import check_rows

from coexec.cache import Cache
from coexec.compiling.compiled import CompiledPlan
from coexec.compiling.compiler import Compiler
from coexec.engines.opened import OpenDevice
from coexec.engines.reference import ReferenceEngine
from coexec.errors import ExecutionError
from coexec.frontend.check import plain_session, worst_difference
from coexec.frontend.load import load, random_inputs
from coexec.ir.graph import Piece
from coexec.plans.derive import derive
from coexec.runtime.executor import Executor
from coexec.runtime.recorder import RealRecorder

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
    """Tasks on both devices in turn, or all on the last one; each a segment of its own."""
    names = [device.spec.name for device in devices]
    order: dict[str, list[Piece]] = {name: [] for name in names}
    for number, task in enumerate(MODEL.graph.tasks):
        order[names[number % 2 if by_turns else -1]].append(MODEL.graph.whole_piece(task))
    schedule = derive(hand_made(MODEL.graph, order, "reference"), MODEL.graph)
    return Compiler(MODEL, cache).compile(schedule, devices)


def right(found: dict[str, np.ndarray]) -> bool:
    return all(worst_difference(found[n], array) < 1e-5 for n, array in EXPECTED.items())


def test_whichever_thread_makes_a_segment_ready_launches_it(
    ahead: AheadEngine, cache: Cache
) -> None:
    devices = opened(ahead)
    with Executor(compiled(cache, devices), devices) as executor:
        for _ in range(3):
            assert right(executor.run(FEEDS))
    # The caller serves the other device, so no thread is ever woken for this one.
    assert set(ahead.launched_by) == {threading.main_thread().name}


def test_a_device_is_given_more_before_it_has_ended(ahead: AheadEngine, cache: Cache) -> None:
    devices = opened(ahead)
    plan = compiled(cache, devices)
    ahead.open.clear()
    with Executor(plan, devices) as executor:
        found: list[dict[str, np.ndarray]] = []
        caller = threading.Thread(target=lambda: found.append(executor.run(FEEDS)))
        caller.start()
        most, end_s = 0, time.monotonic() + 20
        while len(ahead.launched_by) < 2 and time.monotonic() < end_s:
            time.sleep(0.01)
        most = len(ahead.launched_by)
        ahead.open.set()
        caller.join()
    assert most >= 2 and right(found[0])


def test_without_it_each_segment_ends_before_the_next(ahead: AheadEngine, cache: Cache) -> None:
    devices = opened(ahead)
    recorder = RealRecorder(plan := compiled(cache, devices, by_turns=False), ["ahead:1"])
    with Executor(plan, devices, launch_ahead=False) as executor:
        assert right(executor.run(FEEDS, recorder))
    trace = recorder.trace()
    assert len(trace.of("compute")) == len(plan.segments)
    check_rows(trace)


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


def test_the_next_run_waits_for_what_an_interrupted_one_has_launched(
    ahead: AheadEngine, cache: Cache
) -> None:
    class Enough(Exception):
        pass

    devices = opened(ahead)
    with Executor(compiled(cache, devices), devices) as executor:
        executor.run(FEEDS)
        ahead.launched_by.clear()
        ahead.open.clear()

        def cancelled() -> bool:
            if len(ahead.launched_by) == 2:
                raise Enough  # as a signal handler of the caller would
            return False

        with pytest.raises(Enough):
            executor.run(FEEDS, cancelled=cancelled)
        threading.Timer(0.2, ahead.open.set).start()
        began_s = time.monotonic()
        assert right(executor.run(FEEDS))
        assert time.monotonic() - began_s > 0.1
