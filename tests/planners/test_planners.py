"""Every planner keeps the contract of planners, in a model of time that is the simulator's."""

import gc
import math
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coexec.research.planners as papers
from coexec import planners
from coexec.errors import InfeasibleError
from coexec.graph.graph import Piece, Tensor
from coexec.hardware.hardware import EngineInfo, System
from coexec.plan.derive import derive
from coexec.plan.plan import Plan, Provenance, verify_plan
from coexec.planners import PLANNERS
from coexec.problem.problem import Problem
from coexec.problem.timeline import Timeline, makespan_s
from coexec.timing.simulate import simulate
from coexec.units import format_bytes
from tests.helpers.examples import scaled
from tests.helpers.graphs import (
    Case,
    Placement,
    cases,
    device_of,
    hand_made,
    make_graph,
    make_plan,
    make_system,
    placements,
    predicted_s,
    quickly,
    table,
    task_schedule,
)
from tests.helpers.operators import conv

EPSILON_S = 1e-9
examples = settings(max_examples=scaled(6), deadline=None, derandomize=True)
every_planner = pytest.mark.parametrize("name", PLANNERS)


# The contract


def test_the_registry_lists_the_files() -> None:
    """Those of the product, and those of the papers, which are entry points."""
    folders = (Path(package.__path__[0]) for package in (planners, papers))
    names = {path.stem for folder in folders for path in folder.glob("*.py")} - {"__init__"}
    assert list(PLANNERS) == sorted(names)


@pytest.mark.sampled(2)
@every_planner
@given(data=st.data())
@examples
def test_contract(name: str, data: st.DataObject) -> None:
    case = data.draw(cases(max_tasks=6))
    plan = quickly(name, case)
    verify_plan(plan, case.graph, case.system)
    simulated_s = simulate(derive(plan, case.graph), case.cost, case.system).makespan_s
    check_provenance(name, case, plan.provenance)
    assert simulated_s >= Problem(*case).bound_s - EPSILON_S
    assert Plan.from_json(plan.to_json()) == plan
    assert quickly(name, case) == plan
    assert PLANNERS[name](*case, **plan.provenance.options).order == plan.order


def check_provenance(name: str, case: Case, provenance: Provenance) -> None:
    options = PLANNERS[name].options
    assert all(p.default is not p.empty for p in options.values())
    assert provenance.options.keys() == options.keys()
    assert provenance.planner == name
    assert provenance.status in {"optimal", "feasible", "time limit"}
    assert provenance.bound_s is not None and provenance.predicted_s is not None
    assert provenance.predicted_s >= provenance.bound_s - EPSILON_S
    assert provenance.bound_s >= Problem(*case).bound_s - EPSILON_S


@every_planner
def test_a_task_that_runs_nowhere_is_named(name: str) -> None:
    graph = make_graph({"a": [], "b": ["a"]})
    cost = table(graph, {"A": (1, math.inf), "B": (1, math.inf)})
    with pytest.raises(InfeasibleError, match=r"'b' \(Sum\) runs on none of A, B"):
        PLANNERS[name](graph, cost, make_system("AB"))


def with_memory(system: System, **memory_bytes: int) -> System:
    """Each device with a memory of its own."""
    devices = (
        replace(d, engine=EngineInfo("null", "", f"{d.name}'s", memory_bytes[d.name]))
        for d in system.devices
    )
    return System(tuple(devices), system.links)


@every_planner
def test_memory_that_is_too_small_for_a_task(name: str) -> None:
    graph = make_graph({"a": [], "b": ["a"]}, {"b": 100})  # b reads 4 bytes and makes 400
    cost = table(graph, {"A": (1, 1), "B": (1, 9)})
    with pytest.raises(
        InfeasibleError, match=r"'b' \(Sum\) needs 404 B .* A/null has 403 B, B/null has 8.00 B"
    ):
        PLANNERS[name](graph, cost, with_memory(make_system("AB"), A=403, B=8))
    plan = PLANNERS[name](graph, cost, with_memory(make_system("AB"), A=403, B=404))
    assert device_of(plan)["b"] == "B"


def test_memory_that_is_too_small_for_the_weights_of_a_plan() -> None:
    graph = make_graph({"a": [], "b": ["a"]})
    weights = {name: Tensor(name, (50,), "float32", constant=True) for name in ("wa", "wb")}
    tasks = tuple(replace(t, weights=(f"w{t.name}",)) for t in graph.tasks)
    graph = replace(graph, tensors={**graph.tensors, **weights}, tasks=tasks)
    plan = make_plan(graph, A="ab")
    verify_plan(plan, graph, with_memory(make_system("A"), A=408))
    idle = make_plan(graph, A="ab", B="")  # B has nothing to do, so the system need not have it
    verify_plan(idle, graph, with_memory(make_system("A"), A=408))
    with pytest.raises(InfeasibleError, match=r"408 B into the memory of A, which has 407 B.*'a'"):
        verify_plan(plan, graph, with_memory(make_system("A"), A=407))
    small = EngineInfo("null", memory_bytes=300)
    together = replace(make_system("AB").devices[0], engine=small)
    apart = with_memory(make_system("AB"), A=300, B=300)
    verify_plan(make_plan(graph, A="a", B="b"), graph, apart)
    shared = System((together, replace(together, name="B")))
    with pytest.raises(InfeasibleError, match=r"408 B into the memory of A, B, which has 300 B"):
        verify_plan(make_plan(graph, A="a", B="b"), graph, shared)


@pytest.mark.parametrize(
    ("axis", "half", "apart_bytes", "together_bytes"),
    [
        (2, 3, 864 + 24 + 640 + 432, 864 + 24 + 640 + 432),  # both read all weights, 5 of 8 rows
        (1, 3, 432 + 12 + 1024 + 432, 864 + 24 + 1024 + 432),  # half of the weights each
    ],
)
def test_memory_that_is_too_small_for_the_parts_of_a_task(
    axis: int, half: int, apart_bytes: int, together_bytes: int
) -> None:
    graph = conv((1, 6, 6, 6))
    whole = graph.output_of(graph.tasks[0]).whole
    bounds = ((0, half), (half, 6))
    halves = [Piece("task", whole.with_axis(axis, *ends)) for ends in bounds]
    apart = hand_made(graph, {"A": halves[:1], "B": halves[1:]})
    together = hand_made(graph, {"A": halves})
    for plan, needed, names in ((apart, apart_bytes, "AB"), (together, together_bytes, "A")):
        verify_plan(plan, graph, with_memory(make_system(names), **dict.fromkeys(names, needed)))
        less = with_memory(make_system(names), **dict.fromkeys(names, needed - 1))
        with pytest.raises(InfeasibleError, match=rf"of A, which has {format_bytes(needed - 1)}"):
            verify_plan(plan, graph, less)


@every_planner
def test_one_device_is_enough(name: str) -> None:
    graph = make_graph({"a": [], "b": ["a"], "c": ["a", "b"]})
    plan = PLANNERS[name](graph, table(graph, {"A": (1, 2, 3)}, A=0.5), make_system("A"))
    assert device_of(plan) == {"a": "A", "b": "A", "c": "A"}
    assert predicted_s(plan) == 6


@every_planner
def test_tasks_go_where_they_run(name: str) -> None:
    graph = make_graph({"a": [], "b": ["a"]})
    cost = table(graph, {"A": (1, math.inf), "B": (math.inf, 1)})
    if name == "single":
        with pytest.raises(InfeasibleError, match=r"A does not run 'b'.*; B does not run 'a'"):
            PLANNERS[name](graph, cost, make_system("AB"))
    else:
        assert device_of(PLANNERS[name](graph, cost, make_system("AB"))) == {"a": "A", "b": "B"}


# The model of time and the bounds


def simulated_s(case: Case, placement: Placement) -> float:
    return simulate(task_schedule(case, placement), case.cost, case.system).makespan_s


@given(data=st.data())
@examples
def test_placing_one_by_one_is_exact_where_targets_copy(data: st.DataObject) -> None:
    case = data.draw(cases(max_tasks=8, busy="target"))
    assignment, sequence = data.draw(placements(case))
    timeline = Timeline(problem := Problem(*case))
    for task in sequence:
        timeline.copy().run(task, assignment[task])  # leaves no trace
        timeline.run(task, assignment[task])
    assert timeline.makespan_s == makespan_s(problem, assignment, sequence)


def shared_out_s(rows: list[tuple[float, float]]) -> float:
    """Divisible load on two devices: the first takes what suits it best until both are level."""
    first_s, second_s = 0.0, sum(b for _, b in rows)
    for a, b in sorted(rows, key=lambda row: row[0] / row[1]):
        if first_s + a > second_s - b:
            return first_s + a * (second_s - first_s) / (a + b)
        first_s, second_s = first_s + a, second_s - b
    return first_s


@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(0.1, 100)), min_size=1, max_size=12))
@settings(examples, max_examples=scaled(12))
def test_divisible_load_is_close_to_the_exact_one(rows: list[tuple[float, float]]) -> None:
    graph = make_graph({f"t{i}": [] for i in range(len(rows))})
    a_s, b_s = zip(*rows, strict=True)
    problem = Problem(graph, table(graph, {"A": a_s, "B": b_s}), make_system("AB"))
    exact_s = shared_out_s(rows)
    assert 0.99 * exact_s <= problem.bounds.divisible_load_s <= exact_s * (1 + 1e-9)


def test_critical_path_pays_for_forced_moves() -> None:
    graph = make_graph({"a": [], "b": ["a"], "c": ["b"]}, {"a": 4})
    cost = table(graph, {"A": (2, math.inf, 3), "B": (math.inf, 5, 9)}, A=1, B=1)
    problem = Problem(graph, cost, make_system("AB", latency_s=1, items_per_s=2))
    assert problem.comm_s(0, 1, 0, 1) == 1 + 2 and problem.comm_s(0, 1, 1, 1) == 0
    # 2 on A, latency and copy, 5 less its launch on B, latency and copy of 1, 3 less its launch.
    assert problem.bounds.critical_path_s == 2 + 3 + 4 + 1.5 + 2


# The oracle


@pytest.mark.sampled(3)
@every_planner
@given(data=st.data())
@examples
def test_no_planner_beats_the_oracle(name: str, data: st.DataObject) -> None:
    case = data.draw(cases(max_tasks=6))
    best_s = predicted_s(PLANNERS["exhaustive"](*case))
    limits = {"limit": 0.1} if name == "cpsat" else {}  # what it promises holds at any time
    plan = quickly(name, case, **limits)
    assert Problem(*case).bound_s - EPSILON_S <= best_s <= predicted_s(plan) + EPSILON_S


@given(data=st.data())
@examples
def test_exhaustive_is_brute_force(data: st.DataObject) -> None:
    small = cases(max_tasks=4, devices="AB", alone=False)
    case = data.draw(st.one_of(small, cases(max_tasks=3, alone=False)))
    problem = Problem(*case)
    best_s = min(
        simulated_s(case, Placement(assignment, sequence))
        for assignment in product(problem.devices, repeat=len(problem.tasks))
        if all(problem.latency_s[t][d] < math.inf for t, d in enumerate(assignment))
        for sequence in permutations(problem.tasks)
        if all(sequence.index(a) < sequence.index(b) for a, b in problem.edges)
    )
    plan = PLANNERS["exhaustive"](*case)
    assert predicted_s(plan) == plan.provenance.bound_s == pytest.approx(best_s)
    assert plan.provenance.status == "optimal"


# The collector of garbage


def test_frozen_objects_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each count takes time for every object of the process."""
    counts, count = list[int](), gc.get_freeze_count
    monkeypatch.setattr(gc, "get_freeze_count", lambda: counts.append(count()) or counts[-1])
    graph = make_graph({"a": ()})
    PLANNERS["single"](graph, table(graph, {"A": [1.0]}), make_system("A"))
    assert counts == [0]


def test_objects_are_frozen_while_a_plan_is_made_and_never_longer() -> None:
    graph, seen = make_graph({"a": ()}), list[int]()
    cost, system = table(graph, {"A": [1.0], "B": [2.0]}), make_system("AB")

    def solve(problem: Problem) -> None:
        seen.append(gc.get_freeze_count())
        raise InfeasibleError("no way")

    planner = replace(PLANNERS["single"], solve=solve)
    for already in (False, True):
        if already:
            gc.freeze()
        before = gc.get_freeze_count()
        with pytest.raises(InfeasibleError):
            planner(graph, cost, system)
        if already:  # frozen objects that nobody has any more are freed, and then count no longer
            assert 0 < gc.get_freeze_count() <= before and 0 < seen[-1] <= before
        else:
            assert gc.get_freeze_count() == before == 0 < seen[-1]
    gc.unfreeze()
