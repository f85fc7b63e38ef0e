"""Plans on the CPU and on a GPU that meet at words in memory: order, failures, stops and forks.

`tests/helpers/fake_cuda.py` is the GPU.
"""

import gc
import os
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

pytest.importorskip("pyopencl")

from coexec.cache import Cache
from coexec.engines.cuda.device import CudaDevice
from coexec.engines.cuda.driver import CudaError
from coexec.engines.opened import OpenDevice
from coexec.engines.reference import ReferenceEngine
from coexec.errors import ExecutionError, TerminatedError
from coexec.graph.graph import Piece
from coexec.graph.receptive import splittable_axes
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.reference_session import plain_session
from coexec.plan.derive import derive
from coexec.runtime.compiled import CompiledPlan
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor
from coexec.runtime.linking import LinkedPlan
from coexec.runtime.loops import VARIABLE, loop_classes
from coexec.runtime.recorder import RealRecorder
from coexec.runtime.steps import AwaitWord, CallPython, CopyBox, SetWord
from tests.helpers.fake_cuda import FakeContext, fake_cuda
from tests.helpers.graphs import halves, hand_made
from tests.helpers.patience import until
from tests.helpers.small_models import branches
from tests.runtime.test_executor import reference
from tests.runtime.test_interrupts import Injected, TimeOut
from tests.runtime.test_traces import check_rows

MODEL = load(branches(width=4, channels=8, size=12))
FEEDS = [random_inputs(MODEL.graph, seed) for seed in range(3)]
EXPECTED = [
    dict(zip(MODEL.graph.outputs, plain_session(MODEL.source).run(None, feeds), strict=True))
    for feeds in FEEDS
]
pytestmark = pytest.mark.parametrize("loop", loop_classes(), indirect=True)


class Hooked(ReferenceEngine):
    """A CPU whose tasks call a function first."""

    hook: Any = staticmethod(lambda: None)

    def compile(self, module: Any) -> Any:
        program = super().compile(module)
        bind = program.bind

        def hooked(inputs: Any, outputs: Any) -> Any:
            bound = bind(inputs, outputs)
            run = bound.run
            bound.run = lambda: (self.hook(), run())
            return bound

        program.bind = hooked
        return program


@pytest.fixture
def loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(VARIABLE, request.param)
    name: str = request.param
    return name


@pytest.fixture
def gpu() -> Iterator[CudaDevice]:
    with fake_cuda() as engine:
        yield engine


@pytest.fixture
def cpu() -> Hooked:
    return Hooked(*reference(0))


@pytest.fixture
def devices(cpu: Hooked, gpu: CudaDevice) -> list[OpenDevice]:
    return [OpenDevice.of(cpu), OpenDevice.of(gpu)]


@pytest.fixture
def plan(devices: list[OpenDevice], cache: Cache) -> CompiledPlan:
    return by_turns(devices, cache)


def by_turns(devices: Sequence[OpenDevice], cache: Cache, halved: bool = False) -> CompiledPlan:
    """Tasks on both devices in turn, from the second one on. ``halved``: every second task is on
    both, with half of the channels each, where that is possible."""
    graph, places = MODEL.graph, [device.engine.place for device in reversed(devices)]
    order: dict[str, list[Piece]] = {place.device: [] for place in places}
    for number, task in enumerate(graph.tasks):
        pieces = (graph.whole_piece(task),)
        if halved and number % 2 and 1 in splittable_axes(graph, task):
            parts = halves(graph, task, 1, graph.output_of(task).shape[1] // 2)
            pieces = tuple(Piece(task.name, part) for part in parts)
        first = number // 2 if halved else number
        for turn, piece in enumerate(pieces, first):
            order[places[turn % len(places)].device].append(piece)
    made = hand_made(graph, order, "")
    engines = {place.device: place.engine for place in places}
    engine_of = {piece: engines[device] for piece, device in made.device_of.items()}
    plan = type(made)(made.model, made.order, engine_of, made.provenance)
    return Compiler(MODEL, cache).compile(derive(plan, graph), devices)


def right(found: dict[str, np.ndarray], number: int) -> bool:
    return all(worst_difference(found[n], array) < 1e-5 for n, array in EXPECTED[number].items())


def context_of(gpu: CudaDevice) -> FakeContext:
    context = gpu._context
    assert isinstance(context, FakeContext)
    return context


def test_all_of_the_gpus_work_is_launched_first_and_hand_overs_are_words(
    devices: list[OpenDevice], plan: CompiledPlan, cpu: Hooked, gpu: CudaDevice, loop: str
) -> None:
    launched: list[int] = []
    count = sum(segment.device == gpu.device.name for segment in plan.segments)
    context = context_of(gpu)

    def all_are_launched() -> None:
        until(lambda: len(context.launched) >= count, "all launches before the first hand-over")
        launched.append(len(context.launched))

    with Executor(plan, devices) as executor:
        assert right(executor.run(FEEDS[0]), 0)
        context.launched.clear()
        cpu.hook = all_are_launched
        assert right(executor.run(FEEDS[1]), 1)
        assert launched[0] == count > 3
        linked = executor._linked
        assert linked is not None
        of_cpu, of_gpu = _programs(linked.plan, plan)
        kinds = [type(step) for step in of_cpu]
        assert kinds.count(AwaitWord) > 1 and kinds.count(SetWord) > 1
        tasks = sum(segment.device != gpu.device.name for segment in plan.segments)
        assert kinds.count(CallPython) == tasks  # the engine's own: nothing is fetched
        assert not any(isinstance(step, CopyBox) for step in of_cpu)
        assert all(isinstance(step, CallPython) for step in of_gpu)


def _programs(linked: LinkedPlan, plan: CompiledPlan) -> list[list[Any]]:
    """The steps of the CPU and of the GPU."""
    first = plan.segments[0].device
    programs = [[step.step for step in program] for program in linked.programs(True)]
    return programs[::-1] if first.startswith("gpu") else programs


def test_a_plan_for_the_gpu_alone_has_no_words(gpu: CudaDevice, cache: Cache, loop: str) -> None:
    with Executor(by_turns([OpenDevice.of(gpu)], cache), [OpenDevice.of(gpu)]) as executor:
        assert right(executor.run(FEEDS[0]), 0) and right(executor.run(FEEDS[1]), 1)
        assert executor._linked is not None and not executor._linked.plan._words


def test_many_runs_are_equal_to_the_last_bit(
    devices: list[OpenDevice], plan: CompiledPlan, loop: str
) -> None:
    with Executor(plan, devices) as executor:
        first = [executor.run(feeds) for feeds in FEEDS]
        for number in range(30):
            found = executor.run(FEEDS[number % 3])
            for name, array in first[number % 3].items():
                np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("call", [0, 2])
def test_a_failure_of_the_cpu_leaves_no_gpu_waiting(
    call: int,
    devices: list[OpenDevice],
    plan: CompiledPlan,
    cpu: Hooked,
    gpu: CudaDevice,
    loop: str,
) -> None:
    calls = [0]

    def fails() -> None:
        calls[0] += 1
        if calls[0] == call + 1:
            raise ExecutionError("out of magic")

    with Executor(plan, devices) as executor:
        assert right(executor.run(FEEDS[0]), 0)
        cpu.hook = fails
        with pytest.raises(ExecutionError, match="out of magic"):
            executor.run(FEEDS[1])
        assert gpu.rests(time.monotonic() + 60)
        assert right(executor.run(FEEDS[2]), 2)


def test_a_run_that_failed_keeps_no_memory(
    devices: list[OpenDevice], plan: CompiledPlan, cpu: Hooked, loop: str
) -> None:
    """So no collection of garbage has to free memory of the GPU during a later run."""

    def fails() -> None:
        raise ExecutionError("out of magic")

    with Executor(plan, devices) as executor:
        assert right(executor.run(FEEDS[0]), 0)
        linked = executor._linked
        assert linked is not None
        before = weakref.ref(linked.plan)
        del linked
        gc.disable()
        try:
            cpu.hook = fails
            with suppress(ExecutionError):
                executor.run(FEEDS[1])
            cpu.hook = lambda: None
            assert right(executor.run(FEEDS[2]), 2)
            assert before() is None
        finally:
            gc.enable()


@pytest.mark.parametrize("error", [TerminatedError, KeyboardInterrupt])
def test_a_stopped_run_leaves_no_gpu_waiting(
    error: type[BaseException],
    devices: list[OpenDevice],
    plan: CompiledPlan,
    cpu: Hooked,
    gpu: CudaDevice,
    loop: str,
) -> None:
    """Whether the CPU or the GPU is at work then."""
    context, inside = context_of(gpu), threading.Event()

    def cancelled() -> bool:
        if inside.is_set() and error is not TerminatedError:
            raise error
        return inside.is_set()

    with Executor(plan, devices) as executor:
        assert right(executor.run(FEEDS[0]), 0)
        held = threading.Event()
        for hold in (False, True):
            inside.clear()
            held.clear()
            if hold:  # the GPU takes long
                context.queue_work(lambda: (inside.set(), held.wait()))
            cpu.hook = lambda: (inside.set(), time.sleep(0.02))  # longer than between looks
            with pytest.raises(error):
                executor.run(FEEDS[1], cancelled=cancelled)
            held.set()
            cpu.hook = lambda: None
            assert gpu.rests(time.monotonic() + 60)
            assert right(executor.run(FEEDS[2]), 2)


def test_an_exception_at_any_bytecode_leaves_no_gpu_waiting(
    devices: list[OpenDevice], plan: CompiledPlan, gpu: CudaDevice, loop: str
) -> None:
    with Executor(plan, devices) as executor:
        executor.run(FEEDS[0])
        with Injected(-1) as counting:
            executor.run(FEEDS[0])
        for at in range(1, counting.seen, counting.seen // 40):
            with suppress(TimeOut), Injected(at):
                assert right(executor.run(FEEDS[1]), 1)
            assert gpu.rests(time.monotonic() + 60)
            assert right(executor.run(FEEDS[2]), 2)


def test_a_failure_of_the_gpu_ends_the_wait_for_its_words(
    devices: list[OpenDevice], plan: CompiledPlan, cpu: Hooked, gpu: CudaDevice, loop: str
) -> None:
    context = context_of(gpu)

    def fails() -> None:
        context.broken = CudaError("CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access")

    with Executor(plan, devices) as executor:
        assert right(executor.run(FEEDS[0]), 0)
        cpu.hook = fails
        with pytest.raises(ExecutionError, match=r"gpu:0 failed .*illegal memory access"):
            executor.run(FEEDS[1])
        context.broken, cpu.hook = None, lambda: None
        assert right(executor.run(FEEDS[2]), 2)


@pytest.mark.parametrize("at", range(1, 6))
def test_a_failure_of_the_gpu_ends_a_plan_whose_inputs_are_put_together(
    at: int, devices: list[OpenDevice], cache: Cache, gpu: CudaDevice, loop: str
) -> None:
    """Its segments wait for the CPU in the thread of the GPU, and the CPU waits for words."""
    plan, context, words = by_turns(devices, cache, halved=True), context_of(gpu), [0]
    set_word, error = context.set_word, CudaError("CUDA_ERROR_ILLEGAL_ADDRESS", "a wrong address")

    def failing(address: int) -> None:
        words[0] += 1
        if words[0] == at:
            context.queue_work(lambda: setattr(context, "broken", error))
        set_word(address)

    with Executor(plan, devices) as executor:
        assert right(executor.run(FEEDS[0]), 0)
        context.set_word = failing  # type: ignore[method-assign]
        end_s = time.monotonic() + 60
        with pytest.raises(ExecutionError, match=r"gpu:0 failed .*a wrong address"):
            executor.run(FEEDS[1], cancelled=lambda: time.monotonic() > end_s)
        context.set_word, context.broken = set_word, None  # type: ignore[method-assign]
        assert right(executor.run(FEEDS[2]), 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.parametrize("blocks", [False, True])
def test_a_forked_child_touches_no_word(
    blocks: bool,
    devices: list[OpenDevice],
    plan: CompiledPlan,
    cpu: Hooked,
    gpu: CudaDevice,
    loop: str,
) -> None:
    """A fork during a run does not wait for the GPU, which waits for the thread that forks, nor for
    a launch that waits for the GPU."""
    context, launching, took_s = context_of(gpu), threading.Event(), list[float]()
    await_word = context.await_word

    def blocking(address: int) -> None:
        await_word(address)
        launching.set()
        context.finish()

    def fork() -> None:
        cpu.hook = lambda: None
        assert not blocks or launching.wait(60)
        latest = executor._latest
        assert latest is not None
        (words,) = latest.plan._words.values()
        before, start_s = words.array.copy(), time.monotonic()
        child = os.fork()
        if child == 0:
            executor.close()
            latest.end()
            os._exit(0 if (words.array[before == 0] == 0).all() else 1)
        took_s.append(time.monotonic() - start_s)
        assert os.waitpid(child, 0)[1] == 0

    with Executor(plan, devices) as executor:
        assert right(executor.run(FEEDS[0]), 0)
        cpu.hook = fork
        if blocks:
            context.await_word = blocking  # type: ignore[method-assign]
        assert right(executor.run(FEEDS[1]), 1)
        assert took_s[0] < 5


def test_a_trace_has_the_kernels_and_the_waits(
    devices: list[OpenDevice], plan: CompiledPlan, gpu: CudaDevice, loop: str
) -> None:
    context_of(gpu).has_real_clock = True
    recorder = RealRecorder(plan, [device.spec.name for device in devices])
    with Executor(plan, devices) as executor:
        executor.run(FEEDS[0])
        assert right(executor.run(FEEDS[1], recorder), 1)
    trace = recorder.trace()
    check_rows(trace)
    spans = {span.segment: span for span in trace.of("compute")}
    assert len(spans) == len(plan.segments)
    assert {"conv_tiled", "concat"} & {detail.name for detail in trace.details}
    for segment in plan.segments:
        if segment.device == "gpu:0":  # the clocks of GPU and host differ by some microseconds
            for before in segment.after:
                assert spans[before].end_s <= spans[segment.index].start_s
