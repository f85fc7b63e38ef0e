"""`coexec report`: the contents of the page, also after a failure."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from coexec.cli import main
from coexec.errors import ExecutionError
from coexec.report import gather, standings
from coexec.report.alternatives import without_devices
from coexec.report.bottleneck import bottleneck_of
from coexec.report.contents import Contents, DrawnSpan, DrawnTrace
from coexec.runtime.recorder import RealRecorder
from coexec.selection.prepare import prepare
from coexec.settings import Settings
from coexec.timing.trace import Trace
from tests.helpers.busy_machine import used_by_others
from tests.helpers.small_models import branches
from tests.report.conftest import two_cores
from tests.report.test_page import data_of


@pytest.fixture
def model(tmp_path: Path) -> Path:
    onnx.save(branches(), str(tmp_path / "small.onnx"))
    return tmp_path / "small.onnx"


def report(model: Path, *words: str) -> int:
    cache = ["--cache", str(model.parent / "cache"), "--output", str(model.with_suffix(".html"))]
    return main(["report", str(model), *words, *cache, "--planners-s", "1"])


def test_times_and_shares_agree_with_each_other(page: Path) -> None:
    data = data_of(page)
    for line in (data["predicted"], data["measured"]):
        ends = [block["end_s"] for block in line["blocks"] if block["kind"] == "compute"]
        assert max(ends) <= line["makespan_s"]
    assert [sum(node["places"].values()) for node in data["nodes"]] == pytest.approx(
        [1.0] * len(data["nodes"])
    )
    for row in data["tasks"]:
        assert row["elsewhere_s"][row["place"]] == row["predicted_s"]
        assert row["measured_s"] > 0
    assert data["failure"] is None
    assert {row["name"] for row in data["without"]} == set(data["predicted"]["utilisation"])
    assert set(data["colours"]) == set(data["places"])


def test_the_answer_names_the_bottleneck(page: Path) -> None:
    assert any("of the critical path" in sentence for sentence in data_of(page)["answer"])


def test_a_device_alone_has_one_prediction(page: Path) -> None:
    data = data_of(page)
    predicted_s = {row["name"]: row["predicted_s"] for row in data["rivals"]}
    first, second = (row["name"] for row in data["without"])
    without_s = [row["predicted_s"] for row in data["without"]]
    assert without_s == [predicted_s[f"{second} alone"], predicted_s[f"{first} alone"]]


def test_a_pin_to_a_device_does_not_hinder_the_plan_without_it(page: Path) -> None:
    assert all(row["predicted_s"] is not None for row in data_of(page)["without"])


def test_onnx_runtimes_own_session_is_one_row_of_ratio_one(model: Path) -> None:
    place = f"{two_cores().split(',')[0]}/onnxruntime"
    assert report(model, "--devices", place, "--repeats", "1") == 0
    (row,) = data_of(model.with_suffix(".html"))["rivals"]
    assert row["is_plan"] and row["is_base"] and row["ratio"] == 1.0


def test_a_page_that_cannot_be_written_is_refused_before_the_model_is_read(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    output = tmp_path / "file" / "page.html"
    assert main(["report", str(tmp_path / "absent.onnx"), "--output", str(output)]) == 3
    assert "is not a folder" in capfd.readouterr().err


def test_a_plan_without_a_device_has_a_time_limit(model: Path) -> None:
    pair = two_cores().split(",")
    pins = {"b0.a": pair[0], "b2.a": pair[1]}
    prepared = prepare(
        str(model),
        Settings(devices=pair, planner="heft", pins=pins, cache=str(model.parent / "cache")),
    )
    statuses = [row.status for row in without_devices(prepared, 0.0)]
    assert statuses == ["not tried: no time was left"] * 2


def test_the_bottleneck_is_what_has_most_of_the_critical_path() -> None:
    spans = (
        DrawnSpan("cpu:0", "compute", "a", 0.0, 3.0, tasks=("a",), is_critical=True),
        DrawnSpan("cpu:1", "compute", "b", 0.0, 9.0, tasks=("b",)),
        DrawnSpan("cpu:0", "transfer", "t", 3.0, 8.0, is_critical=True),
        DrawnSpan("cpu:0", "compute", "c", 8.0, 10.0, tasks=("c",), is_critical=True),
    )
    contents = Contents("m", "m", (), predicted=DrawnTrace(10.0, {}, spans))
    assert bottleneck_of(contents) == (
        "Computing on cpu:0 bounds a request: 50% of the critical path; transfers 50% (simulation)."
    )


def test_no_plan_of_whole_tasks_is_below_the_bound(page: Path) -> None:
    data = data_of(page)
    whole = ("heft", "hope_greedy", "dmdar", "mosaic")
    found = [row["predicted_s"] for row in data["planners"] if row["name"] in whole]
    assert len(found) == len(whole)
    assert data["bound_s"] is None or data["bound_s"] <= min(found) * (1 + 1e-9)  # rounding of sums


def test_a_phone_is_simulated_and_nothing_runs(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert report(model, "--platform", "kirin_990", "--planner", "heft", "--json") == 0
    facts = json.loads(capfd.readouterr().out)
    assert "simulated" in facts["answer"][1] and "failure" not in facts
    data = data_of(model.with_suffix(".html"))
    assert data["rivals"] == [] and data["measured"] is None and data["nodes"]
    assert "kirin_990" in data["facts"]["processor"]


def test_figures_from_a_busy_machine_are_in_doubt(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standings, "REAL", used_by_others(0.5))
    assert report(model, "--devices", two_cores(), "--planner", "heft", "--repeats", "1") == 0
    data = data_of(model.with_suffix(".html"))
    assert data["doubt"] == "other programs used 50% of the processors' time during the race"
    assert data["facts"]["load while racing"] == "50% of the processors' time, by other programs"


def test_the_recorded_run_of_middle_length_is_shown(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends_s = iter([0.3, 0.1, 0.2])

    class Recorder(RealRecorder):
        def trace(self) -> Trace:
            first, *_ = super().trace().of("compute")
            return Trace((first.device,), (replace(first, start_s=0.0, end_s=next(ends_s)),))

    monkeypatch.setattr(gather, "RealRecorder", Recorder)
    assert report(model, "--devices", two_cores(), "--planner", "heft", "--repeats", "1") == 0
    assert data_of(model.with_suffix(".html"))["measured"]["makespan_s"] == 0.2


def test_a_failed_run_leaves_a_page_with_what_happened_until_then(
    model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> None:
        raise ExecutionError("cpu:1 failed in segment 3")

    monkeypatch.setattr(gather, "alone_rows", fails)  # after the recorded run
    code = report(model, "--devices", two_cores(), "--planner", "heft", "--repeats", "1")
    said = capfd.readouterr().err
    assert code == 3 and "cpu:1 failed in segment 3" in said and "Traceback" not in said
    data = data_of(model.with_suffix(".html"))
    assert "cpu:1 failed in segment 3" in data["failure"]
    assert data["tasks"] and data["measured"]["blocks"] and not data["rivals"]


def test_a_file_that_is_no_model_leaves_no_page(
    model: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model.write_text("no model")
    assert report(model) == 3
    assert not model.with_suffix(".html").exists()
    assert len(capfd.readouterr().err.strip().splitlines()) == 1


@pytest.mark.parametrize(
    "words", [("--repeats", "-1"), ("--planners-s", "-1"), ("--planners-s", "nan")]
)
def test_numbers_without_a_meaning_are_refused(model: Path, words: tuple[str, str]) -> None:
    cache = ["--cache", str(model.parent / "cache")]
    assert main(["report", str(model), *cache, *words]) == 2
