"""Re-estimation: costs that follow observations."""

import pytest

from coexec.costs.observed import Observation, Observed
from tests.helpers.graphs import at, make_graph, table

GRAPH = make_graph({"a": [], "b": ["a"], "c": ["a"]})
TABLE = table(GRAPH, {"A": [1.0, 2.0, 3.0], "B": [2.0, 4.0, 6.0]})


def seconds(cost: Observed, task: str, device: str) -> float:
    whole = GRAPH.output_of(GRAPH.task[task]).whole
    return cost.piece_s(GRAPH, GRAPH.task[task], whole, at(device))


def test_costs_approach_what_is_measured() -> None:
    cost = Observed(TABLE)
    slow = [Observation(at("A"), ("a", "b"), predicted_s=3.0, measured_s=6.0)]
    before = seconds(cost, "a", "A")
    for _ in range(60):
        cost = cost.after(slow)
        assert before < seconds(cost, "a", "A") < 2.0
        before = seconds(cost, "a", "A")
    assert before == pytest.approx(2.0, rel=0.01)
    assert seconds(cost, "c", "A") == pytest.approx(6.0, rel=0.01)  # as the others of its device
    assert seconds(cost, "a", "B") == 2.0  # nothing was seen of this device
    assert cost.drift(Observed(TABLE)) == pytest.approx(1.0, rel=0.02)
    assert cost.drift(cost) == 0.0


def test_one_disturbance_is_smoothed() -> None:
    cost = Observed(TABLE).after([Observation(at("A"), ("a",), 1.0, 3.0)])
    assert seconds(cost, "a", "A") == pytest.approx(1.2)
    for _ in range(40):
        cost = cost.after([Observation(at("A"), ("a",), 1.0, 1.0)])
    assert seconds(cost, "a", "A") == pytest.approx(1.0, rel=0.01)


def test_meaningless_observations_change_nothing() -> None:
    cost = Observed(TABLE).after([Observation(at("A"), ("a",), 0.0, 1.0)])
    assert seconds(cost, "a", "A") == 1.0
