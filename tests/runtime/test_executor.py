"""The executor: clocks, failures, threads, buffers."""

import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.cache import Cache
from coexec.costs.table import CostTable
from coexec.engines.null import NullEngine
from coexec.engines.opened import OpenDevice
from coexec.engines.reference import ReferenceEngine
from coexec.engines.registry import open_devices
from coexec.errors import DeviceError, ExecutionError, PlanError, StoreError
from coexec.hardware.hardware import MAIN, Device, EngineInfo, Link, Place, System
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.load import load
from coexec.model.model import Model
from coexec.model.reference_session import plain_session
from coexec.plan.derive import derive
from coexec.plan.schedule import Schedule
from coexec.planners import PLANNERS
from coexec.runtime.compiled import CompiledPlan, load_compiled, save_compiled
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor
from coexec.runtime.recorder import RealRecorder
from coexec.settings import Waiting
from coexec.timing.simulate import VirtualClock, simulate
from tests.helpers.graphs import hand_made
from tests.helpers.small_models import branches
from tests.helpers.virtual_recorder import VirtualRecorder

MODEL = load(branches(width=4))
waits = pytest.mark.parametrize("waiting", ["passive", "active"])


def random_case(seed: int) -> tuple[Schedule, CostTable, System]:
    rng = np.random.default_rng(seed)
    names = ["null:0", "null:1"]
    places = [Place(name, "null") for name in names]
    tasks = {p: {t.name: float(rng.uniform(1e-4, 1e-2)) for t in MODEL.graph.tasks} for p in places}
    cost = CostTable(tasks, {place: float(rng.uniform(0, 1e-4)) for place in places})
    links = tuple(
        Link(
            Place(a, "null"),
            Place(b, "null"),
            float(rng.uniform(0, 1e-3)),
            float(rng.uniform(1e6, 1e9)),
            str(rng.choice(["source", "target", "none"])),
        )  # type: ignore[arg-type]
        for a, b in (names, names[::-1])
    )
    system = System(tuple(Device(n, "null") for n in names), links)
    plan = PLANNERS["hope_greedy" if seed % 2 else "heft"](MODEL.graph, cost, system)
    return derive(plan, MODEL.graph), cost, system


def null_plan(schedule: Schedule, cache: Cache) -> tuple[CompiledPlan, list[OpenDevice]]:
    specs = [Device(n, "null") for n in ("null:0", "null:1")]
    devices = [OpenDevice.of(NullEngine(spec, spec.engine)) for spec in specs]
    return Compiler(MODEL, cache).compile(schedule, devices), devices


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6))
def test_simulator_and_executor_agree_to_the_last_digit(
    seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    schedule, cost, system = random_case(seed)
    compiled, devices = null_plan(schedule, Cache(tmp_path_factory.getbasetemp() / "null"))
    recorder = VirtualRecorder(VirtualClock(schedule, cost, system))
    with Executor(compiled, devices) as executor:
        executor.run(random_inputs(MODEL.graph), recorder)
    assert recorder.trace() == simulate(schedule, cost, system)


def reference(number: int, memory: str = MAIN) -> tuple[Device, EngineInfo]:
    """What a reference engine is opened on."""
    info = EngineInfo("reference", memory=memory)
    return Device(f"reference:{number}", "reference", info), info


class Elsewhere(ReferenceEngine):
    """An engine with a memory of its own, whose tensors are not arrays."""

    def __init__(self) -> None:
        super().__init__(*reference(1, memory="elsewhere"))
        self.leaving: set[str] = set()

    def allocate(self, tensor: Any, leaving: bool = False) -> Any:
        if leaving:
            self.leaving.add(tensor.name)
        return {"data": super().allocate(tensor)}

    def upload(self, array: Any, into: Any = None) -> Any:
        if into is None:
            return {"data": array.copy()}
        into["data"][...] = array
        return into

    def download(self, tensor: Any) -> Any:
        return tensor["data"].copy()

    def compile(self, module: Any) -> Any:
        program = super().compile(module)

        class Unwrapping:
            def bind(self, inputs: Any, outputs: Any) -> Any:
                bound = program.bind(
                    {n: t["data"] for n, t in inputs.items()},
                    {n: t["data"] for n, t in outputs.items()},
                )
                set_input, set_output = bound.set_input, bound.set_output
                bound.set_input = lambda name, tensor: set_input(name, tensor["data"])
                bound.set_output = lambda name, tensor: set_output(name, tensor["data"])
                return bound

        return Unwrapping()


def split(model: Model, devices: Sequence[OpenDevice]) -> Schedule:
    from tests.engines.test_devices import alternating, places_of

    return derive(alternating(model.graph, places_of(devices)), model.graph)


def test_devices_with_a_memory_of_their_own(cache: Cache) -> None:
    devices = [OpenDevice.of(ReferenceEngine(*reference(0))), OpenDevice.of(Elsewhere())]
    schedule = split(MODEL, devices)
    feeds = random_inputs(MODEL.graph)
    with Executor(Compiler(MODEL, cache).compile(schedule, devices), devices) as executor:
        found = executor.run(feeds)
    expected = plain_session(branches(width=4)).run(["y"], feeds)[0]
    assert worst_difference(found["y"], expected) < 1e-5


def test_a_device_knows_what_of_its_tensors_leaves(cache: Cache) -> None:
    near = OpenDevice.of(ReferenceEngine(*reference(0)))
    schedule = split(MODEL, [near, OpenDevice.of(Elsewhere())])
    crossing = {
        t.tensor for t in schedule.transfers if schedule.segments[t.source].device == "reference:1"
    }
    returned = {
        name
        for segment in schedule.segments
        for name, _ in segment.writes
        if segment.device == "reference:1" and name in MODEL.graph.outputs
    }
    for caching, expected in ((True, crossing | returned), (False, returned)):
        far = Elsewhere()
        devices = [near, OpenDevice.of(far)]
        compiled = Compiler(MODEL, cache).compile(schedule, devices)
        Executor(compiled, devices, tensor_caching=caching).close()
        assert crossing and far.leaving == expected


class Failing(ReferenceEngine):
    """Fails at its second program, once."""

    fail = True

    def compile(self, module: Any) -> Any:
        program, device = super().compile(module), self
        outputs = [t.name for t in module.outputs]

        class Program:
            def bind(self, inputs: Any, results: Any) -> Any:
                bound = program.bind(inputs, results)
                run = bound.run

                def once() -> None:
                    if "b1.out" in outputs and device.fail:
                        device.fail = False
                        raise DeviceError("out of magic")
                    run()

                bound.run = once
                return bound

        return Program()


@waits
def test_a_failure_stops_the_run_names_the_task_and_spares_the_next(
    waiting: Waiting, cache: Cache
) -> None:
    devices = [OpenDevice.of(Failing(*reference(i))) for i in range(2)]
    schedule = split(MODEL, devices)
    feeds = random_inputs(MODEL.graph)
    compiled = Compiler(MODEL, cache).compile(schedule, devices)
    with Executor(compiled, devices, waiting=waiting) as executor:
        with pytest.raises(ExecutionError, match=r"reference:\d failed .*b1\.b.*out of magic"):
            executor.run(feeds)
        found = executor.run(feeds)
    expected = plain_session(branches(width=4)).run(["y"], feeds)[0]
    assert worst_difference(found["y"], expected) < 1e-5


@waits
def test_many_threads_share_one_executor(waiting: Waiting, cache: Cache) -> None:
    from tests.engines.test_devices import names_of

    devices = open_devices(names_of("onnxruntime"))
    schedule = split(MODEL, devices)
    session = plain_session(branches(width=4))
    wrong: list[float] = []
    compiled = Compiler(MODEL, cache).compile(schedule, devices)
    with Executor(compiled, devices, waiting=waiting) as executor:

        def work(seed: int) -> None:
            feeds = random_inputs(MODEL.graph, seed)
            expected = session.run(["y"], feeds)[0]
            for _ in range(5):
                wrong.append(worst_difference(executor.run(feeds)["y"], expected))

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(wrong) == 20 and max(wrong) < 1e-5


def test_trace_holds_every_task_once_in_order(cache: Cache) -> None:
    from tests.engines.test_devices import names_of

    devices = open_devices(names_of("onnxruntime"))
    schedule = split(MODEL, devices)
    compiled = Compiler(MODEL, cache).compile(schedule, devices)
    recorder = RealRecorder(compiled, [d.spec.name for d in devices])
    with Executor(compiled, devices) as executor:
        executor.run(random_inputs(MODEL.graph), recorder)
    spans = {s.segment: s for s in recorder.trace().of("compute")}
    ran = [task for span in spans.values() for task in span.tasks]
    assert sorted(ran) == sorted(t.name for t in MODEL.graph.tasks)
    for segment in schedule.segments:
        for before in segment.after:
            assert spans[before].end_s <= spans[segment.index].start_s


def test_compiled_plans_survive_the_disk(cache: Cache) -> None:
    from tests.engines.test_devices import names_of

    devices = open_devices(names_of("onnxruntime"))
    compiled = Compiler(MODEL, cache).compile(split(MODEL, devices), devices)
    entry = save_compiled(compiled, {"note": 1})
    again, extra = load_compiled(entry, cache.weights)
    assert extra == {"note": 1} and again.segments == compiled.segments
    feeds = random_inputs(MODEL.graph)
    with Executor(compiled, devices) as a, Executor(again, devices) as b:
        assert np.array_equal(a.run(feeds)["y"], b.run(feeds)["y"])
    content = entry.files["compiled.json"]
    before = json.dumps(json.loads(content) | {"format": 9}).encode()
    for harm, message in ((content[:-9], "damaged"), (before, "format: 9 is not 10")):
        with pytest.raises(StoreError, match=message):
            load_compiled(
                replace(entry, files={**entry.files, "compiled.json": harm}), cache.weights
            )


def test_a_closed_executor_says_so_and_leaves_no_thread(cache: Cache) -> None:
    from tests.engines.test_devices import names_of

    devices = open_devices(names_of("onnxruntime"))
    before = threading.active_count()
    schedule = split(MODEL, devices)
    executor = Executor(Compiler(MODEL, cache).compile(schedule, devices), devices)
    executor.run(random_inputs(MODEL.graph))
    executor.close()
    executor.close()
    assert threading.active_count() == before
    with pytest.raises(ExecutionError, match="closed"):
        executor.run(random_inputs(MODEL.graph))


@pytest.mark.parametrize("kind", ["null", "onnxruntime", "reference"])
def test_what_a_plan_joins_is_launched_as_one(kind: str, cache: Cache) -> None:
    from tests.engines.test_devices import alternating, names_of, places_of

    devices = open_devices(names_of(kind))
    graph = MODEL.graph
    plan = alternating(graph, places_of(devices))
    for piece in plan.device_of:
        tried = replace(plan, fused=plan.fused | {piece})
        with suppress(PlanError):
            derive(tried, graph)
            plan = tried
    schedule = derive(plan, graph)
    unjoined = derive(replace(plan, fused=frozenset()), graph)
    assert len(schedule.segments) < len(unjoined.segments)
    compiled = Compiler(MODEL, cache).compile(schedule, devices)
    feeds = random_inputs(graph)
    with Executor(compiled, devices) as executor:
        found = executor.run(feeds)
    if kind != "null":
        expected = plain_session(branches(width=4)).run(["y", "joined"], feeds)
        for name, array in zip(["y", "joined"], expected, strict=True):
            assert worst_difference(found[name], array) < 1e-5


@pytest.mark.parametrize("kind", ["onnxruntime", "reference"])
@pytest.mark.parametrize("axis", [1, 2])
def test_split_tasks_run_on_two_devices(kind: str, axis: int, cache: Cache) -> None:
    from coexec.graph.graph import Piece
    from coexec.graph.receptive import splittable_axes
    from coexec.plan.plan import verify_plan
    from tests.engines.test_devices import names_of

    devices = open_devices(names_of(kind))
    names = [d.spec.name for d in devices]
    graph = MODEL.graph
    order: dict[str, list[Piece]] = {name: [] for name in names}
    for task in graph.tasks:
        whole = graph.output_of(task).whole
        if axis in splittable_axes(graph, task) and whole.shape[axis] > 4:
            middle = whole.shape[axis] // 2 - 1
            halves = [whole.with_axis(axis, 0, middle)]
            halves.append(whole.with_axis(axis, middle, whole.stop[axis]))
            for name, half in zip(names, halves, strict=False):
                order[name].append(Piece(task.name, half))
        else:
            order[names[0]].append(Piece(task.name, whole))
    assert sum(map(len, order.values())) > len(graph.tasks) + 5
    plan = hand_made(graph, order, devices[0].engine.info.name)
    verify_plan(plan, graph, System(tuple(d.spec for d in devices)))
    feeds = random_inputs(graph)
    compiled = Compiler(MODEL, cache).compile(derive(plan, graph), devices)
    expected = plain_session(branches(width=4)).run(["y", "joined"], feeds)
    with Executor(compiled, devices) as executor:
        for _ in range(2):
            found = executor.run(feeds)
            for name, array in zip(["y", "joined"], expected, strict=True):
                assert worst_difference(found[name], array) < 1e-5


def test_compiling_can_be_broken_off_between_segments(cache: Cache) -> None:
    schedule, _, _ = random_case(0)
    compiled, devices = null_plan(schedule, cache)
    told: list[tuple[int, int]] = []
    Executor(compiled, devices, installing=lambda *counts: told.append(counts)).close()
    total = len(compiled.segments)
    assert told == [(count, total) for count in range(1, total + 1)]

    def enough(done: int, total: int) -> None:
        if done == 2:
            raise TimeoutError

    threads = threading.active_count()
    with pytest.raises(TimeoutError):
        Executor(compiled, devices, installing=enough)
    assert threading.active_count() == threads
