"""Pins: every planner keeps pinned tasks where the user has put them."""

import pytest

from coexec.costs.pinned import Pinned, resolve
from coexec.errors import InfeasibleError, UsageError
from coexec.plan.plan import verify_plan
from coexec.planners import PLANNERS
from tests.helpers.graphs import at, layered

CASE = layered(tasks=7, width=3, devices="AB")
COMBINING = sorted(name for name in PLANNERS if name != "single")


@pytest.mark.parametrize("planner", COMBINING)
@pytest.mark.parametrize("device", ["A", "B"])
def test_every_planner_honours_pins(planner: str, device: str) -> None:
    graph, cost, system = CASE.graph, CASE.cost, CASE.system
    names = [graph.tasks[i].name for i in (1, 4)]
    pinned = resolve(dict.fromkeys(names, device), graph, cost, system)
    plan = PLANNERS[planner](graph, Pinned(cost, pinned), system)
    verify_plan(plan, graph, system)
    where = {piece.task: name for piece, name in plan.device_of.items()}
    assert [where[name] for name in names] == [device, device]


def test_patterns_and_their_order() -> None:
    graph, cost, system = CASE.graph, CASE.cost, CASE.system
    last = graph.tasks[-1].name
    found = resolve({"*": "A", last: "B"}, graph, cost, system)
    assert found == {t.name: {at("B" if t.name == last else "A")} for t in graph.tasks}


def test_a_pin_may_name_an_engine() -> None:
    graph, cost, system = CASE.graph, CASE.cost, CASE.system
    assert resolve({"*": "A/null"}, graph, cost, system) == resolve({"*": "A"}, graph, cost, system)
    with pytest.raises(UsageError, match="no device 'A/opencl' in this plan"):
        resolve({"*": "A/opencl"}, graph, cost, system)


def test_pins_that_cannot_hold() -> None:
    graph, cost, system = CASE.graph, CASE.cost, CASE.system
    with pytest.raises(UsageError, match="pin nothing=A matches no task"):
        resolve({"nothing": "A"}, graph, cost, system)
    with pytest.raises(UsageError, match="no device 'C' in this plan, only A/null, B/null"):
        resolve({"*": "C"}, graph, cost, system)
    name = graph.tasks[0].name
    impossible = Pinned(cost, {name: frozenset({at("A")})})
    with pytest.raises(InfeasibleError, match=f"B does not run task '{name}'"):
        resolve({name: "B"}, graph, impossible, system)
