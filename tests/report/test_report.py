"""`coexec report`: the contents of the page, also after a failure."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from coexec.errors import ExecutionError
from coexec.report import answer as answer_module
from coexec.report import gather, race
from coexec.report.alternatives import Alternative, without_devices
from coexec.report.answer import answer_of
from coexec.report.bottleneck import bottleneck_of
from coexec.report.contents import Contents, TaskRow
from coexec.report.html import page_of
from coexec.report.ways import considered
from coexec.runtime.recorder import RealRecorder
from coexec.selection.decision import Candidate, Decision
from coexec.selection.prepare import prepare
from coexec.selection.prepared import Prepared
from coexec.settings import Settings
from coexec.timing.trace import Span, Trace
from tests.helpers.busy_machine import used_by_others
from tests.helpers.small_models import branches
from tests.report.conftest import data_of, report, two_cores


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


def test_the_answer_names_the_bottleneck_and_a_device_alone_has_one_prediction(page: Path) -> None:
    data = data_of(page)
    assert any("of the critical path" in sentence for sentence in data["answer"])
    predicted_s = {row["name"]: row["predicted_s"] for row in data["rivals"]}
    first, second = (row["name"] for row in data["without"])
    without_s = [row["predicted_s"] for row in data["without"]]
    assert without_s == [predicted_s[f"{second} alone"], predicted_s[f"{first} alone"]]
    assert None not in without_s  # a pin to a device does not hinder the plan without it


def test_onnx_runtimes_own_session_is_the_row_of_share_one(model: Path) -> None:
    place = f"{two_cores().split(',')[0]}/onnxruntime"
    assert report(model, "--devices", place, "--repeats", "1") == 0
    rows = data_of(model)["rivals"]
    (base,) = [row for row in rows if row["is_base"]]
    assert base["share"] == 1.0 and "ONNX Runtime's own session" in base["name"]


def test_a_plan_without_a_device_has_a_time_limit(prepared: Prepared) -> None:
    statuses = [row.status for row in without_devices(prepared, 0.0)]
    assert statuses == ["not tried: no time was left"] * 2


def test_the_bottleneck_is_what_has_most_of_the_critical_path() -> None:
    spans = (
        Span("a", "cpu:0", 0.0, 3.0, tasks=("a",)),
        Span("b", "cpu:1", 0.0, 9.0, tasks=("b",)),
        Span("t", "cpu:0", 3.0, 8.0, "transfer"),
        Span("c", "cpu:0", 8.0, 10.0, tasks=("c",)),
    )
    contents = Contents("m", "m", (), predicted=Trace(("cpu:0", "cpu:1"), spans))
    assert bottleneck_of(contents) == (
        "Computing on cpu:0 bounds a request: 50% of the critical path; transfers 50% (simulation)."
    )


@pytest.mark.parametrize(
    ("share", "words"), [(0.6, "most of it in Conv (60%)"), (0.4, "the largest part in Conv (40%)")]
)
def test_most_of_the_time_is_more_than_half_of_it(share: float, words: str) -> None:
    seconds = {"Conv": share, "Relu": (1 - share) / 2, "Add": (1 - share) / 2}
    rows = tuple(
        TaskRow(kind, kind, kind, "1", 0, "cpu:0", "", "", each_s, None, {}, 0, True)
        for kind, each_s in seconds.items()
    )
    trace = Trace(("cpu:0",), (Span("s", "cpu:0", 0.0, 1.0, tasks=tuple(seconds)),))
    assert words in bottleneck_of(Contents("m", "m", (), predicted=trace, tasks=rows))


def candidate(devices: str, ratio: float | None, **facts: Any) -> Candidate:
    seconds = None if ratio is None else 2.0 * ratio
    row = Candidate(tuple(devices.split("+")), facts.pop("planner", "single"), **facts)
    rounds_s = () if seconds is None else ((seconds, 2.0),) * 8
    return replace(row, paced_s=seconds, loop_s=seconds, rounds_s=rounds_s)


SESSION = candidate("cpu:0-1", 1.0, engines=("onnxruntime",), own_session=True)
CODL = candidate("cpu:0+cpu:1", 0.5, planner="codl", status="taken", reason="it takes 0.50 of it")
UNTRIED = Candidate(("cpu:0", "cpu:1/openvino"), "", status="untried")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """A plan of two devices, without a decision."""
    folder = tmp_path_factory.mktemp("prepared")
    onnx.save(branches(), str(folder / "small.onnx"))
    first, second = two_cores().split(",")
    pins = {"b0.a": first, "b2.a": second}
    settings = Settings([first, second], planner="heft", pins=pins, cache=str(folder / "cache"))
    return prepare(str(folder / "small.onnx"), settings)


def answer(prepared: Prepared, *candidates: Candidate, **parts: Any) -> str:
    """The answer about a plan that "auto" has taken of these candidates."""
    decision = Decision(candidates, "the verdict", reference=str(SESSION))
    contents = Contents("m.onnx", "m", (), **parts)
    contents = replace(contents, rivals=tuple(considered(decision)))
    return "\n".join(answer_of(contents, replace(prepared, decision=decision)))


def test_the_gain_is_one_figure_of_the_race_of_auto(prepared: Prepared) -> None:
    text = answer(prepared, CODL, SESSION)
    assert "It takes 0.50 of ONNX Runtime's time: 1.00 s in place of 2.00 s" in text
    assert text.count("0.50") == 1 and "times as fast" not in text


def test_the_answer_to_keep_onnx_runtime_says_what_would_help(prepared: Prepared) -> None:
    slower = candidate("cpu:0-1/cpp", 1.25)
    text = answer(prepared, SESSION, slower, UNTRIED)
    assert "cpu:0-1/cpp (single) takes 1.25 times ONNX Runtime's time" in text
    assert "More time would try cpu:0+cpu:1/openvino: coexec optimize m.onnx --time 120" in text


@pytest.mark.parametrize(
    ("devices", "engines", "is_advised"),
    [(None, ("onnxruntime",), True), (None, ("openvino",), False), (["cpu"], (), False)],
)
def test_an_engine_that_is_missing_is_advised_unless_the_user_named_devices(
    prepared: Prepared,
    monkeypatch: pytest.MonkeyPatch,
    devices: list[str] | None,
    engines: tuple[str, ...],
    is_advised: bool,
) -> None:
    monkeypatch.setattr(answer_module, "is_installed", lambda extra: False)
    settings = replace(prepared.work.settings, devices=devices)
    monkeypatch.setattr(prepared.work, "settings", settings)
    text = answer(prepared, SESSION, candidate("cpu:0-1", 1.1, engines=engines))
    assert ("openvino may help and is not installed" in text) == is_advised


@pytest.mark.parametrize(("planner", "is_advised"), [("codl", False), ("anneal", True)])
def test_a_planner_is_advised_only_where_no_measurement_of_it_exists(
    prepared: Prepared, planner: str, is_advised: bool
) -> None:
    measured = replace(CODL, rounds_s=((2.4, 2.0),) * 8, status="not taken")
    faster = Alternative(planner, 0.5)
    parts = {"planners": (faster,), "predicted": Trace((), (Span("s", "cpu:0", 0.0, 1.0),))}
    text = answer(prepared, SESSION, measured, **parts)
    assert (f"--planner {planner}" in text) == is_advised


def test_the_page_has_the_answer_and_the_reasons_without_scripts() -> None:
    rows = tuple(considered(Decision((CODL, SESSION))))
    text = page_of(Contents("m", "<m>", ("It takes <half>.",), rivals=rows, doubt="other programs"))
    static = text.partition("<script")[0]
    for words in ("It takes &lt;half&gt;.", "&lt;m&gt;", "it takes 0.50 of it", "other programs"):
        assert words in static


def test_the_race_of_auto_is_the_only_one(
    model: Path, monkeypatch: pytest.MonkeyPatch, quick_choice: None
) -> None:
    monkeypatch.setattr(gather, "race_rivals", None)  # a call is an error
    assert report(model, "--devices", two_cores(), "--repeats", "1") == 0
    data = data_of(model)
    assert [row["is_plan"] for row in data["rivals"]].count(True) == 1
    plan = next(row for row in data["rivals"] if row["is_plan"])
    assert plan["status"] == "taken" and plan["reason"] and plan["peak_bytes"] > 0
    assert data["measured"]["blocks"]


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
    data = data_of(model)
    assert data["rivals"] == [] and data["measured"] is None and data["nodes"]
    assert "kirin_990" in data["facts"]["processor"]


def test_figures_from_a_busy_machine_are_in_doubt(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(race, "REAL", used_by_others(0.5))
    assert report(model, "--devices", two_cores(), "--planner", "heft", "--repeats", "1") == 0
    data = data_of(model)
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
    assert data_of(model)["measured"]["makespan_s"] == 0.2


def test_a_failed_run_leaves_a_page_with_what_happened_until_then(
    model: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: Any) -> None:
        raise ExecutionError("cpu:1 failed in segment 3")

    monkeypatch.setattr(gather, "alone_rivals", fails)  # after the recorded run
    code = report(model, "--devices", two_cores(), "--planner", "heft", "--repeats", "1")
    said = capfd.readouterr().err
    assert code == 3 and "cpu:1 failed in segment 3" in said and "Traceback" not in said
    data = data_of(model)
    assert "cpu:1 failed in segment 3" in data["failure"]
    assert data["tasks"] and data["measured"]["blocks"] and not data["rivals"]
