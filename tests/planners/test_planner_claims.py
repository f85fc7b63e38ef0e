"""What the docstrings of the planners claim, measured."""

import math
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.errors import DeviceError, InfeasibleError, PlanError, UsageError
from coexec.plan.derive import derive
from coexec.plan.plan import verify_plan
from coexec.planners import PLANNERS
from coexec.planners.heft import schedule
from coexec.planners.hope_greedy import default_top_k, merge
from coexec.problem.problem import Problem
from coexec.timing.simulate import simulate
from tests.helpers.examples import scaled
from tests.helpers.graphs import (
    Case,
    at,
    cases,
    costs,
    device_of,
    layered,
    make_graph,
    make_system,
    predicted_s,
    systems,
    table,
)

examples = settings(max_examples=scaled(15), deadline=None, derandomize=True)


# exhaustive


def test_exhaustive_refuses_what_it_cannot_do() -> None:
    case = layered(12, 3)
    with pytest.raises(PlanError, match=r"12 tasks, exhaustive takes at most 10; .* max_tasks"):
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

    able = [name for name in system.names if cost.total_s(at(name)) < math.inf]
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
    """Without launches: the comparison with single devices counts them, the search does not."""
    graph = make_graph({name: [] for name in "abcdef"[: data.draw(st.integers(1, 6))]})
    system = data.draw(systems("ABC"))
    case = Case(graph, data.draw(costs(graph, system, launch=False)), system)
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
    case = Case(graph, table(graph, rows, A=1, B=1), make_system("AB", latency_s=2))
    problem = Problem(*case)
    assert merge(problem, 3.0) == [(0, 1), (2,), (3,), (4,), (5,)]
    assert merge(problem, 10.0) == [(0, 1, 2, 3), (4,), (5,)]
    options = PLANNERS["hope_greedy"](*case).provenance.options
    assert options == {"top_k": 1, "merge_below_s": 3.0}  # all K are equal here: the least


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
    # Measured in November 2026: 0.49 of `single`. No plan of this graph takes less than 0.44.
    assert Problem(*case).bound_s <= trace.makespan_s < 0.6 * single_s
