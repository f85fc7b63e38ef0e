"""`coexec profile --train`, and what a profile says where nothing was trained."""

import json
from pathlib import Path

import onnx
import pytest
from small_models import branches

from coexec.cli import main


def test_training_and_what_is_said_without(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, on = str(tmp_path / "model.onnx"), ["--devices", "null:0", "--cache", str(tmp_path)]
    onnx.save(branches(), model)
    remedy = "coexec profile --train --devices null:0/null trains one"
    assert main(["profile", model, *on]) == 0
    assert remedy in " ".join(capfd.readouterr().out.split())
    assert main(["profile", "--train", "--samples", "40", "--json", *on]) == 0
    assert "Conv" in json.loads(capfd.readouterr().out)["null:0/null"]
    assert main(["profile", model, *on]) == 0
    assert remedy not in " ".join(capfd.readouterr().out.split())


def test_parts_of_tasks_are_measured_once_and_counted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    model, on = str(tmp_path / "model.onnx"), ["--devices", "null:0", "--cache", str(tmp_path)]
    onnx.save(branches(), model)
    assert main(["profile", model, *on]) == 0
    assert "parts of tasks measured" not in capfd.readouterr().out
    assert main(["profile", model, *on, "--pieces"]) == 0
    assert "parts of tasks measured" in capfd.readouterr().out
    assert main(["profile", model, *on, "--json"]) == 0
    known = json.loads(capfd.readouterr().out)["pieces_s"]["null:0/null"]
    assert known and all(seconds > 0.0 for seconds in known.values())
    assert main(["profile", model, *on, "--pieces", "--json"]) == 0
    assert json.loads(capfd.readouterr().out)["pieces_s"]["null:0/null"] == known


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["model.onnx", "--train"], "leave the model out"),
        ([], "name a model"),
        (["--train", "--samples", "0"], "--samples 0"),
    ],
)
def test_bad_words(words: list[str], reason: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["profile", *words]) != 0
    assert reason in capfd.readouterr().err
