"""Seconds on other numbers of cores: Amdahl's law, against measured networks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coexec.costs.threads import SERIAL_S, on_cores
from tests.helpers.many_cores import ORT_MS, TASKS

seconds = st.floats(1e-6, 1.0)


@given(seconds, seconds, st.integers(1, 64))
def test_a_task_of_two_known_sizes_is_a_serial_and_a_parallel_part(
    serial_s: float, parallel_s: float, cores: int
) -> None:
    known_s = {2: serial_s + parallel_s / 2, 8: serial_s + parallel_s / 8}
    assert on_cores(known_s, cores) == pytest.approx(serial_s + parallel_s / cores, rel=1e-6)


@given(st.dictionaries(st.sampled_from([1, 2, 4, 8, 16]), seconds, min_size=1), st.integers(1, 64))
def test_seconds_are_those_that_are_known_and_change_at_most_with_the_number_of_cores(
    known_s: dict[int, float], cores: int
) -> None:
    found_s, most, least = on_cores(known_s, cores), max(known_s), min(known_s)
    if cores in known_s:
        assert found_s == known_s[cores]
    elif cores > most:
        assert found_s >= known_s[most] * most / cores * (1 - 1e-9)
    elif cores < least:
        assert known_s[least] * (1 - 1e-9) <= found_s
        assert found_s <= known_s[least] * least / cores * (1 + 1e-9)
    else:
        assert min(known_s.values()) * (1 - 1e-9) <= found_s
        assert found_s <= max(known_s.values()) * (1 + 1e-9)


@given(seconds)
def test_one_size_is_enough_and_the_way_back_gives_the_same(one_s: float) -> None:
    eight_s = on_cores({1: one_s}, 8)
    assert one_s / 8 <= eight_s <= one_s
    assert eight_s == pytest.approx(min(one_s, one_s / 8 + SERIAL_S))
    if eight_s < one_s:
        assert on_cores({8: eight_s}, 1) == pytest.approx(one_s, rel=1e-6)


@pytest.mark.parametrize("model", ORT_MS)
def test_sixteen_threads_from_four_and_eight(model: str) -> None:
    """ONNX Runtime on a Xeon. Seconds that rise again with more threads are the exception."""
    two_s, four_s, eight_s, sixteen_s = (ms / 1e3 for ms in ORT_MS[model])
    assert on_cores({4: four_s, 8: eight_s}, 16) == pytest.approx(sixteen_s, rel=0.2)
    assert on_cores({4: four_s, 8: eight_s}, 2) == pytest.approx(two_s, rel=0.2)


@pytest.mark.parametrize("model", TASKS)
def test_sixteen_threads_from_eight_alone(model: str) -> None:
    """With the serial part of a usual task, in place of a second profile."""
    *_, eight_s, sixteen_s = (ms / 1e3 / TASKS[model] for ms in ORT_MS[model])
    assert on_cores({8: eight_s}, 16) == pytest.approx(sixteen_s, rel=0.35)
