"""How much other programs use the processors, from counters that tick."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coexec.profiling.processors import Load, ProcessorTime, processor_time, with_load
from coexec.rules import BUSY


def test_what_this_program_uses_is_not_what_others_use() -> None:
    busy = iter([ProcessorTime(5.0), ProcessorTime(9.0, 0.5)])
    own, now = iter([1.0, 2.0]), iter([0.0, 4.0])
    value, load = with_load(
        lambda: "answer", lambda: next(now), lambda: next(own), lambda: next(busy)
    )
    assert value == "answer"
    assert load.others_s == 3.0
    assert load.all_s >= 4.0
    assert load.processors == ProcessorTime(4.0, 0.5)


@pytest.mark.parametrize(
    ("rows", "busy_s", "stolen_s"),
    [
        ("cpu 900 0 0 0 0 0 0 90\ncpu0 300 0 0 0 0 0 0 0\ncpu1 200 0 100 0 0 0 0 70\n", 3.0, 0.7),
        ("cpu 900 0 0 0 0 0 0 90\nintr 1 2 3\n", 9.0, 0.9),
    ],
    ids=["of one processor of two", "of all, where a container hides the others"],
)
def test_only_processors_that_this_program_may_use_count(
    rows: str, busy_s: float, stolen_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coexec.profiling.processors.allowed_threads", lambda: (1,))
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(rows)
    assert processor_time(tmp_path) == pytest.approx(ProcessorTime(busy_s, stolen_s))


def test_a_tick_in_a_short_time_is_no_load_and_a_busy_core_in_a_long_one_is() -> None:
    assert Load(others_s=0.01, all_s=0.02).least_share == 0.0
    assert Load(others_s=3.0, all_s=6.0).least_share > BUSY


@given(st.floats(0.0, 1.0), st.floats(0.001, 100.0))
def test_what_is_certain_is_no_more_than_what_was_counted(share: float, all_s: float) -> None:
    load = Load(share * all_s, all_s)
    assert 0.0 <= load.least_share <= load.share
