"""The run loop in C++ and in Python: both carry out the same steps."""

import ctypes
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coexec.arrays import address_of
from coexec.engines.base import NativeCall
from coexec.runtime.loops import loop_classes
from coexec.runtime.steps import (
    AwaitEvent,
    AwaitWord,
    CallPython,
    CopyBox,
    LoopStep,
    RunLoop,
    SetWord,
    SignalEvent,
    Spot,
)

LOOPS = list(loop_classes().values())
PATIENCE_S = 30.0


@pytest.fixture(params=LOOPS, ids=list(loop_classes()))
def make(request: pytest.FixtureRequest) -> Any:
    return request.param


@contextmanager
def started(
    make: Callable[..., RunLoop],
    programs: Sequence[Sequence[LoopStep]],
    caller: int = 0,
    events: int = 0,
    slots: int = 0,
) -> Iterator[RunLoop]:
    """A loop with its threads, which have ended behind the block."""
    loop = make(programs, caller, events, slots, 1e-5)
    devices = [device for device in range(len(programs)) if device != caller]
    threads = [threading.Thread(target=loop.serve, args=(d,), daemon=True) for d in devices]
    for thread in threads:
        thread.start()
    try:
        yield loop
    finally:
        loop.end()
        for thread in threads:
            thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)


def at_rest(loop: RunLoop, devices: Sequence[int]) -> bool:
    end_s = time.monotonic() + PATIENCE_S
    while not all(loop.rests(device) for device in devices) and time.monotonic() < end_s:
        time.sleep(1e-3)
    return all(loop.rests(device) for device in devices)


def test_devices_meet_at_events(make: Any) -> None:
    order: list[str] = []
    programs: list[list[LoopStep]] = [
        [
            CallPython(lambda: order.append("a")),
            SignalEvent(0),
            AwaitEvent(1),
            CallPython(lambda: order.append("c")),
        ],
        [AwaitEvent(0), CallPython(lambda: order.append("b")), SignalEvent(1)],
    ]
    with started(make, programs, events=2) as loop:
        for _ in range(200):
            order.clear()
            assert loop.run([]) is None
            assert order == ["a", "b", "c"]


@given(data=st.data())
def test_any_programs_keep_the_order_of_their_events(data: st.DataObject) -> None:
    """Random acyclic meetings at events and words: no device passes an await before the signal, in
    either loop."""
    words = np.zeros(12, np.uint32)
    devices = data.draw(st.integers(1, 4))
    programs: list[list[LoopStep]] = [[] for _ in range(devices)]
    log: list[tuple[str, int]] = []
    events = 0
    for _ in range(data.draw(st.integers(0, 12))):
        source, target = (data.draw(st.integers(0, devices - 1)) for _ in range(2))
        if source == target:
            continue
        event = events
        events += 1
        signal, wait = SignalEvent(event), AwaitEvent(event)
        if data.draw(st.booleans()):
            signal, wait = (kind(address_of(words[event:])) for kind in (SetWord, AwaitWord))
        programs[source] += [CallPython(lambda e=event: log.append(("made", e))), signal]
        programs[target] += [wait, CallPython(lambda e=event: log.append(("read", e)))]
    caller = data.draw(st.integers(0, devices - 1))
    for make in LOOPS:
        with started(make, programs, caller, events) as loop:
            for _ in range(3):
                log.clear()
                words[:] = 0
                assert loop.run([]) is None
                assert sorted(log) == sorted(
                    (w, e) for w in ("made", "read") for e in range(events)
                )
                assert all(log.index(("made", e)) < log.index(("read", e)) for e in range(events))


@given(data=st.data())
def test_a_copy_of_a_box_is_numpys(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    starts = [data.draw(st.integers(0, size - 1)) for size in shape]
    box = tuple(
        slice(start, data.draw(st.integers(start + 1, size)))
        for start, size in zip(starts, shape, strict=True)
    )
    source = np.random.default_rng(0).standard_normal(shape, np.float32)
    part = source[box]
    for make in LOOPS:
        for slot in (False, True):
            target = np.zeros(part.shape, np.float32)
            axes = tuple(zip(part.shape[:-1], target.strides, part.strides, strict=False))
            where = (
                Spot(0, part.ctypes.data - source.ctypes.data)
                if slot
                else Spot(-1, part.ctypes.data)
            )
            step = CopyBox(Spot(-1, target.ctypes.data), where, part.shape[-1] * 4, axes)
            with started(make, [[step]], slots=1) as loop:
                assert loop.run([source.ctypes.data]) is None
            np.testing.assert_array_equal(target, part)


def test_a_native_function_gets_fourteen_arguments(make: Any) -> None:
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_ssize_t] * 14)
    seen: list[tuple[int, ...]] = []
    function = kind(lambda *words: seen.append(words) or 0)
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    with started(make, [[NativeCall(address, tuple(range(1, 15)))]]) as loop:
        assert loop.run([]) is None
    assert seen == [tuple(range(1, 15))]
    with pytest.raises(ValueError, match="too many arguments"):
        make([[NativeCall(address, tuple(range(15)))]], 0, 0, 0, 0.0)


def test_errors_name_device_step_and_result(make: Any) -> None:
    kind = ctypes.CFUNCTYPE(ctypes.c_int)
    refuses = kind(lambda: -36)
    address = ctypes.cast(refuses, ctypes.c_void_p).value or 0
    programs: list[list[LoopStep]] = [
        [AwaitEvent(0)],
        [CallPython(int), NativeCall(address, ()), SignalEvent(0)],
    ]
    with started(make, programs, events=1) as loop:
        for _ in range(3):
            assert loop.run([]) == (1, 1, -36, None)
            assert at_rest(loop, [1])


def test_a_pointer_counts_as_an_error_if_only_its_upper_half_is_set(make: Any) -> None:
    kind = ctypes.CFUNCTYPE(ctypes.c_ssize_t)
    pointer = kind(lambda: 1 << 32)
    address = ctypes.cast(pointer, ctypes.c_void_p).value or 0
    with started(make, [[NativeCall(address, (), returns_pointer=True)]]) as loop:
        assert loop.run([]) == (0, 0, 1 << 32, None)
    with started(make, [[NativeCall(address, ())]]) as loop:
        assert loop.run([]) is None


def test_an_exception_of_a_python_step_is_told(make: Any) -> None:
    def fails() -> None:
        raise KeyError("no")

    for device in (0, 1):
        programs: list[list[LoopStep]] = [[AwaitEvent(0)], [AwaitEvent(0)]]
        programs[device] = [CallPython(fails), SignalEvent(0)]
        with started(make, programs, events=1) as loop:
            outcome = loop.run([])
            assert outcome is not None and outcome[:3] == (device, 0, 0)
            assert isinstance(outcome[3], KeyError)
            assert at_rest(loop, [1])


def test_stop_ends_a_run_from_another_thread(make: Any) -> None:
    with started(make, [[AwaitEvent(0)], [AwaitEvent(0)]], events=1) as loop:
        ended = threading.Event()

        def stop() -> None:
            while not ended.wait(0.01):  # a stop in front of the run is none
                loop.stop()

        thread = threading.Thread(target=stop)
        thread.start()
        assert loop.run([]) == (2, 0, 0, None)
        ended.set()
        thread.join()
        assert at_rest(loop, [1])


def test_a_stop_sets_all_words_for_ever(make: Any) -> None:
    words = np.zeros(2, np.uint32)
    address = address_of(words)
    programs: list[list[LoopStep]] = [
        [AwaitWord(address), SetWord(address + 4)],
        [AwaitEvent(0)],
    ]

    def look() -> None:
        raise TimeoutError

    with started(make, programs, events=1) as loop:
        with pytest.raises(TimeoutError):
            loop.run([], look)
        assert words.tolist() == [0, 1]
        assert at_rest(loop, [1])
        words[:] = 0
        assert loop.run([]) == (2, 0, 0, None)


def test_a_pause_does_not_wait_for_a_step_that_only_waits(make: Any) -> None:
    inside, may_end = threading.Event(), threading.Event()

    def long() -> None:
        inside.set()
        assert may_end.wait(PATIENCE_S)

    programs: list[list[LoopStep]] = [[AwaitEvent(0)], [CallPython(long, True), SignalEvent(0)]]
    with started(make, programs, events=1) as loop:
        request = threading.Thread(target=loop.run, args=([],))
        request.start()
        assert inside.wait(PATIENCE_S)
        loop.pause()
        assert loop.pauses()
        may_end.set()
        loop.go_on()
        request.join(PATIENCE_S)
        assert not request.is_alive()


def test_look_ends_a_run_by_its_exception(make: Any) -> None:
    looks: list[float] = []

    def look() -> None:
        looks.append(time.monotonic())
        if len(looks) == 5:
            raise TimeoutError

    with started(make, [[AwaitEvent(0)], [AwaitEvent(0)]], events=1) as loop:
        with pytest.raises(TimeoutError):
            loop.run([], look)
        assert at_rest(loop, [1])


def test_a_signal_handler_ends_a_run(make: Any) -> None:
    def handler(*_: object) -> None:
        raise InterruptedError

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with started(make, [[AwaitEvent(0)], [AwaitEvent(0)]], events=1) as loop:
            with pytest.raises(InterruptedError):
                threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGUSR1)).start()
                loop.run([])
            assert at_rest(loop, [1])
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_paused_loop_begins_no_step(make: Any) -> None:
    inside, may_end = threading.Event(), threading.Event()

    def long() -> None:
        inside.set()
        may_end.wait(PATIENCE_S)

    done: list[int] = []
    programs: list[list[LoopStep]] = [
        [AwaitEvent(0)],
        [CallPython(long), CallPython(lambda: done.append(1)), SignalEvent(0)],
    ]
    with started(make, programs, events=1) as loop:
        request = threading.Thread(target=loop.run, args=([],))
        request.start()
        assert inside.wait(PATIENCE_S)
        loop.pause()
        assert not loop.pauses()
        may_end.set()
        end_s = time.monotonic() + PATIENCE_S
        while not loop.pauses() and time.monotonic() < end_s:
            time.sleep(1e-3)
        assert loop.pauses()
        time.sleep(0.02)
        assert not done and request.is_alive()
        loop.go_on()
        request.join(PATIENCE_S)
        assert done == [1]


def test_times_of_steps_are_in_order(make: Any) -> None:
    programs: list[list[LoopStep]] = [
        [CallPython(lambda: time.sleep(1e-3)), SignalEvent(0)],
        [AwaitEvent(0), CallPython(lambda: time.sleep(1e-3))],
    ]
    with started(make, programs, events=1) as loop:
        before_s = time.perf_counter()
        assert loop.run([], None, True) is None
        after_s = time.perf_counter()
        (first, _), (waited, second) = loop.spans(0), loop.spans(1)
    assert before_s <= first[0] < first[1] <= second[0] < second[1] <= after_s
    # Where other programs hold the second core, its wait begins after the first step's end.
    assert waited[0] <= waited[1] and first[1] <= waited[1]


def test_wrong_numbers_are_refused(make: Any) -> None:
    with pytest.raises(IndexError, match="event"):
        make([[AwaitEvent(1)]], 0, 1, 0, 0.0)
    with pytest.raises(IndexError, match="slot"):
        make([[CopyBox(Spot(0, 0), Spot(-1, 0), 1)]], 0, 0, 0, 0.0)
    with pytest.raises(ValueError, match="caller's device"):
        make([[]], 1, 0, 0, 0.0)
    with started(make, [[]], slots=1) as loop, pytest.raises(ValueError, match="slots"):
        loop.run([])
