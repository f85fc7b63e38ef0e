"""Plans in files: what is written is read, and what does not fit is said."""

import json
from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.errors import PlanError
from coexec.graph.graph import Graph
from coexec.hardware.hardware import Device, EngineInfo, Place, System
from coexec.model.load import load
from coexec.plan.derive import derive
from coexec.plan.plan import Plan, Provenance, verify_plan
from coexec.plan.plan_file import ModelFacts, PlanFile
from tests.helpers.examples import scaled
from tests.helpers.graphs import graphs
from tests.helpers.small_models import branches

ENGINES = ("onnxruntime", "opencl", "openvino")
SYSTEM = System(
    tuple(
        Device(f"cpu:{n}", "cpu", EngineInfo(engine), (n,)) for n in range(3) for engine in ENGINES
    )
)
GRAPH = load(branches()).graph
VERSIONS = {"coexec": "1", "onnxruntime": "2"}


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """Whole tasks anywhere, each device with one engine, some of them fused."""
    places = [Place(f"cpu:{n}", draw(st.sampled_from(ENGINES))) for n in range(3)]
    order: dict[Place, list] = {place: [] for place in places}
    for task in GRAPH.tasks:
        order[draw(st.sampled_from(places))].append(GRAPH.whole_piece(task))
    fused = [p for pieces in order.values() for p in pieces[1:] if draw(st.booleans())]
    times = st.one_of(st.none(), st.floats(0, 1e3))
    why = Provenance("heft", {"seed": draw(st.integers())}, "feasible", draw(times), draw(times))
    by_place = {place: tuple(pieces) for place, pieces in order.items()}
    return Plan.of_places(GRAPH.fingerprint, by_place, why, frozenset(fused))


@given(plans())
@settings(max_examples=scaled(20), deadline=None)
def test_a_plan_is_read_as_it_was_written(plan: Plan) -> None:
    file = PlanFile(plan, ModelFacts.of(GRAPH, {"N": 1, "x": (1, 3)}, VERSIONS))
    found = PlanFile.from_json(file.to_json())
    assert found == file and found.to_json() == file.to_json()
    found.require(GRAPH, VERSIONS)
    verify_plan(found.plan, GRAPH, SYSTEM)


def one_device() -> Plan:
    pieces = tuple(GRAPH.whole_piece(task) for task in GRAPH.tasks)
    return Plan.of_places(GRAPH.fingerprint, {SYSTEM.places[0]: pieces}, Provenance("single"))


@pytest.mark.parametrize("count", [2, 3])
@given(graphs(max_tasks=10), st.data())
@settings(max_examples=scaled(60), deadline=None)
def test_devices_of_a_processor_take_turns_seldom(
    count: int, graph: Graph, data: st.DataObject
) -> None:
    places = [Place("cpu:0", engine) for engine in ENGINES[:count]]
    place_of = {task: data.draw(st.sampled_from(places)) for task in graph.task}
    plan = Plan.in_turns(graph, place_of, Provenance("single"))
    verify_plan(plan, graph, SYSTEM)
    derive(plan, graph)  # raises if a task came before one that it reads from
    assert {piece.task: place for piece, place in plan.place_of.items()} == place_of

    def turns(engines: Iterable[str]) -> int:
        return sum(1 for _ in groupby(engines))

    seldom = turns(plan.engine_of[piece] for piece in plan.order["cpu:0"])
    assert seldom <= turns(place_of[task.name].engine for task in graph.tasks)
    chain = {name: 0 for name in graph.task}
    for task in graph.tasks:  # no order has fewer turns than the chain with the most changes
        for before in graph.predecessors[task.name]:
            changes = place_of[before.name] != place_of[task.name]
            chain[task.name] = max(chain[task.name], chain[before.name] + changes)
    assert seldom >= max(chain.values()) + 1


def test_what_differs_is_said_with_both_values() -> None:
    file = PlanFile(one_device(), ModelFacts.of(GRAPH, versions=VERSIONS), "p.json")
    larger = load(branches(size=24)).graph
    with pytest.raises(PlanError, match=r"'p.json'.*x \[1, 3, 20, 20\].*x \[1, 3, 24, 24\].*new"):
        file.require(larger, VERSIONS)
    with pytest.raises(PlanError, match=r"onnxruntime 2.*onnxruntime 3"):
        file.require(load(branches(width=2)).graph, {**VERSIONS, "onnxruntime": "3"})
    for silent in (file, replace(file, made_for=None)):
        other = load(branches(width=2)).graph
        with pytest.raises(PlanError, match=f"{GRAPH.fingerprint}.*{other.fingerprint}"):
            silent.require(other, VERSIONS)


@pytest.mark.parametrize(
    "harm",
    [
        {"made_for": 3},
        {"made_for": {"name": "m"}},
        {"made_for": {"name": "m", "inputs": {"x": "1"}, "shapes": {}, "versions": {}}},
        {"provenance": {"planner": "heft", "predicted_s": "soon"}},
        {"provenance": {"planner": None}},
        {"format": 1},
        {"order": {"cpu:0": [{"task": "a"}]}},
        {"order": None},
    ],
)
def test_a_damaged_file_is_one_message(harm: dict) -> None:
    data = json.loads(PlanFile(one_device(), ModelFacts.of(GRAPH)).to_json())
    with pytest.raises(PlanError, match=r"'p.json': .*coexec plan"):
        PlanFile.from_json(json.dumps({**data, **harm}), "p.json")


def test_a_file_of_an_earlier_version_is_read() -> None:
    plan = one_device()
    assert PlanFile.from_json(plan.to_json()).plan == plan
