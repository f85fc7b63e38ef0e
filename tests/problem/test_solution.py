"""A solution: whole tasks or pieces, one answer type; planners check their options themselves."""

import pytest

from coexec.errors import PlanError, UsageError
from coexec.pipeline.planners import PIPELINES
from coexec.planners import PLANNERS, build_plan, find_planner
from coexec.problem.planner import Planner
from coexec.problem.problem import Problem
from coexec.problem.solution import Solution, best_of, simulated_s
from tests.helpers.graphs import layered


def test_pieces_that_are_whole_tasks_are_planned_like_tasks() -> None:
    problem = Problem(*layered(12, 3))
    graph = problem.graph
    tasks = Solution([task % 2 for task in problem.tasks], problem.tasks)
    backwards = [*problem.tasks][::-1]  # the pieces are listed in another order than they run
    pieces = Solution(
        [task % 2 for task in backwards],
        backwards,
        pieces=[graph.whole_piece(graph.tasks[task]) for task in backwards],
    )
    assert pieces.undivided(problem) == tasks._replace(
        assignment=list(tasks.assignment), sequence=list(tasks.sequence)
    )
    assert simulated_s(problem, pieces) == simulated_s(problem, tasks)
    assert build_plan(problem, pieces, "p", {}) == build_plan(problem, tasks, "p", {})


def test_the_best_is_no_slower_than_one_device() -> None:
    problem = Problem(*layered(12, 3))
    slow = Solution([task % 2 for task in problem.tasks], problem.tasks)
    alone = Solution([0] * len(problem.tasks), problem.tasks)
    best_s = simulated_s(problem, best_of(problem, [slow]))
    assert best_s <= min(simulated_s(problem, each) for each in (slow, alone))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 2}, r"planner hope_greedy has no option 'top' \(did you mean 'top_k'\?\); it has"),
        ({"top_k": "two"}, "option top_k of planner hope_greedy is 'two'; it wants int"),
        ({"top_k": True}, "option top_k of planner hope_greedy is True; it wants int"),
    ],
)
def test_a_call_refuses_options_that_do_not_exist(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        PLANNERS["hope_greedy"](*layered(4, 2), **options)
    find_planner("hope_greedy").check({"top_k": None})  # the default


def test_options_of_types_that_are_not_known_are_left_to_the_planner() -> None:
    def solve(problem: Problem, *, weights: tuple[float, ...] = (), plain=0) -> Solution:  # type: ignore[no-untyped-def]
        return Solution([0] * len(problem.tasks), problem.tasks)

    planner = Planner("mine", solve, PLANNERS["single"].kind)
    plan = planner(*layered(4, 2), weights=(0.5,), plain="text")
    assert plan.provenance.options["weights"] == (0.5,)


def test_planners_of_both_kinds_have_one_type() -> None:
    for planners in (PLANNERS, PIPELINES):
        assert all(type(planner) is Planner for planner in planners.values())
    wrong = Planner("wrong", lambda problem: None, PIPELINES["pico"].kind)
    with pytest.raises(PlanError, match="'wrong' returns a NoneType, which is no PipelineSolution"):
        wrong.plan(None)
