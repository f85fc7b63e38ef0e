"""Pipeline plans: what follows from them, and which are refused."""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.errors import InfeasibleError, PlanError
from coexec.graph.graph import Graph
from coexec.graph.region import Region
from coexec.graph.stitch import missing
from coexec.model.model import Model
from coexec.pipeline.network import connected, machine
from coexec.pipeline.plan.flow import Computation, Message, actions
from coexec.pipeline.plan.memory import machine_memory
from coexec.pipeline.plan.plan import PipelinePlan, Share, Stage, boundary
from coexec.pipeline.plan.verify import verify_pipeline
from coexec.pipeline.plan.work import redundancy, share_strip, stage_work
from tests.helpers.network_cases import networks
from tests.helpers.pipeline_cases import chain, cluster, halves, pipeline_plans, rows

MACHINES = ["A", "B", "C"]
examples = settings(max_examples=40, deadline=None)


@given(networks(), st.data())
@examples
def test_random_plans_are_valid_and_have_a_form_in_json(model: Model, data: st.DataObject) -> None:
    plan = data.draw(pipeline_plans(model.graph, MACHINES))
    verify_pipeline(plan, model.graph, cluster([1, 1, 1])[1])
    rows = json.loads(plan.to_json())["stages"]
    assert [row["tasks"] for row in rows] == [list(stage.tasks) for stage in plan.stages]


@given(networks(), st.data())
@examples
def test_useful_and_redundant_macs_add_up(model: Model, data: st.DataObject) -> None:
    """What shares compute is useful or redundant; the useful parts are what is computed at all."""
    graph = model.graph
    plan = data.draw(pipeline_plans(graph, MACHINES))
    for stage in plan.stages:
        works = stage_work(graph, stage)
        assert all(0 <= work.useful_macs <= work.strip.macs for work in works)
        union = 0
        for name in stage.tasks:
            whole = graph.output_of(graph.task[name]).whole
            regions = [p.region for w in works for p in w.strip.pieces if p.task == name]
            left = sum(box.size for box in missing(whole, regions))
            union += graph.task[name].macs * (whole.size - left) / max(1, whole.size)
        assert abs(sum(work.useful_macs for work in works) - union) <= len(stage.tasks)
    assert 0.0 <= redundancy(graph, plan) < 1.0


@given(networks(), st.data())
@examples
def test_actions_wait_for_what_brings_their_data(model: Model, data: st.DataObject) -> None:
    """In any order that the waits allow, a machine has what it sends and what it computes from."""
    graph = model.graph
    plan = data.draw(pipeline_plans(graph, MACHINES))
    flow = actions(plan, graph)
    for index, action in enumerate(flow):
        assert all(before < index for before in action.after)
        held = _held(plan, graph, flow, _all_before(flow, index))
        what = action.what
        if isinstance(what, Message):
            assert what.source != what.target
            items = sum(r.size * graph.tensors[n].item_bytes for n, r in what.parts)
            assert what.size_bytes == items
            where, reads = what.source, what.parts
        else:
            where, reads = what.machine, what.strip.reads
        assert all(_has(held, where, *part) for part in reads)
    done = sum(isinstance(action.what, Computation) for action in flow)
    assert done == sum(len(stage.shares) for stage in plan.stages)
    held, last = _held(plan, graph, flow, range(len(flow))), plan.stages[-1].leader
    assert all(_has(held, last, name, graph.tensors[name].whole) for name in graph.outputs)


Held = list[tuple[str, str, Region]]


def _held(plan: PipelinePlan, graph: Graph, flow: tuple, indices: Iterable[int]) -> Held:
    """What lies where after some actions: machine, tensor, region."""
    held: Held = [(plan.stages[0].leader, n, graph.tensors[n].whole) for n in graph.inputs]
    for what in (flow[i].what for i in indices):
        if isinstance(what, Message):
            held += [(what.target, *part) for part in what.parts]
        else:
            outputs = plan.stages[what.stage].shares[what.share].outputs
            held += [(what.machine, *part) for part in outputs]
    return held


def _has(held: Held, machine: str, name: str, region: Region) -> bool:
    own = [r for where, other, r in held if (where, other) == (machine, name)]
    return not missing(region, own)


def _all_before(flow: tuple, index: int) -> set[int]:
    found, stack = set(), [index]
    while stack:
        for before in flow[stack.pop()].after:
            if before not in found:
                found.add(before)
                stack.append(before)
    return found


def test_two_halves_by_hand() -> None:
    graph, plan = halves()
    whats = [action.what for action in actions(plan, graph)]
    sent = [(w.purpose, w.source, w.target, w.size_bytes) for w in whats if isinstance(w, Message)]
    assert sent == [
        ("scatter", "A", "B", 5 * 8 * 4),
        ("gather", "B", "A", 4 * 8 * 4),
        ("forward", "A", "C", 8 * 8 * 4),
    ]
    assert [w.machine for w in whats if isinstance(w, Computation)] == ["A", "B", "C"]
    assert boundary(graph, plan.stages, 1) == ("t1",)
    assert redundancy(graph, plan) == 0.0


def test_fused_halves_compute_their_halo_twice() -> None:
    graph = chain()
    shares = Share("A", (("t2", rows(0, 4)),)), Share("B", (("t2", rows(4, 8)),))
    stage = Stage(("c0", "c1"), "A", shares)
    works = stage_work(graph, stage)
    assert [work.strip.macs for work in works] == [(5 + 4) * 8 * 9] * 2
    assert [work.redundant_macs for work in works] == [8 * 9] * 2
    assert share_strip(graph, stage, 1).reads == (("t0", rows(2, 8)),)


def test_neighbours_send_halos_alone() -> None:
    graph, plan = halves()
    shares = Share("A", (("t2", rows(0, 4)),)), Share("B", (("t2", rows(4, 8)),))
    plan = replace(plan, stages=(plan.stages[0], Stage(("c1",), "A", shares, "neighbours")))
    verify_pipeline(plan, graph, cluster([1, 1])[1])
    sent = [
        (w.purpose, w.source, w.target, w.size_bytes)
        for w in (action.what for action in actions(plan, graph))
        if isinstance(w, Message)
    ]
    assert Counter(sent) == Counter(
        {
            ("scatter", "A", "B", 5 * 8 * 4): 1,
            ("exchange", "B", "A", 8 * 4): 1,
            ("exchange", "A", "B", 8 * 4): 1,
            ("gather", "B", "A", 4 * 8 * 4): 1,
        }
    )


def test_memory_by_hand() -> None:
    graph, plan = halves()
    held = machine_memory(graph, plan)
    assert {name: found.weight_bytes for name, found in held.items()} == dict.fromkeys("ABC", 36)
    # A: its rows in and out, and as the leader all of both maps.
    assert held["A"].feature_bytes == (5 + 4) * 32 + 2 * 8 * 32
    assert held["B"].feature_bytes == (5 + 4) * 32
    assert held["C"].feature_bytes == 2 * 8 * 32


REFUSED = {
    "another model": (lambda p: replace(p, model="other"), "made for another model"),
    "machine": (lambda p: _with(p, 1, leader="Z"), "machine 'Z', there are A, B, C"),
    "twice": (lambda p: _with(p, 1, tasks=("c0", "c1")), "both compute 'c0'"),
    "unknown": (lambda p: _with(p, 1, tasks=("c1", "c7")), "'c7', which the model does not have"),
    "order": (lambda p: replace(p, stages=p.stages[::-1]), "before 'c0', which it reads"),
    "left out": (lambda p: replace(p, stages=p.stages[:1]), "leaves out 1 of 2 tasks"),
    "overlap": (lambda p: _share(p, "B", rows(3, 8)), "both compute [0:1, 0:1, 3:4, 0:8]"),
    "gap": (lambda p: _share(p, "B", rows(5, 8)), "leaves out [0:1, 0:1, 4:5, 0:8]"),
    "outside": (lambda p: _share(p, "B", rows(4, 9)), "give a part that lies inside"),
    "one machine": (lambda p: _share(p, "A", rows(4, 8)), "two shares of one machine"),
    "frames": (lambda p: replace(p, at_once=0), "0 frames"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_plans(case: str) -> None:
    graph, plan = halves()
    change, text = REFUSED[case]
    with pytest.raises(PlanError) as error:
        verify_pipeline(change(plan), graph, cluster([1, 1, 1])[1])
    assert text in str(error.value)


def _with(plan: PipelinePlan, index: int, **changes: object) -> PipelinePlan:
    stages = list(plan.stages)
    stages[index] = replace(stages[index], **changes)  # type: ignore[arg-type]
    return replace(plan, stages=tuple(stages))


def _share(plan: PipelinePlan, machine: str, region: Region) -> PipelinePlan:
    shares = plan.stages[0].shares[0], Share(machine, (("t1", region),))
    return _with(plan, 0, shares=shares)


def test_a_machine_that_cannot_hold_its_share_is_named() -> None:
    graph, plan = halves()
    small = connected([machine("A"), machine("B"), machine("C", memory_bytes=500)], 1e6)
    with pytest.raises(InfeasibleError, match="'C' has 500 B and would hold 548 B"):
        verify_pipeline(plan, graph, small)


@given(networks(), st.data())
@examples
def test_frames_come_from_the_door_and_answers_go_there(model: Model, data: st.DataObject) -> None:
    """One more machine: all inputs leave it, and all outputs arrive, each once."""
    graph = model.graph
    plan = data.draw(pipeline_plans(graph, MACHINES))
    whats = [action.what for action in actions(plan, graph, door="door")]
    sent = [w for w in whats if isinstance(w, Message) and w.source == "door"]
    arrived = [w for w in whats if isinstance(w, Message) and w.target == "door"]
    read = {n for n in graph.inputs if graph.readers[n]}
    assert {name for w in sent for name, _ in w.parts} == read
    outputs = boundary(graph, plan.stages, len(plan.stages))
    assert Counter(part for w in arrived for part in w.parts) == Counter(
        (name, graph.tensors[name].whole) for name in outputs
    )
    inside = plan.stages[0].leader
    if inside == plan.stages[-1].leader and plan.stages[0].exchange == "leader":
        assert actions(plan, graph, door=inside) == actions(plan, graph)
