"""When a race has decided nothing."""

import pytest

from coexec.selection.decision import Candidate
from coexec.selection.race_confidence import doubt, spread

PLAN = Candidate(("cpu:0", "cpu:1"), "heft", 0.010, paced_s=0.010)
SINGLE = Candidate(("cpu:0-1",), "single", None, paced_s=0.012)


@pytest.mark.parametrize(
    ("won_s", "lost_s", "reason"),
    [
        ([0.010] * 8, [0.012] * 8, None),
        ([0.010] * 8, [0.0102] * 8, r"cpu:0-1 \(single\) is only 2.0% slower than the taken plan"),
        ([0.010] * 8, [0.0095] * 8, r"is 5.0% faster than the taken plan, which is not a clear"),
        ([0.008, 0.014] * 4, [0.03] * 8, "vary by"),
        ([0.010] * 3, [], None),  # too few rounds to tell a spread, nobody else ran
    ],
)
def test_reasons(won_s: list[float], lost_s: list[float], reason: str | None) -> None:
    import re

    found = doubt(PLAN, won_s, [(SINGLE, lost_s)] if lost_s else [], None)
    assert found is None if reason is None else re.search(reason, found or "")


def test_a_measurement_far_from_its_prediction() -> None:
    slow = Candidate(PLAN.devices, "heft", 0.010, paced_s=0.020)
    assert "2.00 times the predicted" in (
        doubt(slow, [0.02] * 8, [(SINGLE, [0.03] * 8)], None) or ""
    )


def test_a_race_while_the_host_ran_something_else() -> None:
    rounds = [0.010] * 8, [(SINGLE, [0.012] * 8)]
    assert doubt(PLAN, *rounds, None, stolen=0.01) is None
    assert "took 15% of the processor time" in (doubt(PLAN, *rounds, None, stolen=0.15) or "")


def test_the_same_winner_twice_is_no_chance() -> None:
    assert doubt(PLAN, [0.010] * 8, [(SINGLE, [0.0101] * 8)], PLAN) is None
    assert "disagree" in (doubt(PLAN, [0.01] * 8, [(SINGLE, [0.1] * 8)], SINGLE) or "")


def test_spread_is_that_of_the_middle_half() -> None:
    assert spread([1.0, 1.0, 1.0]) is None
    assert spread([1.0] * 9 + [50.0]) == 0.0
    assert spread([0.9, 1.1] * 10) == pytest.approx(0.2)


def test_a_race_beside_other_programs() -> None:
    rounds = [0.010] * 8, [(SINGLE, [0.012] * 8)]
    assert doubt(PLAN, *rounds, None, others_share=0.05) is None
    said = doubt(PLAN, *rounds, PLAN, others_share=0.43)
    assert said == "other programs used 43% of the processor time meanwhile"


def test_few_rounds_are_a_doubt() -> None:
    found = doubt(PLAN, [0.01] * 2, [(SINGLE, [0.1] * 2)], None)
    assert found == "there was time for 2 of 5 rounds of the race"
    assert doubt(PLAN, [0.01] * 5, [(SINGLE, [0.1] * 5)], None) is None
    assert doubt(PLAN, [], [], None) is None  # a single plan needs no race
