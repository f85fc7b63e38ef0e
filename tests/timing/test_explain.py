"""Why tasks are where they are: by hand, and what holds for every plan."""

import math

import pytest
from hypothesis import given, settings

from coexec.graph.graph import Graph
from coexec.plan.derive import derive
from coexec.planners import PLANNERS
from coexec.timing.explain import Reason, explain
from coexec.timing.simulate import simulate
from tests.helpers.examples import scaled
from tests.helpers.graphs import Busy, cases, make_graph, make_plan, make_system, table

INF = math.inf


def reasons(
    graph: Graph,
    seconds: dict[str, tuple[float, ...]],
    *,
    latency_s: float = 1,
    pinned: str = "",
    busy: Busy = "target",
    **order: str,
) -> dict[str, Reason]:
    """Devices are the keys of ``seconds``, links move 2 items a second."""
    system = make_system("".join(seconds), latency_s=latency_s, items_per_s=2, busy=busy)
    cost, plan = table(graph, seconds), make_plan(graph, **order)
    return {r.task: r for r in explain(plan, derive(plan, graph), cost, system, pinned)}


CHAIN = make_graph({"a": [], "b": ["a"], "c": ["b"]}, {"a": 4, "b": 8})


def test_faster_here() -> None:
    found = reasons(CHAIN, {"A": (2, 2, 2), "B": (9, 9, 9)}, A="abc", B="")["c"]
    assert found.group == "computing" and found.elsewhere is not None
    # 8 items at 2 a second and a second of latency, then 7 seconds more.
    assert (found.elsewhere.inputs_s, found.elsewhere.computing_s) == (5, 9)
    assert found.elsewhere.end_s - found.here.end_s == 12
    assert found.why == "B: 12.0 s later (computing +7.00 s, inputs +5.00 s)"


def test_its_inputs_are_here() -> None:
    found = reasons(CHAIN, {"A": (2, 2, 2), "B": (2, 2, 2)}, A="abc", B="")
    assert found["c"].group == "inputs" and found["c"].why == "B: 5.00 s later (inputs +5.00 s)"
    # What b reads and what reads it both lie on A: 3 and 5 seconds.
    assert found["b"].group == "result"
    assert found["b"].why == "B: 8.00 s later (result +5.00 s, inputs +3.00 s)"
    assert found["a"].why == "B: 3.00 s later (result +3.00 s)"


def test_the_other_is_busy_until_a_gap_is_long_enough() -> None:
    graph = make_graph({"a": [], "b": [], "c": [], "d": ["b"], "e": ["c"]})
    # B computes b from 0 to 4 and e from 10 to 12: d does not fit in between.
    seconds = {"A": (1, 9, 9, 7, 9), "B": (1, 4, 9, 7, 2), "C": (9, 99, 8, 99, 99)}
    found = reasons(graph, seconds, A="ad", B="be", C="c")["d"]
    assert (found.here.made_s, found.here.inputs_s, found.here.computing_s) == (4, 1.5, 7)
    assert found.elsewhere is not None and found.elsewhere.device == "B"
    assert found.elsewhere.inputs_s == 0  # b is there
    assert found.elsewhere.waiting_s == 12 - 4 - 0.0 - 0.5 or found.group == "waiting"
    assert found.group == "waiting"
    short = reasons(graph, seconds | {"B": (1, 4, 9, 2, 2)}, A="ad", B="be", C="c")["d"]
    assert short.elsewhere is not None and short.elsewhere.waiting_s == 0
    assert short.group == "later" and "sooner" in short.why


def test_there_may_be_no_choice() -> None:
    one = reasons(CHAIN, {"A": (2, 2, 2)}, A="abc")
    assert {(r.group, r.why, r.elsewhere) for r in one.values()} == {
        ("only", "the plan's only device", None)
    }
    alone = reasons(CHAIN, {"A": (2, 2, 2), "B": (INF, 2, 2)}, A="abc", B="")
    assert alone["a"].group == "alone" and alone["b"].group != "alone"
    assert (
        reasons(CHAIN, {"A": (2, 2, 2), "B": (2, 2, 2)}, A="abc", B="", pinned="b")["b"].group
        == "pinned"
    )


def test_no_difference() -> None:
    graph = make_graph({"a": []})
    assert reasons(graph, {"A": (2,), "B": (2,)}, A="a", B="")["a"].group == "even"


@pytest.mark.parametrize("planner", ["heft", "single"])
@settings(max_examples=scaled(15), deadline=None, derandomize=True)
@given(case=cases())
def test_figures_are_those_of_the_simulated_plan(planner: str, case: tuple) -> None:  # type: ignore[type-arg]
    graph, cost, system = case
    plan = PLANNERS[planner](graph, cost, system)
    schedule = derive(plan, graph)
    found = explain(plan, schedule, cost, system)
    assert sorted(r.task for r in found) == sorted(t.name for t in graph.tasks)
    spans = {t: s for s in simulate(schedule, cost, system).of("compute") for t in s.tasks}
    for reason in found:
        for told in filter(None, (reason.here, reason.elsewhere)):
            parts = (told.made_s, told.inputs_s, told.waiting_s, told.computing_s, told.result_s)
            assert all(math.isfinite(part) and part >= -1e-9 for part in parts), reason
        span, ends_s = spans[reason.task], reason.here.end_s - reason.here.result_s
        assert (
            span.start_s - 1e-9 <= ends_s - reason.here.computing_s or reason.here.waiting_s < 1e-9
        )
        if len(span.tasks) == 1:
            assert ends_s == pytest.approx(span.end_s)
        if reason.group in ("computing", "inputs", "waiting", "result"):
            assert reason.elsewhere is not None and reason.elsewhere.end_s > reason.here.end_s
