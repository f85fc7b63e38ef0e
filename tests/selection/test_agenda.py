"""The order of configurations, and what is left out with which reason."""

from dataclasses import replace

import pytest

from coexec.rules import RULES
from coexec.selection.agenda import Agenda, AgendaItem
from coexec.selection.configurations import Configuration
from coexec.selection.planner_times import PlannerTimes

WIDE = ("cpu:0-15",)


def clusters(count: int) -> Configuration:
    return tuple(f"cpu:{number}" for number in range(count))


def all_of(agenda: Agenda) -> list[Configuration]:
    entries: list[Configuration] = []
    while (entry := agenda.next()) is not None:
        entries.append(entry.names)
    return entries


def test_without_expectations_all_are_tried_in_order() -> None:
    names = [clusters(count) for count in range(2, 20)]
    agenda = Agenda([WIDE], names, None, RULES)
    assert agenda.next() == AgendaItem(WIDE, None) and all_of(agenda) == names
    assert agenda.left_out() == [] and agenda.count == 19


def test_the_best_expectations_come_first_and_a_handful_is_profiled() -> None:
    expected_s = {WIDE: 9.0} | {clusters(count): 10.0 - count for count in (2, 3, 4)}
    rules = replace(RULES, most_profiled=2)
    agenda = Agenda([WIDE], [clusters(2), clusters(3), clusters(4)], expected_s.get, rules)
    assert all_of(agenda) == [WIDE, clusters(4), clusters(3)]
    ((entry, reason),) = agenda.left_out()
    assert entry == AgendaItem(clusters(2), 8.0)
    assert reason == "others come first, and at most 2 are profiled"


def test_what_is_far_from_the_best_expectation_is_left_out() -> None:
    expected_s = {WIDE: 1.0, clusters(2): 1.9, clusters(4): 2.5}
    agenda = Agenda([WIDE], [clusters(4), clusters(2)], expected_s.get, RULES)
    assert all_of(agenda) == [WIDE, clusters(2)]
    assert agenda.left_out() == [
        (
            AgendaItem(clusters(4), 2.5),
            "that is 2.50 times the best expectation; above 2 a configuration is not tried",
        )
    ]


def test_a_profile_changes_the_order() -> None:
    expected_s = {WIDE: 5.0, clusters(2): 3.0, clusters(3): 3.5, clusters(4): 4.0}
    agenda = Agenda([], [clusters(2), clusters(3), clusters(4)], expected_s.get, RULES)
    first = agenda.next()
    assert first is not None and first.names == clusters(2)
    expected_s |= {clusters(3): 9.0, clusters(4): 2.0}  # the cores scale worse than estimated
    assert all_of(agenda) == [clusters(4)]


def test_many_devices_wait_until_planners_are_timed() -> None:
    expected_s = {clusters(count): 1.0 / count for count in (2, 4, 8, 16)}
    rules = replace(RULES, worth_profiling=100.0)
    agenda = Agenda([], list(expected_s), expected_s.get, rules)
    assert all_of(agenda) == [clusters(count) for count in (4, 8, 16, 2)]
    alone = Agenda([], [clusters(16)], expected_s.get, rules)
    assert all_of(alone) == [clusters(16)]


def test_expectations_are_prepared_once_before_the_first_choice_by_expectation() -> None:
    steps: list[str] = []
    expected_s = {WIDE: 1.0, clusters(2): 1.5, clusters(4): 1.2}
    agenda = Agenda(
        [WIDE],
        [clusters(2), clusters(4)],
        expected_s.get,
        RULES,
        before_optional=lambda: steps.append("prepare"),
    )
    while (entry := agenda.next()) is not None:
        steps.append(f"{len(entry.names)} devices")
    assert steps == ["1 devices", "prepare", "4 devices", "2 devices"]


def test_what_nothing_is_known_of_is_tried() -> None:
    expected_s = {WIDE: 1.0, clusters(2): 1.5}
    with_gpu = (*WIDE, "gpu:0")
    agenda = Agenda([WIDE], [clusters(2), with_gpu], expected_s.get, RULES)
    assert all_of(agenda) == [WIDE, with_gpu, clusters(2)]


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
