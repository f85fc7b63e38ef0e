"""Launches: fused by a plan, timed like the simulator does, annealed."""

from dataclasses import replace
from itertools import pairwise
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.errors import PlanError, UsageError
from coexec.plan.derive import derive
from coexec.plan.plan import Plan
from coexec.planners import PLANNERS, search_starts
from coexec.planners.methods.annealing import annealed
from coexec.problem.fusion import Evaluator, Queues, fuse, fused, queues_of, solution_of
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, simulated_s
from coexec.timing.simulate import simulate
from tests.helpers.examples import scaled
from tests.helpers.graphs import (
    Busy,
    Case,
    cases,
    layered,
    make_graph,
    make_plan,
    make_system,
    placements,
    table,
)

examples = settings(max_examples=scaled(40), deadline=None, derandomize=True)


def spread(case: Case) -> Solution:
    """The tasks of a case by turns on its devices."""
    count = len(case.graph.tasks)
    return Solution([i % len(case.system.devices) for i in range(count)], range(count))


def plainly_fused(problem: Problem, found: Solution) -> Queues:
    """What `fused` says, each try run from beginning to end."""
    evaluator, queues = Evaluator(problem), queues_of(problem, found)
    best_s, before = evaluator.run(queues).total_s, Queues()
    while before != queues:
        before = queues
        for device in problem.devices:
            at = 0
            while at + 1 < len(queues[device]):
                tried = fuse(queues, device, at)
                tried_s = evaluator.run(tried).total_s
                if tried_s <= best_s:
                    queues, best_s = tried, tried_s
                else:
                    at += 1
    return queues


@pytest.mark.parametrize("seed", range(12))
def test_tries_that_are_not_run_would_have_been_longer(seed: int) -> None:
    problem = Problem(*layered(30, 4, "AB" if seed % 2 else "ABC", seed))
    free = tuple(replace(link, bandwidth_bytes_per_s=inf) for link in problem.system.links)
    problem = replace(problem, system=replace(problem.system, links=free))
    for found in (
        spread(Case(problem.graph, problem.cost, problem.system)),
        *search_starts(problem),
    ):
        plain = Solution(found.assignment, found.sequence)
        assert fused(problem, plain) == solution_of(problem, plainly_fused(problem, plain))


# A fork: b on B reads a on A, which has c to do as well. Each launch costs 1.
FORK = make_graph({"a": [], "b": ["a"], "c": [], "d": []})
ROWS = {"A": (3.0, 9.0, 3.0, 9.0), "B": (9.0, 3.0, 9.0, 6.0)}
CASE = Case(FORK, table(FORK, ROWS, A=1, B=1), make_system("AB"))


def test_a_plan_can_fuse_what_others_wait_for() -> None:
    plan = make_plan(FORK, A="ac", B="db")
    assert [s.name for s in derive(plan, FORK).segments if s.device == "A"] == ["a", "c"]
    together = replace(plan, fused=frozenset({FORK.whole_piece(FORK.task["c"])}))
    schedule = derive(together, FORK)
    assert [len(s.pieces) for s in schedule.segments if s.device == "A"] == [2]
    trace = simulate(schedule, CASE.cost, CASE.system)
    # a and c end at 5 instead of 3 and 6; d keeps B busy until 6 anyway.
    assert trace.busy_s("A") == 5 and trace.makespan_s == 6 + 3
    assert Plan.from_json(together.to_json()) == together


def test_planners_fuse_where_there_is_time() -> None:
    problem = Problem(*CASE)
    late = fused(problem, Solution([0, 1, 0, 1], [0, 3, 2, 1]))
    assert late.fused == {2}
    early = fused(problem, Solution([0, 1, 0, 1], [0, 1, 2, 3]))  # b would start later
    assert early.fused == {3}, "b and d alone, which delays nobody"


def test_pieces_that_wait_for_each_other_cannot_be_fused() -> None:
    graph = make_graph({"a": [], "b": ["a"], "c": ["b"]})
    plan = make_plan(graph, A="ac", B="b")
    derive(plan, graph)
    circle = replace(plan, fused=frozenset({graph.whole_piece(graph.task["c"])}))
    with pytest.raises(PlanError, match=r"deadlock: 3 of 3 pieces can never start, .* fused"):
        derive(circle, graph)
    backwards = make_plan(graph, A="bac")
    with pytest.raises(PlanError, match="deadlock"):
        derive(replace(backwards, fused=frozenset(backwards.order["A"])), graph)


def test_what_is_fused_is_true_or_false() -> None:
    text = make_plan(FORK, A="ac", B="db").to_json().replace('"a",', '"a", "fused": 1,')
    with pytest.raises(PlanError, match="fused is 1, neither true nor false"):
        Plan.from_json(text)


@given(data=st.data())
@examples
def test_fusing_and_annealing_never_lose(data: st.DataObject) -> None:
    case = data.draw(cases(8))
    problem, found = Problem(*case), Solution(*data.draw(placements(case)))
    before_s = simulated_s(problem, found)
    together = fused(problem, found)
    assert list(together.assignment) == list(found.assignment)
    assert simulated_s(problem, together) <= before_s + 1e-9
    better = annealed(problem, together, steps=50, bound_s=problem.bound_s)
    assert problem.bound_s - 1e-9 <= simulated_s(problem, better) <= before_s + 1e-9
    assert better == annealed(problem, together, steps=50, bound_s=problem.bound_s)
    assert sorted(better.sequence) == list(problem.tasks)


@pytest.mark.parametrize("busy", ["source", "none"])
def test_what_a_launch_made_first_leaves_first(busy: Busy) -> None:
    # A launches a and b (1.5 s), then c. B reads b first (9 s), but a is sent before it (2 s each).
    graph = make_graph({"a": [], "b": [], "u": ["b"], "c": [], "v": ["a", "c"]}, {"a": 2, "b": 2})
    rows = {"A": (1.0, 1.0, 9.0, 1.0, 5.0), "B": (9.0, 9.0, 9.0, 9.0, 5.0)}
    case = Case(
        graph, table(graph, rows, A=0.5, B=0.5), make_system("AB", items_per_s=1, busy=busy)
    )
    problem, queues = Problem(*case), [[(0, 1), (3,)], [(2,), (4,)]]
    took_s = 1.5 + 2 * 2.0 + 9.0 + 5.0
    assert simulated_s(problem, solution_of(problem, queues)) == took_s
    assert Evaluator(problem).run(queues).total_s == took_s


@pytest.mark.long
@given(data=st.data())
@settings(examples, max_examples=scaled(15))
def test_no_search_is_longer_than_the_quick_planners(data: st.DataObject) -> None:
    case = data.draw(cases(10, "AB", launch=True))
    problem = Problem(*case)
    seconds = [
        simulate(derive(PLANNERS[name](*case), case.graph), case.cost, case.system).makespan_s
        for name in ("dmdar", "heft", "hope_greedy", "mosaic")
    ]
    assert simulated_s(problem, search_starts(problem)[0]) <= min(seconds) + 1e-9
    plan = PLANNERS["anneal"](*case, steps=1)
    took_s = simulate(derive(plan, case.graph), case.cost, case.system).makespan_s
    assert took_s <= min(seconds) + 1e-9


def test_a_plan_that_cannot_run_is_left_as_it_is() -> None:
    graph = make_graph({"a": [], "b": ["a"], "c": ["b"], "d": []})
    rows = {"A": (1.0, 1.0, 1.0, 1.0), "B": (1.0, float("inf"), 1.0, 1.0)}
    problem = Problem(graph, table(graph, rows, A=0.5, B=0.5), make_system("AB"))
    impossible = Solution([0, 1, 0, 1], [0, 1, 2, 3])
    assert fused(problem, impossible) == impossible
    assert annealed(problem, impossible, steps=10) == impossible


def test_fused_launches_that_do_not_pay_come_apart_again() -> None:
    case = layered(24, 4, seed=1)
    problem, found = Problem(*case), spread(case)
    better = annealed(problem, fused(problem, found), steps=3000)
    assert simulated_s(problem, better) < 0.8 * simulated_s(problem, found)


def test_a_circle_takes_forever() -> None:
    problem = Problem(*CASE._replace(graph=make_graph({"a": [], "b": ["a"], "c": ["b"], "d": []})))
    assert Evaluator(problem).run([[(0, 2), (3,)], [(1,)]]).total_s == float("inf")


def test_starts_come_with_the_best_first() -> None:
    case = layered(15, 3, seed=2)
    problem = Problem(*case)
    seconds = [simulated_s(problem, start) for start in search_starts(problem)]
    assert all(a <= b for a, b in pairwise(seconds)) and seconds[0] < seconds[-1]


def test_anneal_needs_a_step() -> None:
    with pytest.raises(UsageError, match="steps is 0, but planner anneal needs at least 1"):
        PLANNERS["anneal"](*layered(4, 2), steps=0)
