"""Seconds of a size that was not measured, from those that were."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coexec.costs.base import Sample
from coexec.costs.estimated import Work
from coexec.costs.scaled import scaled_by_work

KIB = st.integers(1, 5000)


def moved(kib: int) -> Work:
    return Work(moved_bytes=kib * 1024)


def samples(rows: dict[int, float]) -> list[Sample]:
    return [Sample(moved(kib), seconds) for kib, seconds in rows.items()]


def seconds(kib: int, rows: dict[int, float], launch_s: float = 0.0) -> float:
    said = scaled_by_work(moved(kib), samples(rows), launch_s)
    assert said is not None
    return said.seconds


def uncertainty(kib: int, rows: dict[int, float], launch_s: float = 0.0) -> float:
    said = scaled_by_work(moved(kib), samples(rows), launch_s)
    assert said is not None
    return said.uncertainty


measured = st.dictionaries(KIB, st.floats(1e-6, 1.0), min_size=1, max_size=5)
rising = measured.map(lambda rows: dict(zip(sorted(rows), sorted(rows.values()), strict=True)))


@given(rows=measured, launch_s=st.floats(0.0, 1e-3), pair=st.tuples(KIB, KIB))
def test_more_work_never_takes_less(
    rows: dict[int, float], launch_s: float, pair: tuple[int, int]
) -> None:
    found = [scaled_by_work(moved(kib), samples(rows), launch_s) for kib in sorted(pair)]
    if found[0] is not None and found[1] is not None:
        assert found[0].seconds <= found[1].seconds * (1 + 1e-9)


@given(rows=rising, launch_s=st.floats(0.0, 1e-3))
def test_what_was_measured_is_returned(rows: dict[int, float], launch_s: float) -> None:
    for kib, measured_s in rows.items():
        assert seconds(kib, rows, launch_s) == pytest.approx(measured_s)


@given(rows=measured, launch_s=st.floats(0.0, 1e-3), kib=KIB)
def test_a_prediction_is_positive_and_never_certain(
    rows: dict[int, float], launch_s: float, kib: int
) -> None:
    said = scaled_by_work(moved(kib), samples(rows), launch_s)
    near = any(kib / 8 <= known <= kib * 8 for known in rows)
    assert said is not None or not near
    if said is not None:
        assert 0.0 < said.seconds < math.inf and 0.0 < said.uncertainty < math.inf


@given(
    sizes=st.sets(KIB, min_size=2, max_size=5).filter(lambda s: max(s) >= 1.5 * min(s)),
    launch_s=st.floats(0.0, 1e-3),
    rate=st.floats(1e-9, 1e-6),
    kib=KIB,
)
def test_straight_lines_are_continued(
    sizes: set[int], launch_s: float, rate: float, kib: int
) -> None:
    """Whatever the place's own launch is said to be."""
    rows = {size: launch_s + rate * size for size in sizes}
    said = scaled_by_work(moved(kib), samples(rows), launch_s=5.0)
    if said is not None:
        assert said.seconds == pytest.approx(launch_s + rate * kib, rel=1e-4)


def test_one_size_is_scaled_above_the_launch() -> None:
    assert seconds(400, {100: 12e-6}, launch_s=2e-6) == pytest.approx(42e-6)
    assert seconds(400, {100: 2e-6}, launch_s=5e-6) == pytest.approx(2e-6)


def test_computing_counts_where_it_takes_longer_than_moving() -> None:
    sample = Sample(Work(macs=10**9, moved_bytes=10**6), 0.1)
    twice = scaled_by_work(Work(macs=2 * 10**9, moved_bytes=10**6), [sample], 0.0)
    assert twice is not None and twice.seconds == pytest.approx(0.2)


def test_uncertainty_grows_with_the_distance_and_falls_with_agreement() -> None:
    one = {100: 1e-3}
    assert uncertainty(100, one) < uncertainty(200, one) < uncertainty(400, one)
    assert uncertainty(50, one) == pytest.approx(uncertainty(200, one))
    line, jump = {100: 1e-3, 200: 2e-3, 400: 4e-3}, {100: 1e-3, 200: 2e-3, 400: 12e-3}
    assert uncertainty(200, line) < uncertainty(150, one)
    assert uncertainty(200, jump) > 2 * uncertainty(200, line)


def test_times_that_fall_with_more_work_are_averaged() -> None:
    assert seconds(150, {100: 3e-3, 200: 1e-3}) == pytest.approx(2e-3)


def test_sizes_that_are_nearly_equal_tell_no_slope() -> None:
    """They differ by noise: a steep line, or a flat one, would be wrong far off."""
    assert seconds(400, {100: 1.1e-3, 101: 1.0e-3}) == pytest.approx(4.2e-3, rel=0.02)


def test_nothing_is_said_of_what_is_far_off_or_has_no_work() -> None:
    assert scaled_by_work(moved(900), samples({100: 1e-3}), 0.0) is None
    assert scaled_by_work(moved(12), samples({100: 1e-3}), 0.0) is None
    assert scaled_by_work(moved(100), [], 0.0) is None
    assert scaled_by_work(moved(0), samples({100: 1e-3}), 0.0) is None
    assert scaled_by_work(moved(1), [Sample(moved(0), 1e-3), Sample(moved(1), 0.0)], 0.0) is None
