"""Several engines of one device: they take turns in its thread, and pieces name their engine."""

from itertools import pairwise

import pytest

from coexec.cache import Cache
from coexec.costs.table import CostTable
from coexec.engines.detect import usable_cores
from coexec.engines.onnxruntime.device import CpuCluster
from coexec.engines.opened import OpenDevice
from coexec.engines.reference import ReferenceEngine
from coexec.errors import DeviceError, PlanError
from coexec.hardware.hardware import Device, EngineInfo, Link, Place, System
from coexec.model.check import plain_session, worst_difference
from coexec.model.load import random_inputs
from coexec.plan.derive import derive
from coexec.plan.plan import Plan, verify_plan
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor
from coexec.runtime.recorder import RealRecorder
from coexec.timing.simulate import simulate
from tests.engines.test_devices import alternating, places_of
from tests.helpers.graphs import at
from tests.helpers.small_models import branches
from tests.runtime.test_executor import MODEL, Elsewhere


def device(cores: tuple[int, ...]) -> OpenDevice:
    """One device with ONNX Runtime, the reference, and the reference with a memory of its own."""
    infos = (
        EngineInfo("onnxruntime"),
        EngineInfo("reference"),
        EngineInfo("elsewhere", memory="elsewhere"),
    )
    spec = Device("cpu:x", "cpu", infos, cores)
    far = Elsewhere()
    far.device, far.info = spec, infos[2]
    return OpenDevice.of(CpuCluster(spec, infos[0]), ReferenceEngine(spec, infos[1]), far)


def test_engines_of_one_device_take_turns(cache: Cache) -> None:
    one = device(usable_cores()[:1])
    plan = alternating(MODEL.graph, places_of([one]))
    verify_plan(plan, MODEL.graph, System((one.spec,)))
    assert Plan.from_json(plan.to_json()) == plan
    schedule = derive(plan, MODEL.graph)
    assert {s.engine for s in schedule.segments} == {"onnxruntime", "reference", "elsewhere"}
    assert all({plan.place_of[p] for p in s.pieces} == {s.place} for s in schedule.segments)
    compiled = Compiler(MODEL, cache).compile(schedule, [one])
    feeds = random_inputs(MODEL.graph)
    expected = plain_session(branches(width=4)).run(["y", "joined"], feeds)
    recorder = RealRecorder(compiled, ["cpu:x"])
    with Executor(compiled, [one]) as executor:
        for _ in range(2):  # buffers are used again
            found = executor.run(feeds, recorder)
            for name, array in zip(["y", "joined"], expected, strict=True):
                assert worst_difference(found[name], array) < 1e-5
    spans = recorder.trace().of("compute")
    assert [s.engine for s in spans] == [s.engine for s in schedule.segments]
    assert all(a.end_s <= b.start_s for a, b in pairwise(spans))


def test_a_switch_costs_what_its_link_says() -> None:
    graph = MODEL.graph
    here, there = Place("A", "null"), Place("A", "other")
    infos = (EngineInfo("null"), EngineInfo("other", memory="its own"))
    tasks_s = {place: dict.fromkeys(graph.task, 1.0) for place in (here, there)}
    cost = CostTable(tasks_s)
    switch = Link("A", "A", 0.25, source_engine="null", target_engine="other")
    system = System((Device("A", "null", infos),), (switch,))
    alone = alternating(graph, [here])
    turns = alternating(graph, [here, there])
    seconds = [simulate(derive(p, graph), cost, system).makespan_s for p in (alone, turns)]
    assert seconds[0] == len(graph.tasks)
    schedule = derive(turns, graph)
    switches = sum(
        any(schedule.segments[i].place == here for i in segment.after)
        for segment in schedule.segments
        if segment.place == there
    )
    assert switches > 2 and seconds[1] == pytest.approx(seconds[0] + 0.25 * switches)


def test_a_plan_for_an_engine_that_is_not_there() -> None:
    plan = alternating(MODEL.graph, [Place("A", "opencl")])
    system = System((Device("A", "null"),))
    with pytest.raises(PlanError, match="computes on A/opencl, the system has A/null; run with"):
        verify_plan(plan, MODEL.graph, system)
    with pytest.raises(DeviceError, match="'A' has no engine 'opencl' here, only null"):
        system.memory(Place("A", "opencl"))
    assert system.places == (at("A"),)


def test_pieces_of_two_engines_cannot_be_fused() -> None:
    graph = MODEL.graph
    plan = alternating(graph, [Place("A", "null"), Place("A", "other")])
    fused = Plan(
        plan.model, plan.order, plan.engine_of, plan.provenance, frozenset(plan.order["A"][1:2])
    )
    infos = (EngineInfo("null"), EngineInfo("other"))
    with pytest.raises(
        PlanError, match=r"the plan fuses .* which other computes, with .*null does"
    ):
        verify_plan(fused, graph, System((Device("A", "null", infos),)))
