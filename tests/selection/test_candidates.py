"""The order in which configurations are tried, and what is left out with which reason."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from coexec.rules import RULES, Rules
from coexec.selection.candidates import Candidates, Deadline, PlannerTimes
from coexec.selection.configurations import Configuration

WIDE = ("cpu:0-15",)


def clusters(count: int) -> Configuration:
    return tuple(f"cpu:{number}" for number in range(count))


def tried(
    expected_s: dict[Configuration, float] | None,
    optional: Sequence[Configuration],
    rules: Rules = RULES,
    certain: Sequence[Configuration] = (WIDE,),
    after: dict[Configuration, float] | None = None,
) -> tuple[list[Configuration | str], dict[Configuration, str]]:
    """The configurations in the order in which they are tried, with "prepare" where expectations
    are prepared; and the reasons of the others.

    Args:
        after: expectations after the first configuration was tried.
    """
    steps: list[Configuration | str] = []

    class Tried(Candidates):
        def _plan_configuration(self, names: Configuration, expected_s: float | None) -> None:
            steps.append(names)
            if after is not None and expected_now is not None:
                expected_now.update(after)

    expected_now = None if expected_s is None else dict(expected_s)
    made = Tried(
        lambda names: None,  # type: ignore[arg-type,return-value]
        lambda name: None,  # type: ignore[arg-type,return-value]
        "latency",
        rules,
        Deadline(),
        lambda *_: None,
        None if expected_now is None else expected_now.get,
    )
    made.make(certain, optional, lambda: steps.append("prepare"))
    return steps, {row.devices: row.reason for row in made.rows}


def test_without_expectations_all_are_tried_in_order() -> None:
    names = [clusters(count) for count in range(2, 20)]
    assert tried(None, names) == ([WIDE, *names], {})


def test_the_best_expectations_come_first_and_a_handful_is_profiled() -> None:
    expected_s = {WIDE: 9.0} | {clusters(count): 10.0 - count for count in (2, 3, 4)}
    steps, left_out = tried(expected_s, list(expected_s)[1:], replace(RULES, most_profiled=2))
    assert steps == [WIDE, "prepare", clusters(4), clusters(3)]
    assert left_out == {clusters(2): "others come first, and at most 2 are profiled"}


def test_what_is_far_from_the_best_expectation_is_left_out() -> None:
    expected_s = {WIDE: 1.0, clusters(4): 2.5, clusters(2): 1.9}
    steps, left_out = tried(expected_s, list(expected_s)[1:])
    assert steps == [WIDE, "prepare", clusters(2)]
    reason = "that is 2.50 times the best expectation; above 2 a configuration is not tried"
    assert left_out == {clusters(4): reason}


def test_a_profile_changes_the_order() -> None:
    expected_s = {clusters(2): 3.0, clusters(3): 3.5, clusters(4): 4.0}
    after = {clusters(3): 9.0, clusters(4): 2.0}  # the cores scale worse than estimated
    steps, _ = tried(expected_s, list(expected_s), certain=(), after=after)
    assert steps == ["prepare", clusters(2), clusters(4)]


def test_many_devices_wait_until_planners_are_timed() -> None:
    expected_s = {clusters(count): 1.0 / count for count in (2, 4, 8, 16)}
    rules = replace(RULES, worth_profiling=100.0)
    steps, _ = tried(expected_s, list(expected_s), rules, ())
    assert steps[1:] == [clusters(count) for count in (4, 8, 16, 2)]
    assert tried(expected_s, [clusters(16)], rules, ())[0][1:] == [clusters(16)]


def test_what_nothing_is_known_of_is_tried() -> None:
    with_gpu = (*WIDE, "gpu:0")
    steps, _ = tried({WIDE: 1.0, clusters(2): 1.5}, [clusters(2), with_gpu])
    assert steps == [WIDE, "prepare", with_gpu, clusters(2)]


def test_planners_are_expected_to_take_longer_for_more_devices() -> None:
    now_s = 0.0

    def planned(seconds: float) -> str:
        nonlocal now_s
        now_s += seconds
        return "plan"

    times = PlannerTimes(lambda: now_s)
    assert times.expected_s("codl", 8) == float("inf")
    assert times.timed("codl", 2, lambda: planned(0.5)) == "plan"
    assert times.expected_s("codl", 8) == pytest.approx(0.5 * 4**2)
    times.timed("codl", 4, lambda: planned(2.0))  # twice the devices, four times as long
    assert times.expected_s("codl", 8) == pytest.approx(8.0)
    assert times.expected_s("codl", 16) == pytest.approx(32.0)
    assert times.expected_s("codl", 3) == pytest.approx(2.0)
    assert times.expected_s("heft", 8) == float("inf")
