"""Every planner keeps the contract of planners; then, what each docstring claims is measured."""

import inspect
import math
from itertools import pairwise, permutations, product
from pathlib import Path

import pytest
from graphs import (
    BUSY,
    Case,
    Placement,
    cases,
    costs,
    layered,
    make_graph,
    make_system,
    placements,
    systems,
    table,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import coexec.planners
from coexec.derive import derive
from coexec.errors import DeviceError, InfeasibleError, PlanError, UsageError
from coexec.plan import Plan, Provenance, verify_plan
from coexec.planners import PLANNERS, Planner
from coexec.planners.base import Problem, Timeline, makespan_s
from coexec.planners.heft import schedule
from coexec.planners.hope_greedy import default_top_k, merge
from coexec.schedule import Schedule, Segment, Transfer
from coexec.simulate import simulate

EPSILON_S = 1e-9
examples = settings(max_examples=40, deadline=None, derandomize=True)
every_planner = pytest.mark.parametrize("planner", PLANNERS.values(), ids=PLANNERS)


def named(planner: Planner) -> str:
    return next(name for name, other in PLANNERS.items() if other is planner)


def predicted_s(plan: Plan) -> float:
    assert plan.provenance.predicted_s is not None
    return plan.provenance.predicted_s


def device_of(plan: Plan) -> dict[str, str]:
    return {piece.task: device for piece, device in plan.device_of.items()}


# The contract


def test_the_registry_lists_the_files() -> None:
    folder = Path(coexec.planners.__path__[0])
    shared = {"__init__", "base", "problem"}
    assert list(PLANNERS) == sorted({path.stem for path in folder.glob("*.py")} - shared)


@every_planner
@given(data=st.data())
@examples
def test_contract(planner: Planner, data: st.DataObject) -> None:
    case = data.draw(cases(max_tasks=6))
    plan = planner(*case)
    verify_plan(plan, case.graph, case.system)
    simulated_s = simulate(derive(plan, case.graph), case.cost, case.system).makespan_s
    check_provenance(planner, case, plan.provenance)
    assert simulated_s >= Problem(*case).bound_s - EPSILON_S
    assert Plan.from_json(plan.to_json()) == plan
    assert planner(*case) == plan
    assert planner(*case, **plan.provenance.options).order == plan.order


def check_provenance(planner: Planner, case: Case, provenance: Provenance) -> None:
    options = [p for p in inspect.signature(planner).parameters.values() if p.kind == p.KEYWORD_ONLY]
    assert all(p.default is not p.empty for p in options)
    assert set(provenance.options) == {p.name for p in options}
    assert provenance.planner == named(planner)
    assert provenance.status in {"optimal", "feasible", "time limit"}
    assert provenance.bound_s is not None and provenance.predicted_s is not None
    assert provenance.predicted_s >= provenance.bound_s - EPSILON_S
    assert provenance.bound_s >= Problem(*case).bound_s - EPSILON_S


@every_planner
def test_a_task_that_runs_nowhere_is_named(planner: Planner) -> None:
    graph = make_graph({"a": [], "b": ["a"]})
    cost = table(graph, {"A": (1, math.inf), "B": (1, math.inf)})
    with pytest.raises(InfeasibleError, match=r"'b' \(Sum\) runs on none of A, B"):
        planner(graph, cost, make_system("AB"))


@every_planner
def test_one_device_is_enough(planner: Planner) -> None:
    graph = make_graph({"a": [], "b": ["a"], "c": ["a", "b"]})
    plan = planner(graph, table(graph, {"A": (1, 2, 3)}, A=0.5), make_system("A"))
    assert device_of(plan) == {"a": "A", "b": "A", "c": "A"}
    assert predicted_s(plan) == 6


@every_planner
def test_tasks_go_where_they_run(planner: Planner) -> None:
    graph = make_graph({"a": [], "b": ["a"]})
    cost = table(graph, {"A": (1, math.inf), "B": (math.inf, 1)})
    if named(planner) == "single":
        with pytest.raises(InfeasibleError, match="A does not run 'b'.*; B does not run 'a'"):
            planner(graph, cost, make_system("AB"))
    else:
        assert device_of(planner(graph, cost, make_system("AB"))) == {"a": "A", "b": "B"}


# The model of time and the bounds


def task_schedule(case: Case, placement: Placement) -> Schedule:
    """The schedule whose segments are single tasks, tensors being sent in order of the graph."""
    graph, names, last = case.graph, case.system.names, dict[str, int]()
    device = {t.name: names[d] for t, d in zip(graph.tasks, placement.assignment, strict=True)}
    place = {graph.tasks[i].name: at for at, i in enumerate(placement.sequence)}
    segments = []
    for index, i in enumerate(placement.sequence):
        task = graph.tasks[i]
        here = device[task.name]
        after = {last[here]} if here in last else set()
        after |= {place[before.name] for before in graph.predecessors[task.name]}
        last[here] = index
        segments.append(
            Segment(index, here, (graph.whole_piece(task),), (), (), tuple(sorted(after)))
        )
    moves = {
        (name, device[t.name]): None
        for t in graph.tasks
        for name in t.inputs
        if name in graph.producer and device[graph.producer[name].name] != device[t.name]
    }
    transfers = []
    for name, target in moves:
        readers = [place[t.name] for t in graph.readers[name] if device[t.name] == target]
        tensor, source = graph.tensors[name], place[graph.producer[name].name]
        move = Transfer(name, tensor.whole, tensor.size_bytes, source, min(readers))
        transfers.append(move)
    plan = Plan(graph.fingerprint, {d: () for d in names}, Provenance("by hand"))
    used = {d: tuple(s.pieces[0] for s in segments if s.device == d) for d in names}
    return Schedule(
        Plan(plan.model, used, plan.provenance), graph, tuple(segments), tuple(transfers)
    )


def simulated_s(case: Case, placement: Placement) -> float:
    return simulate(task_schedule(case, placement), case.cost, case.system).makespan_s


@given(data=st.data())
@settings(examples, max_examples=150)
def test_the_model_of_time_is_the_simulators_for_single_tasks(data: st.DataObject) -> None:
    # With two kinds of links into one device, the order of waits and copies would matter.
    two_devices = cases(max_tasks=8, devices="AB", alone=False)
    alike = st.sampled_from(BUSY).flatmap(lambda busy: cases(max_tasks=8, busy=busy, alone=False))
    case = data.draw(st.one_of(two_devices, alike))
    placement = data.draw(placements(case))
    ours_s = makespan_s(Problem(*case), *placement)
    assert ours_s == pytest.approx(simulated_s(case, placement))
    assert ours_s >= Problem(*case).bound_s - EPSILON_S


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
@settings(examples, max_examples=100)
def test_divisible_load_is_close_to_the_exact_one(rows: list[tuple[float, float]]) -> None:
    graph = make_graph({f"t{i}": [] for i in range(len(rows))})
    a_s, b_s = zip(*rows, strict=True)
    problem = Problem(graph, table(graph, {"A": a_s, "B": b_s}), make_system("AB"))
    exact_s = shared_out_s(rows)
    assert 0.99 * exact_s <= problem.divisible_load_s <= exact_s * (1 + 1e-9)


def test_critical_path_pays_for_forced_moves() -> None:
    graph = make_graph({"a": [], "b": ["a"], "c": ["b"]}, {"a": 4})
    cost = table(graph, {"A": (2, math.inf, 3), "B": (math.inf, 5, 9)}, A=1, B=1)
    problem = Problem(graph, cost, make_system("AB", latency_s=1, items_per_s=2))
    assert problem.comm_s(0, 1, 0, 1) == 1 + 2 and problem.comm_s(0, 1, 1, 1) == 0
    # 2 on A, latency and copy, 5 less its launch on B, latency and copy of 1, 3 less its launch.
    assert problem.critical_path_s == 2 + 3 + 4 + 1.5 + 2


# The oracle


@every_planner
@given(data=st.data())
@examples
def test_no_planner_beats_the_oracle(planner: Planner, data: st.DataObject) -> None:
    case = data.draw(cases(max_tasks=6))
    best_s = predicted_s(PLANNERS["exhaustive"](*case))
    assert Problem(*case).bound_s - EPSILON_S <= best_s <= predicted_s(planner(*case)) + EPSILON_S


@given(data=st.data())
@examples
def test_exhaustive_is_brute_force(data: st.DataObject) -> None:
    busy = data.draw(st.sampled_from(BUSY))
    small = cases(max_tasks=4, devices="AB", alone=False)
    case = data.draw(st.one_of(small, cases(max_tasks=3, busy=busy, alone=False)))
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


def test_exhaustive_refuses_what_it_cannot_do() -> None:
    case = layered(12, 3)
    with pytest.raises(PlanError, match="12 tasks, exhaustive takes at most 10; .* max_tasks"):
        PLANNERS["exhaustive"](*case)
    assert predicted_s(PLANNERS["exhaustive"](*case, max_tasks=12)) > 0


# single


@given(cases())
@examples
def test_single_is_the_fastest_device_as_simulated(case: Case) -> None:
    graph, cost, system = case

    def alone_s(name: str) -> float:
        schedule = derive(PLANNERS["single"](*case, device=name), graph)
        return simulate(schedule, cost, system).makespan_s

    able = [name for name in system.names if cost.total_s(name) < math.inf]
    chosen = PLANNERS["single"](*case).provenance.options["device"]
    assert alone_s(chosen) == min(alone_s(name) for name in able)


def test_single_says_why_not() -> None:
    graph = make_graph({"a": [], "b": ["a"]})
    case = Case(graph, table(graph, {"A": (1, 1), "B": (1, math.inf)}), make_system("AB"))
    with pytest.raises(InfeasibleError, match=r"B does not run 'b' \(Sum\)"):
        PLANNERS["single"](*case, device="B")
    with pytest.raises(DeviceError, match="no device 'C', only A, B"):
        PLANNERS["single"](*case, device="C")


# heft


def published() -> Case:
    """Figure 3 and table of computation costs of the paper: 10 tasks on 3 processors."""
    comm_s = {
        "a": {"b": 18, "c": 12, "d": 9, "e": 11, "f": 14},
        "b": {"h": 19, "i": 16},
        "c": {"g": 23},
        "d": {"h": 27, "i": 23},
        "e": {"i": 13},
        "f": {"h": 15},
        "g": {"j": 17},
        "h": {"j": 11},
        "i": {"j": 13},
    }
    items = {f"{a}>{b}": s for a, row in comm_s.items() for b, s in row.items()}
    reads = {task: [tensor for tensor in items if tensor.endswith(task)] for task in "abcdefghij"}
    graph = make_graph(reads, items)
    rows = {
        "A": (14, 13, 11, 13, 12, 13, 7, 5, 18, 21),
        "B": (16, 19, 13, 8, 13, 16, 15, 11, 12, 7),
        "C": (9, 18, 19, 17, 10, 9, 11, 14, 20, 16),
    }
    return Case(graph, table(graph, rows), make_system("ABC", items_per_s=1, busy="none"))


def test_heft_on_the_papers_example() -> None:
    problem = Problem(*published())
    ranks = [108, 77, 80, 80, 69, 63.333, 42.667, 35.667, 44.333, 14.667]
    assert problem.upward_rank_s == pytest.approx(ranks, abs=1e-3)
    slots = schedule(problem)
    assert max(slot.end_s for slot in slots) == 80
    assert "".join("ABC"[slot.device] for slot in slots) == "CACBCBCABB"


@given(cases(max_tasks=8, alone=False))
@examples
def test_heft_slots_are_a_schedule(case: Case) -> None:
    problem = Problem(*case)
    slots = schedule(problem)
    for device in problem.devices:
        row = sorted(slot for slot in slots if slot.device == device)
        assert all(a.end_s <= b.start_s for a, b in pairwise(row))
    for a, b in problem.edges:
        comm_s = problem.comm_s(a, b, slots[a].device, slots[b].device)
        assert slots[b].start_s >= slots[a].end_s + comm_s
    free_of_copies = all(link.bandwidth_bytes_per_s == math.inf for link in case.system.links)
    if free_of_copies:
        assert predicted_s(PLANNERS["heft"](*case)) <= max(slot.end_s for slot in slots)


def test_heft_fills_gaps() -> None:
    graph = make_graph({"a": [], "b": ["a"], "c": []})
    cost = table(graph, {"A": (4, math.inf, math.inf), "B": (math.inf, 4, 2)})
    assert [slot.start_s for slot in schedule(Problem(graph, cost, make_system("AB")))] == [0, 4, 0]


# hope_greedy


@given(data=st.data())
@examples
def test_greedy_is_optimal_for_k_independent_tasks(data: st.DataObject) -> None:
    graph = make_graph({name: [] for name in "abcdef"[: data.draw(st.integers(1, 6))]})
    system = data.draw(systems("ABC"))
    case = Case(graph, data.draw(costs(graph, system)), system)
    plan = PLANNERS["hope_greedy"](*case, top_k=len(graph.tasks), merge_below_s=0.0)
    assert predicted_s(plan) == predicted_s(PLANNERS["exhaustive"](*case))


@given(cases(max_tasks=9, alone=False), st.sampled_from((0.0, 2.5, 4.0, 9.0)))
@examples
def test_merged_groups(case: Case, below_s: float) -> None:
    problem = Problem(*case)
    groups = merge(problem, below_s)
    assert sorted(task for group in groups for task in group) == list(problem.tasks)
    for group in groups:
        assert list(group) == sorted(group)
        for task in group[1:]:
            assert set(problem.predecessors[task]) <= set(group)
            assert all(s < below_s for s in problem.latency_s[task] if s < math.inf)
            head_s = problem.latency_s[group[0]]
            assert all(
                s < math.inf or h == math.inf
                for s, h in zip(problem.latency_s[task], head_s, strict=True)
            )
    plan = PLANNERS["hope_greedy"](*case, merge_below_s=below_s)
    where = device_of(plan)
    for group in groups:
        assert len({where[case.graph.tasks[task].name] for task in group}) == 1


def test_greedy_merges_what_is_not_worth_a_wait() -> None:
    graph = make_graph({"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"], "e": ["d"], "f": []})
    # b and d take less than the link's latency and a launch, c does on one device only, and
    # nobody but A runs e.
    rows = {"A": (9, 2, 2, 1, 1, 1), "B": (9, 2, 9, 1, math.inf, 1)}
    problem = Problem(graph, table(graph, rows, A=1, B=1), make_system("AB", latency_s=2))
    assert merge(problem, 3.0) == [(0, 1), (2,), (3,), (4,), (5,)]
    assert merge(problem, 10.0) == [(0, 1, 2, 3), (4,), (5,)]
    options = PLANNERS["hope_greedy"](*problem_case(problem)).provenance.options
    assert options == {"top_k": 4, "merge_below_s": 3.0}


def problem_case(problem: Problem) -> Case:
    assert not isinstance(problem.cost, type(None))
    return Case(problem.graph, problem.cost, problem.system)  # type: ignore[arg-type]


@pytest.mark.parametrize("heavy", "ab")
def test_greedy_stays_with_the_heaviest_predecessor(heavy: str) -> None:
    graph = make_graph({"a": [], "b": [], "c": ["a", "b"]}, {heavy: 100})
    cost = table(graph, {"A": (1, math.inf, 1), "B": (math.inf, 1, 1)})
    where = device_of(PLANNERS["hope_greedy"](graph, cost, make_system("AB")))
    assert where["c"] == where[heavy]


def test_greedy_does_not_hop_without_gain() -> None:
    graph = make_graph({"a": [], "b": ["a"], "c": ["b"], "d": ["c"]})
    cost = table(graph, {"A": (2, 1, 1, 1), "B": (1, 1, 1, 1)})
    plan = PLANNERS["hope_greedy"](graph, cost, make_system("AB"))
    assert plan.used == ("B",)


def test_greedy_sizes() -> None:
    assert [default_top_k(d) for d in (1, 2, 3, 4, 5, 16, 17, 300)] == [4, 4, 3, 4, 3, 2, 1, 1]
    with pytest.raises(UsageError, match="top_k is 0"):
        PLANNERS["hope_greedy"](*layered(4, 2), top_k=0)


def test_greedy_plans_a_large_network() -> None:
    case = layered(700, 6)
    plan = PLANNERS["hope_greedy"](*case)
    verify_plan(plan, case.graph, case.system)
    trace = simulate(derive(plan, case.graph), case.cost, case.system)
    single_s = predicted_s(PLANNERS["single"](*case))
    assert Problem(*case).bound_s <= trace.makespan_s < 0.6 * single_s
