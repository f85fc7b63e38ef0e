"""The command line with a phone that is not here."""

import json
from inspect import signature
from pathlib import Path

import onnx.parser
import pytest

from coexec.cli import bench, explain, main, plan, run, simulate
from coexec.engines.detect import usable_cores


def call(folder: Path, *words: str) -> int:
    return main([*words, "--cache", str(folder)])


def test_what_it_prints_is_simulated(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    phone = ("zoo:squeezenet", "--platform", "kirin_990")
    plan = str(tmp_path / "plan.json")
    assert call(tmp_path, "plan", *phone, "--planner", "heft", "--output", plan) == 0
    assert "kirin_990, simulated" in capfd.readouterr().out
    assert call(tmp_path, "simulate", *phone, "--plan", plan) == 0
    assert "simulated:" in capfd.readouterr().out
    assert call(tmp_path, "plan", *phone, "--devices", "cpu:6-7,cpu:0-3") == 0
    assert "cpu:0-3" in capfd.readouterr().out


def test_the_programs_of_a_plan_are_printed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("zoo:squeezenet", "--platform", "kirin_990", "--planner", "mulayer", "--programs")
    assert call(tmp_path, "plan", *words, "--json") == 0
    found = json.loads(capfd.readouterr().out)
    rows = [row for program in found["programs"].values() for row in program]
    kinds = {"wait", "copy", "run", "signal"}
    assert len(found["programs"]) > 1 and {row["step"] for row in rows} == kinds
    assert sorted(row["segment"] for row in rows if row["step"] == "run") == [
        *range(found["segments"])
    ]
    assert call(tmp_path, "plan", *words) == 0
    lines = capfd.readouterr().out.splitlines()
    for device, program in found["programs"].items():
        first = lines.index(device) + 1
        printed = [line.split()[0] for line in lines[first : first + len(program)]]
        assert printed == [row["step"] for row in program]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("plan", "--platform", "nokia"), "there is no platform 'nokia'"),
        (("plan", "--platform", "kirin_990", "--fresh"), "--fresh"),
        (("simulate", "--platform", "kirin_990", "--devices", "cpu:9"), "no device 'cpu:9'"),
    ],
)
def test_what_there_is_not(
    words: tuple[str, ...], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    verb, *options = words
    expected = 3 if "no device" in message else 2
    assert call(tmp_path, verb, "zoo:squeezenet", *options) == expected
    assert message in capfd.readouterr().err.replace("\n", " ")


def test_an_opaque_task_is_refused_in_one_message(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (float[4,8] x) => (float[4,8] y) {
          places = NonZero(x)
          count = Shape(places)
          number = Cast<to = 1>(count)
          total = ReduceSum<keepdims = 0>(number)
          y = Add(x, total)
        }"""
    )
    path = tmp_path / "counting.onnx"
    onnx.save(model, path)
    assert call(tmp_path, "plan", str(path), "--platform", "kirin_990") == 3
    message = capfd.readouterr().err.replace("\n", " ")
    assert "runs on none of cpu:6-7, gpu:0, because the shape of 'places'" in message
    assert "only ONNX Runtime runs such a task" in message and "Traceback" not in message


def test_all_verbs_have_the_same_default_planner() -> None:
    defaults = {
        verb.__name__: parameters["planner"].default
        for verb in (bench, explain, plan, run, simulate)
        for parameters in [signature(verb.command).parameters]
    }
    assert set(defaults.values()) == {"auto"}, defaults


def test_auto_on_a_simulated_phone_keeps_the_plan_that_simulates_best(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    simulated_s = {}
    for planner in ("auto", "hope_greedy", "heft", "single"):
        words = ("zoo:squeezenet", "--platform", "kirin_990", "--planner", planner, "--json")
        words = words[:3] + words[5:] if planner == "auto" else words
        assert call(tmp_path, "simulate", *words) == 0
        simulated_s[planner] = json.loads(capfd.readouterr().out)["simulated_s"]
    assert simulated_s.pop("auto") == min(simulated_s.values())


@pytest.mark.long
def test_simulate_and_plan_choose_alike_on_this_machine(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("zoo:lstm", "--devices", f"cpu:{usable_cores()[0]}", "--json")
    found = {}
    for verb, key in (("plan", "predicted_s"), ("simulate", "simulated_s")):
        assert call(tmp_path, verb, *words) == 0
        found[verb] = json.loads(capfd.readouterr().out)[key]
    assert found["plan"] == found["simulate"]
