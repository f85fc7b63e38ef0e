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
from coexec.timing.energy import device_energy_j
from coexec.timing.simulate import simulate
from coexec.timing.trace import Span, Trace
from tests.helpers.graphs import Case, cases, make_system

WATTS = st.floats(0, 50).flatmap(
    lambda idle_w: st.floats(idle_w, 60).map(lambda busy_w: Power(busy_w, idle_w))
)


def powered(system: System, *powers: Power | None) -> System:
    devices = zip(system.devices, powers, strict=True)
    return replace(system, devices=tuple(replace(d, power=p) for d, p in devices))


def test_by_hand() -> None:
    """A computes 2 s, B waits as long, copies 1 s and computes 3: 6 s in all. C is left out."""
    spans = (
        Span("a", "A", 0, 2),
        Span("for a", "B", 0, 2, "wait"),
        Span("a: A -> B", "B", 2, 3, "transfer"),
        Span("b", "B", 3, 6),
        Span("reorder a", "B", 3, 4, "layout"),  # a part of the span before
    )
    powers = Power(10, 1), Power(5, 0.5), Power(7, 2)
    joules = {"A": 2 * 10 + 4 * 1, "B": 4 * 5 + 2 * 0.5, "C": 6 * 2}
    trace = Trace(("A", "B"), spans)
    assert device_energy_j(trace, powered(make_system("ABC"), *powers)) == joules
    assert device_energy_j(trace, powered(make_system("ABC"), *powers[:2], None)) is None
    assert device_energy_j(Trace(("A",), ()), powered(make_system("A"), powers[0])) == {"A": 0}


@pytest.mark.parametrize(
    "watts", [(1.0, 2.0), (1.0, -1.0), (-1.0, -2.0), (math.inf, 1.0), (math.nan, 1.0)]
)
def test_impossible_watts(watts: tuple[float, float]) -> None:
    with pytest.raises(DeviceError, match="idle is at least 0 W"):
        Power(*watts)


@given(cases(), st.data())
def test_at_least_idle_and_at_most_busy(case: Case, data: st.DataObject) -> None:
    graph, cost, bare = case
    powers = [data.draw(WATTS) for _ in bare.devices]
    system = powered(bare, *powers)
    trace = simulate(derive(PLANNERS["heft"](graph, cost, system), graph), cost, system, 2)
    found = device_energy_j(trace, system)
    assert found is not None
    for device, power in zip(system.devices, powers, strict=True):
        at_least, at_most = (watts * trace.makespan_s for watts in (power.idle_w, power.busy_w))
        assert at_least <= found[device.name] * (1 + 1e-9) + 1e-9
        assert found[device.name] <= at_most * (1 + 1e-9) + 1e-9
