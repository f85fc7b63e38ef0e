"""The exact planners: equal to the oracle on small graphs, and bounds that hold."""

import math
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.errors import PackageError, UsageError
from coexec.hardware.hardware import Link, System
from coexec.plan.derive import derive
from coexec.plan.plan import Plan
from coexec.planners import PLANNERS
from coexec.planners.methods.listing import listed
from coexec.problem.problem import Problem
from coexec.problem.timeline import Timeline, makespan_s
from coexec.research.planners.exact.constraints import Constraints
from coexec.research.planners.exact.formulation import Formulation
from coexec.research.planners.hope_ilp import partition
from coexec.timing.simulate import simulate
from tests.helpers.examples import scaled
from tests.helpers.graphs import (
    BUSY,
    ITEM_BYTES,
    Case,
    at,
    cases,
    layered,
    make_graph,
    make_system,
    placed,
    placements,
    predicted_s,
    quickly,
    table,
    task_schedule,
)

INF = math.inf
EPSILON_S = 1e-5
"""In graphs whose tasks take seconds."""
examples = settings(max_examples=scaled(15), deadline=None, derandomize=True)
every_link = pytest.mark.parametrize("busy", BUSY)


def bound_s(plan: Plan) -> float:
    assert plan.provenance.bound_s is not None
    return plan.provenance.bound_s


def simulated_s(plan: Plan, case: Case) -> float:
    return simulate(derive(plan, case.graph), case.cost, case.system).makespan_s


def without_cost(case: Case, free: frozenset[int]) -> Case:
    """The tasks in ``free`` take no time where they run."""
    rows = {
        p.device: [0.0 if i in free and s < math.inf else s for i, s in enumerate(tasks_s.values())]
        for p, tasks_s in case.cost.tasks_s.items()
    }
    launches_s = {place.device: seconds for place, seconds in case.cost.launches_s.items()}
    return case._replace(cost=table(case.graph, rows, **launches_s))


some_tasks = st.frozensets(st.integers(0, 5), max_size=2)


# The oracle


@pytest.mark.sampled(3)
@every_link
@given(data=st.data())
@examples
def test_the_whole_graph_by_hope_ilp_is_the_oracles(busy: str, data: st.DataObject) -> None:
    case = data.draw(cases(max_tasks=6, busy=busy, alone=False))
    case = without_cost(case, data.draw(some_tasks))
    plan = PLANNERS["hope_ilp"](*case, part_tasks=0)
    assert plan.provenance.status == "optimal"
    assert predicted_s(plan) == pytest.approx(predicted_s(PLANNERS["exhaustive"](*case)))


@pytest.mark.sampled(3)
@every_link
@given(data=st.data())
@examples
def test_cpsat_is_the_oracles(busy: str, data: st.DataObject) -> None:
    # Tasks that send several tensors are left out where links queue: in which order is not the
    # planners' choice, and cpsat's bound holds for every order.
    several = busy == "target"
    devices = "ABC" if several else "AB"
    case = data.draw(cases(6, devices, busy, launch=False, alone=False, several=several))
    case = without_cost(case, data.draw(some_tasks))
    plan = PLANNERS["cpsat"](*case, workers=1)
    best_s = predicted_s(PLANNERS["exhaustive"](*case))
    assert bound_s(plan) == pytest.approx(best_s, abs=EPSILON_S)
    assert simulated_s(plan, case) == pytest.approx(best_s, abs=EPSILON_S)
    assert plan.provenance.status == "optimal"


# Bounds


def test_a_device_that_cannot_be_used_in_time_takes_no_part_in_the_bound() -> None:
    """CP-SAT 9.15 calls this infeasible if "e", which ends too late on B, shares its start with the
    interval that it has there."""
    graph = make_graph(
        {"a": [], "b": [], "c": ["a"], "d": [], "e": ["d", "a", "b"]}, items={"d": 3}
    )
    rows = {"A": [math.inf, 0.25, 0.25, math.inf, 0.25], "B": [1.0, math.inf, math.inf, 1.0, 5.0]}
    devices = make_system("AB").devices
    links = (
        Link(at("A"), at("B"), 0.0, math.inf, "source"),
        Link(at("B"), at("A"), 0.0, ITEM_BYTES, "target"),
    )
    case = Case(graph, table(graph, rows, A=0.0, B=0.5), System(devices, links))
    plan = PLANNERS["cpsat"](*case, workers=1)
    assert plan.provenance.status == "optimal"
    assert predicted_s(plan) - EPSILON_S <= bound_s(plan) <= predicted_s(plan)


@pytest.mark.long
@given(data=st.data())
@settings(examples, max_examples=scaled(12))
def test_no_plan_beats_the_bound_of_cpsat(data: st.DataObject) -> None:
    case = data.draw(cases(max_tasks=7, alone=False))
    case = without_cost(case, data.draw(some_tasks))
    proven = PLANNERS["cpsat"](*case, workers=1)
    proven_s = bound_s(proven)
    assert proven_s >= Problem(*case).bound_s
    for planner in PLANNERS:
        if planner != "single":
            plan = proven if planner == "cpsat" else quickly(planner, case)
            assert simulated_s(plan, case) >= proven_s - EPSILON_S
    placement = data.draw(placements(case))
    assert simulated_s(placed(case, placement), case) >= proven_s - EPSILON_S
    single = simulate(task_schedule(case, placement), case.cost, case.system)
    assert single.makespan_s >= proven_s - EPSILON_S


@given(data=st.data())
@settings(examples, max_examples=scaled(25))
def test_no_plan_beats_the_chained_load(data: st.DataObject) -> None:
    case = data.draw(cases(max_tasks=7, alone=False))
    problem = Problem(*case)
    best_s = predicted_s(PLANNERS["exhaustive"](*case))
    assert problem.bounds.chained_load_s <= best_s + EPSILON_S
    placement = data.draw(placements(case))
    timeline = Timeline(problem, placement.assignment)
    for task in placement.sequence:
        timeline.run(task, placement.assignment[task])
    heads_s, tails_s, _ = problem.bounds.chain
    for task in problem.tasks:
        start_s = timeline.end_s[task] - problem.latency_s[task][timeline.place[task]]
        assert heads_s[task] <= start_s + EPSILON_S
        assert timeline.end_s[task] + tails_s[task] <= timeline.makespan_s + EPSILON_S


def test_the_chained_load_sees_a_narrow_place() -> None:
    # Four tasks of 2 s on two devices, then one of 1 s that waits for all, then four of 2 s.
    before, after = "abcd", "fghi"
    reads = {**{name: [] for name in before}, "e": list(before), **{name: ["e"] for name in after}}
    graph = make_graph(reads)
    rows = {device: (2, 2, 2, 2, 1, 2, 2, 2, 2) for device in "AB"}
    problem = Problem(graph, table(graph, rows), make_system("AB"))
    assert problem.bounds.critical_path_s == 5
    assert problem.bounds.divisible_load_s == pytest.approx(8.5, rel=0.01)
    assert problem.bounds.chained_load_s == problem.bound_s == 9


# The formulation


@given(data=st.data())
@settings(examples, max_examples=scaled(25))
def test_a_plan_as_a_solution_takes_as_long(data: st.DataObject) -> None:
    case = data.draw(cases(max_tasks=7, alone=False))
    problem = Problem(*case)
    placement = data.draw(placements(case))
    formulation = Formulation(
        problem, problem.tasks, Timeline(problem), Constraints(1e-3), problem.bounds.chain.tails_s
    )
    formulation.one_at_a_time()
    solution = formulation.solution(*placement)
    took_s = solution.moments[formulation.end_of_all] * 1e-3
    assert took_s == pytest.approx(makespan_s(problem, *placement))
    assignment, sequence = formulation.read(solution)
    assert tuple(assignment) == placement.assignment
    assert makespan_s(problem, assignment, sequence) == pytest.approx(took_s)


# The partition


@given(cases(max_tasks=10), st.integers(2, 6), st.sampled_from((0.0, 0.2, 0.5)))
@examples
def test_partition(case: Case, part_tasks: int, eps: float) -> None:
    check_partition(Problem(*case), part_tasks, eps)


@pytest.mark.parametrize("width", [3, 20])
def test_partition_of_a_larger_graph(width: int) -> None:
    check_partition(Problem(*layered(200, width)), 12, 0.2)


def check_partition(problem: Problem, part_tasks: int, eps: float) -> None:
    parts = partition(problem, part_tasks, eps)
    assert Counter(task for part in parts for task in part) == Counter(problem.tasks)
    assert all(0 < len(part) < part_tasks for part in parts)
    part_of = {task: number for number, part in enumerate(parts) for task in part}
    assert all(part_of[a] <= part_of[b] for a, b in problem.edges)


def test_a_cut_goes_where_few_tasks_are_side_by_side() -> None:
    # Depths 1 to 5 with 1, 2, 1, 2 and 1 tasks: the third has the fewest of those near the middle.
    reads = {
        "a": [],
        "b": ["a"],
        "c": ["a"],
        "d": ["b", "c"],
        "e": ["d"],
        "f": ["d"],
        "g": ["e", "f"],
    }
    graph = make_graph(reads)
    problem = Problem(graph, table(graph, {"A": [1] * 7}), make_system("A"))
    assert partition(problem, 7, 0.2) == [[0, 1, 2, 3], [4, 5, 6]]


# What is promised where nothing is proven


LARGER = layered(40, 5)


@pytest.mark.long
def test_never_longer_than_what_the_search_began_with() -> None:
    problem = Problem(*LARGER)
    timeline, sequence = listed(problem, problem.tasks, Timeline(problem), problem.upward_rank_s)
    listed_s = makespan_s(problem, timeline.place, sequence)
    for part_tasks in (2, 6, 12):
        plan = PLANNERS["hope_ilp"](*LARGER, part_tasks=part_tasks)
        assert predicted_s(plan) <= listed_s + EPSILON_S
    plan = PLANNERS["cpsat"](*LARGER, limit=0.2, steps=1000)
    others = [PLANNERS[name](*LARGER) for name in ("hope_greedy", "heft")]
    assert simulated_s(plan, LARGER) <= min(simulated_s(other, LARGER) for other in others)
    assert simulated_s(plan, LARGER) >= bound_s(plan)
    assert plan.provenance.status == "feasible"


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "name, options", [("cpsat", {"limit": 0.2, "steps": 1000}), ("hope_ilp", {"part_tasks": 6})]
)
def test_the_same_plan_twice(name: str, options: dict[str, float]) -> None:
    assert PLANNERS[name](*LARGER, **options) == PLANNERS[name](*LARGER, **options)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["cpsat", "hope_ilp"])
def test_no_time_at_all(name: str) -> None:
    plan = PLANNERS[name](*LARGER, time_limit_s=1e-9)
    assert plan.provenance.status == "time limit"
    assert simulated_s(plan, LARGER) >= bound_s(plan) >= Problem(*LARGER).bound_s


def test_a_device_that_still_sends_when_all_tasks_have_ended_is_not_done() -> None:
    """CP-SAT was given such an end as the latest, and called its own start infeasible."""
    graph = make_graph(
        {"a": ["x"], "b": ["x"], "c": ["a", "b"], "d": ["c>d"], "e": ["a", "c", "d"]}
    )
    inf = math.inf
    rows = {"A": [1.0, inf, 1.0, 5.0, inf], "B": [1.0, 1.0, inf, 1.0, 1.0]}
    case = Case(graph, table(graph, rows, A=0.5, B=0.5), make_system("AB", 0.0, 0.5, "source"))
    plan = PLANNERS["cpsat"](*case, limit=5)
    plans = [quickly(name, case) for name in PLANNERS if name != "single"]
    best_s = min(simulated_s(found, case) for found in plans)
    assert bound_s(plan) <= simulated_s(plan, case) == best_s


@pytest.mark.parametrize("name", ["cpsat", "hope_ilp"])
def test_what_follows_the_last_task_does_not_wait_for_all_that_it_sends(name: str) -> None:
    """Both solvers were told that it does, and called worse plans, and bounds, optimal."""
    # A makes b, sends it to C within 0.25 s, where d takes 2 s, and then to B within 1 s.
    graph = make_graph({"a": [], "b": [], "c": [], "d": ["a", "b", "c"], "e": ["b"]})
    rows = {"A": (9, 0.25, 9, INF, INF), "B": (9, 9, 0.25, INF, 0.25), "C": (0.25, 9, 9, 2, INF)}
    seconds = {("A", "B"): 1.0, ("A", "C"): 0.25}
    links = tuple(
        Link(at(a), at(b), 0.0, ITEM_BYTES / s, "source") for (a, b), s in seconds.items()
    )
    case = Case(graph, table(graph, rows), System(make_system("ABC").devices, links))
    options = {"hope_ilp": {"part_tasks": 0}, "cpsat": {"limit": 5}}[name]
    plan, best = PLANNERS[name](*case, **options), PLANNERS["exhaustive"](*case)
    assert plan.provenance.status == "optimal"
    assert bound_s(plan) - EPSILON_S <= predicted_s(plan) == predicted_s(best) == 2.5


# Usage


@pytest.mark.parametrize(
    "name, module, solver",
    [("cpsat", "ortools.sat.python.cp_model", "OR-Tools"), ("hope_ilp", "highspy", "HiGHS")],
)
def test_the_solver_is_missing(
    name: str, module: str, solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    message = rf"planner {name} needs {solver}, which is not installed; pip install highspy ortools"
    with pytest.raises(PackageError, match=message):
        PLANNERS[name](*LARGER)


@pytest.mark.parametrize(
    "code, trouble",
    [
        ("raise ImportError('undefined symbol: _ZN5Highs')", "undefined symbol: _ZN5Highs"),
        ("import no_such_package", "No module named 'no_such_package'"),
    ],
)
def test_the_solver_cannot_be_loaded(
    code: str, trouble: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "highspy.py").write_text(code)
    monkeypatch.delitem(sys.modules, "highspy", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    message = rf"HiGHS, which is installed, but cannot be loaded \({trouble}\); .*--upgrade"
    with pytest.raises(PackageError, match=message):
        PLANNERS["hope_ilp"](*LARGER)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("cpsat", {"limit": 0}, "limit is 0, but planner cpsat needs more than 0"),
        ("cpsat", {"workers": -1}, "workers is -1"),
        ("hope_ilp", {"part_tasks": 1}, "part_tasks is 1.* use 0 for the whole graph"),
        ("hope_ilp", {"eps": -0.1}, "eps is -0.1"),
        ("hope_ilp", {"look_ahead": 1.5}, "look_ahead is 1.5, but a share is from 0 to 1"),
        ("hope_ilp", {"max_nodes": 0}, "max_nodes is 0"),
        ("hope_ilp", {"time_limit_s": 0}, "time_limit_s is 0"),
    ],
)
def test_options_without_meaning(name: str, options: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PLANNERS[name](*LARGER, **options)


def test_a_part_starts_behind_what_came_before() -> None:
    # A chain in parts of one task: each part has to know where the last one left its tensor.
    names = "abcdef"
    reads = {name: [before] for before, name in pairwise(names)}
    graph = make_graph({"a": [], **reads}, dict.fromkeys(names, 100))
    cost = table(graph, {"A": (3, 2, 2, 2, 2, 2), "B": (2, 1, 2, 1, 2, 1)})
    case = Case(graph, cost, make_system("AB", latency_s=1, items_per_s=10))
    plan = PLANNERS["hope_ilp"](*case, part_tasks=2)
    assert predicted_s(plan) == predicted_s(PLANNERS["exhaustive"](*case)) == 9
    assert plan.used == ("B",)
