"""Device programs on the virtual clock: the simulator's trace, to the last digit."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coexec.errors import PlanError
from coexec.plan.derive import derive
from coexec.plan.program import DeviceProgram, device_programs
from coexec.timing.simulate import simulate
from tests.helpers.examples import scaled
from tests.helpers.graphs import layered, make_graph, make_plan, make_system, quickly, table
from tests.helpers.simulated_programs import simulate_programs
from tests.helpers.timed_schedules import TimedSchedule, timed_schedules


@given(timed=timed_schedules(), requests=st.integers(1, 3))
@settings(max_examples=scaled(60), deadline=None, derandomize=True)
def test_programs_have_the_trace_of_their_schedule(timed: TimedSchedule, requests: int) -> None:
    programs = device_programs(timed.schedule.segments, timed.schedule.transfers)
    assert simulate_programs(programs, *timed, requests) == simulate(*timed, requests)
    assert simulate_programs(programs[::-1], *timed, requests) == simulate(*timed, requests)


@pytest.mark.parametrize("planner", ["heft", "hope_greedy"])
def test_programs_of_a_larger_plan_have_its_trace(planner: str) -> None:
    case = layered(90, width=6, devices="ABC", seed=5)
    schedule = derive(quickly(planner, case), case.graph)
    programs = device_programs(schedule.segments, schedule.transfers)
    trace = simulate_programs(programs, schedule, case.cost, case.system, 2)
    assert trace == simulate(schedule, case.cost, case.system, 2)
    assert len(trace.of("wait")) > 10 and trace.of("transfer")


def test_programs_that_stop_are_refused() -> None:
    graph = make_graph({"a": [], "b": ["a"]})
    schedule = derive(make_plan(graph, A="a", B="b"), graph)
    first, second = device_programs(schedule.segments, schedule.transfers)
    silent = DeviceProgram(first.device, first.steps[:1])
    cost = table(graph, {"A": (1, 1), "B": (1, 1)})
    message = "deadlock: B waits before segment 1 .b. for the event of segment 0, which no device"
    with pytest.raises(PlanError, match=message):
        simulate_programs((silent, second), schedule, cost, make_system("AB"))
