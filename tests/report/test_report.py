"""`coexec report`: the contents of the page, also after a failure."""

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from coexec.cli import main
from coexec.errors import ExecutionError
from coexec.report import gather
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
    assert len(data["answer"]) == 3 and data["failure"] is None
    assert {row["name"] for row in data["without"]} == set(data["predicted"]["utilisation"])


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
    assert "simulated" in json.loads(capfd.readouterr().out)["answer"][1]
    data = data_of(model.with_suffix(".html"))
    assert data["rivals"] == [] and data["measured"] is None and data["nodes"]
    assert "kirin_990" in data["facts"]["processor"]


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


@pytest.mark.parametrize("words", [("--repeats", "-1"), ("--planners-s", "-1")])
def test_numbers_without_a_meaning_are_refused(model: Path, words: tuple[str, str]) -> None:
    cache = ["--cache", str(model.parent / "cache")]
    assert main(["report", str(model), *cache, *words]) == 2
