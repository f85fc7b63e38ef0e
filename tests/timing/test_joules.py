"""Joules of traces: by hand, and what holds for all of them."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coexec.errors import DeviceError
from coexec.hardware.hardware import Power, System
from coexec.plan.derive import derive
from coexec.planners import PLANNERS
from coexec.timing.energy import device_energy_j, energy_j
from coexec.timing.simulate import simulate
from coexec.timing.trace import Span, Trace
from tests.helpers.graphs import Case, cases, make_graph, make_plan, make_system, table

WATTS = st.floats(0, 50).flatmap(
    lambda idle_w: st.floats(idle_w, 60).map(lambda busy_w: Power(busy_w, idle_w))
)


def powered(system: System, *powers: Power | None) -> System:
    devices = zip(system.devices, powers, strict=True)
    return replace(system, devices=tuple(replace(d, power=p) for d, p in devices))


def test_by_hand() -> None:
    """A computes 2 s, B waits as long, copies 1 s and computes 3: 6 s in all."""
    spans = (
        Span("a", "A", 0, 2),
        Span("for a", "B", 0, 2, "wait"),
        Span("a: A -> B", "B", 2, 3, "transfer"),
        Span("b", "B", 3, 6),
        Span("reorder a", "B", 3, 4, "layout"),  # a part of the span before
    )
    system = powered(make_system("AB"), Power(10, 1), Power(5, 0.5))
    trace = Trace(("A", "B"), spans)
    assert device_energy_j(trace, system) == {"A": 2 * 10 + 4 * 1, "B": 4 * 5 + 2 * 0.5}
    assert energy_j(trace, system) == 45


def test_a_device_that_the_plan_leaves_out_idles() -> None:
    system = powered(make_system("AB"), Power(10, 1), Power(5, 0.5))
    trace = Trace(("A",), (Span("a", "A", 0, 2),))
    assert device_energy_j(trace, system) == {"A": 20, "B": 1}


def test_nothing_is_told_where_one_device_does_not_tell() -> None:
    system = powered(make_system("AB"), Power(10, 1), None)
    trace = Trace(("A",), (Span("a", "A", 0, 2),))
    assert device_energy_j(trace, system) is None and energy_j(trace, system) is None


def test_an_empty_trace_takes_none() -> None:
    assert energy_j(Trace(("A",), ()), powered(make_system("A"), Power(10, 1))) == 0


@pytest.mark.parametrize(
    "watts", [(1.0, 2.0), (1.0, -1.0), (-1.0, -2.0), (math.inf, 1.0), (math.nan, 1.0)]
)
def test_impossible_watts(watts: tuple[float, float]) -> None:
    with pytest.raises(DeviceError, match="idle is at least 0 W"):
        Power(*watts)


@given(cases(), st.data())
def test_at_least_idle_and_at_most_busy_and_a_sum_over_devices(
    case: Case, data: st.DataObject
) -> None:
    graph, cost, bare = case
    powers = [data.draw(WATTS) for _ in bare.devices]
    system = powered(bare, *powers)
    trace = simulate(derive(PLANNERS["heft"](graph, cost, system), graph), cost, system, 2)
    found, total = device_energy_j(trace, system), energy_j(trace, system)
    assert found is not None and total is not None
    assert total == pytest.approx(math.fsum(found.values()))
    for device, power in zip(system.devices, powers, strict=True):
        at_least, at_most = (watts * trace.makespan_s for watts in (power.idle_w, power.busy_w))
        assert at_least <= found[device.name] * (1 + 1e-9) + 1e-9
        assert found[device.name] <= at_most * (1 + 1e-9) + 1e-9
    # What each device draws does not depend on what the others draw.
    for index, device in enumerate(system.devices):
        others = [p if i == index else Power(0, 0) for i, p in enumerate(powers)]
        alone = energy_j(trace, powered(bare, *others))
        assert alone == pytest.approx(found[device.name])


def test_slower_plans_idle_longer() -> None:
    """The same work, and 2 s of waiting for each device: 2 s of idle watts more."""
    graph = make_graph({"a": [], "b": ["a"]})
    cost = table(graph, {"A": (2, math.inf), "B": (math.inf, 3)})
    plan = derive(make_plan(graph, A="a", B="b"), graph)
    joules = []
    for latency_s in (0, 2):
        system = powered(make_system("AB", latency_s=latency_s), Power(10, 1), Power(5, 0.5))
        joules.append(energy_j(simulate(plan, cost, system), system))
    assert None not in joules
    assert joules[1] - joules[0] == 2 * (1 + 0.5)  # type: ignore[operator]
