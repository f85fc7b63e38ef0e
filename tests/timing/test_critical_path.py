"""The critical path of simulated plans."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coexec.plan.derive import derive
from coexec.timing.critical_path import critical_path
from coexec.timing.simulate import simulate
from coexec.timing.trace import Trace
from tests.helpers.graphs import Case, cases, quickly


@given(cases(), st.sampled_from(["heft", "hope_greedy", "single"]))
def test_it_ends_with_the_trace_and_runs_backwards_without_overlap(
    case: Case, planner: str
) -> None:
    plan = quickly(planner, case)
    trace = simulate(derive(plan, case.graph), case.cost, case.system)
    path = critical_path(trace)
    assert path[-1].end_s == trace.makespan_s
    for before, after in pairwise(path):
        assert before.end_s <= after.start_s + 1e-9 * trace.makespan_s  # rounding of sums


@given(cases())
def test_on_one_device_it_is_every_span(case: Case) -> None:
    plan = quickly("single", case)
    trace = simulate(derive(plan, case.graph), case.cost, case.system)
    busy = trace.of("compute", "transfer")
    if len({span.device for span in busy}) == 1:
        assert list(critical_path(trace)) == busy


def test_of_nothing_it_is_empty() -> None:
    assert critical_path(Trace((), ())) == ()
