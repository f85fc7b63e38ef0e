"""Devices that share a processor: they take turns in its thread, and planners choose among them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.cache import Cache
from coexec.costs.table import CostTable
from coexec.engines.detect import usable_cores
from coexec.engines.onnxruntime.device import CpuCluster
from coexec.engines.opened import OpenDevice
from coexec.engines.reference import ReferenceEngine
from coexec.errors import InfeasibleError, PlanError
from coexec.hardware.hardware import Device, EngineInfo, Link, Place, System
from coexec.model.difference import worst_difference
from coexec.model.inputs import random_inputs
from coexec.model.reference_session import plain_session
from coexec.plan.derive import derive
from coexec.plan.plan import Plan, verify_plan
from coexec.planners import PLANNERS
from coexec.runtime.compiler import Compiler
from coexec.runtime.executor import Executor
from coexec.runtime.recorder import RealRecorder
from coexec.timing.simulate import simulate
from tests.engines.test_devices import alternating, places_of
from tests.helpers.examples import scaled
from tests.helpers.graphs import Case, cases, make_graph
from tests.helpers.small_models import branches
from tests.runtime.test_executor import MODEL, Elsewhere


def devices(cores: tuple[int, ...]) -> list[OpenDevice]:
    """ONNX Runtime, the reference, and the reference with a memory of its own, on one core."""
    infos = (
        EngineInfo("onnxruntime"),
        EngineInfo("reference"),
        EngineInfo("elsewhere", memory="elsewhere"),
    )
    ort, near, away = (Device("cpu:x", "cpu", info, cores) for info in infos)
    far = Elsewhere()
    far.device, far.info = away, away.engine
    engines = (CpuCluster(ort, ort.engine), ReferenceEngine(near, near.engine), far)
    return [OpenDevice.of(engine) for engine in engines]


def test_devices_that_share_a_core_take_turns(cache: Cache) -> None:
    opened = devices(usable_cores()[:1])
    plan = alternating(MODEL.graph, places_of(opened))
    verify_plan(plan, MODEL.graph, System(tuple(device.spec for device in opened)))
    assert Plan.from_json(plan.to_json()) == plan
    schedule = derive(plan, MODEL.graph)
    assert {s.engine for s in schedule.segments} == {"onnxruntime", "reference", "elsewhere"}
    assert all({plan.place_of[p] for p in s.pieces} == {s.place} for s in schedule.segments)
    compiled = Compiler(MODEL, cache).compile(schedule, opened)
    feeds = random_inputs(MODEL.graph)
    expected = plain_session(branches(width=4)).run(["y", "joined"], feeds)
    recorder = RealRecorder(compiled, ["cpu:x"])
    with Executor(compiled, opened) as executor:
        for _ in range(2):  # buffers are used again
            found = executor.run(feeds, recorder)
            for name, array in zip(["y", "joined"], expected, strict=True):
                assert worst_difference(found[name], array) < 1e-5
    spans = recorder.trace().of("compute")
    assert [s.engine for s in spans] == [s.engine for s in schedule.segments]
    assert all(a.end_s <= b.start_s for a, b in pairwise(spans))


HERE, THERE = Place("A", "null"), Place("A", "other")


def sharing(*links: Link) -> System:
    infos = (EngineInfo("null"), EngineInfo("other", memory="its own"))
    return System(tuple(Device("A", "null", info) for info in infos), links)


def test_a_switch_costs_what_its_link_says() -> None:
    graph = MODEL.graph
    cost = CostTable({place: dict.fromkeys(graph.task, 1.0) for place in (HERE, THERE)})
    system = sharing(Link(HERE, THERE, 0.25))
    alone = alternating(graph, [HERE])
    turns = alternating(graph, [HERE, THERE])
    seconds = [simulate(derive(p, graph), cost, system).makespan_s for p in (alone, turns)]
    assert seconds[0] == len(graph.tasks)
    schedule = derive(turns, graph)
    switches = sum(
        any(schedule.segments[i].place == HERE for i in segment.after)
        for segment in schedule.segments
        if segment.place == THERE
    )
    assert switches > 2 and seconds[1] == pytest.approx(seconds[0] + 0.25 * switches)


def with_sharer(case: Case, seconds: Sequence[float]) -> Case:
    """A case with a further device on the processor of the last one. It takes these seconds."""
    first, last = case.system.devices[0], case.system.devices[-1]
    other = replace(last, engine=EngineInfo("other"))
    links = tuple(
        Link(*ends, 0.125) for one in (first, last) for ends in two_ways(one.place, other.place)
    )
    system = System((*case.system.devices, other), (*case.system.links, *links))
    own_s = {task.name: s for task, s in zip(case.graph.tasks, seconds, strict=False)}
    tasks_s = {**case.cost.tasks_s, other.place: own_s}
    return Case(case.graph, CostTable(tasks_s, case.cost.launches_s), system)


def two_ways(one: Place, other: Place) -> tuple[tuple[Place, Place], ...]:
    return (one, other), (other, one)


def refusal(name: str) -> str:
    """How a planner refuses two engines on one processor; "" if it chooses."""
    graph = make_graph({"a": [], "b": ["a"]})
    cost = CostTable({place: dict.fromkeys(graph.task, 1.0) for place in (HERE, THERE)})
    try:
        PLANNERS[name](graph, cost, sharing())
    except InfeasibleError as error:
        return str(error)
    return ""


EXCLUSIVE = sorted(filter(refusal, PLANNERS))
"""Planners that take one engine for each processor."""
CHOOSING = sorted({*PLANNERS} - {*EXCLUSIVE})


@settings(max_examples=scaled(20), deadline=None)
@pytest.mark.parametrize("name", CHOOSING)
@given(case=cases(max_tasks=5), seconds=st.lists(st.sampled_from((0.25, 1.0, 5.0)), min_size=5))
def test_planners_choose_the_engine_of_each_piece(
    name: str, case: Case, seconds: list[float]
) -> None:
    """The processor is busy for one of them at a time, and no task is divided among them."""
    shared = with_sharer(case, seconds)
    plan = PLANNERS[name](*shared)
    trace = simulate(derive(plan, shared.graph), shared.cost, shared.system)
    last = shared.system.devices[-1].name
    spans = sorted(trace.of("compute"), key=lambda span: (span.start_s, span.end_s))
    turns = [span for span in spans if span.device == last]
    assert all(a.end_s <= b.start_s for a, b in pairwise(turns))
    parts: dict[str, set[str]] = {}
    for piece, place in plan.place_of.items():
        if place.device == last and piece != shared.graph.whole_piece(
            shared.graph.task[piece.task]
        ):
            parts.setdefault(piece.task, set()).add(place.engine)
    assert all(len(engines) == 1 for engines in parts.values())


@pytest.mark.parametrize("name", CHOOSING)
def test_of_two_engines_the_faster_one_is_chosen(name: str) -> None:
    graph = make_graph({"a": [], "b": ["a"], "c": ["a"]})
    slow, fast = dict.fromkeys(graph.task, 2.0), dict.fromkeys(graph.task, 1.0)
    plan = PLANNERS[name](graph, CostTable({HERE: slow, THERE: fast}), sharing())
    assert plan.places == (THERE,) and plan.requests == ("A/other",)


@pytest.mark.parametrize("name", EXCLUSIVE)
def test_other_planners_say_that_they_do_not_choose(name: str) -> None:
    assert "one engine for each processor, not A/null, A/other" in refusal(name)


def test_a_plan_for_an_engine_that_is_not_there() -> None:
    plan = alternating(MODEL.graph, [Place("A", "opencl")])
    with pytest.raises(PlanError, match="computes on A/opencl, the system has A/null; run with"):
        verify_plan(plan, MODEL.graph, System((Device("A", "null"),)))


def test_pieces_of_two_engines_cannot_be_fused() -> None:
    graph = MODEL.graph
    plan = alternating(graph, [HERE, THERE])
    fused = replace(plan, fused=frozenset(plan.order["A"][1:2]))
    with pytest.raises(
        PlanError, match=r"the plan fuses .* which other computes, with .*null does"
    ):
        verify_plan(fused, graph, sharing())
