"""`coexec export`, and verbs that take its folder in the place of a model."""

import json
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest

from coexec.cli import main
from coexec.engines.detect import usable_cores
from coexec.exports import opening
from coexec.profiling import profiler
from tests.helpers.small_models import branches

CORE = f"cpu:{usable_cores()[0]}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    onnx.save(branches(), str(folder / "model.onnx"))
    words = ["--devices", CORE, "--planner", "single", "--cache", str(folder / "cache")]
    assert main(["export", str(folder / "model.onnx"), str(folder / "e"), *words]) == 0
    return folder


def call(folder: Path, *words: str) -> int:
    return main([*words, "--cache", str(folder / "cache")])


@pytest.mark.usefixtures("no_memory")
def test_verbs_take_the_folder_and_measure_no_profile(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiler, "Profiler", lambda *_, **__: pytest.fail("it measures"))
    assert call(folder, "run", str(folder / "e"), "--output", str(folder / "y.npz")) == 0
    assert np.load(folder / "y.npz")["y"].shape == (1, 48)
    capfd.readouterr()
    assert call(folder, "bench", str(folder / "e"), "--repeats", "1", "--json") == 0
    rows = json.loads(capfd.readouterr().out)["rows"]
    assert rows[0]["name"] == "plan" and rows[1]["name"].startswith("ONNX Runtime")


def test_json(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--devices", CORE, "--planner", "single", "--json"]
    assert call(folder, "export", str(folder / "model.onnx"), str(folder / "f"), *words) == 0
    found = json.loads(capfd.readouterr().out)
    assert found["inputs"] == {"x": {"shape": [1, 3, 20, 20], "dtype": "float32"}}
    sizes = {name: (folder / "f" / name).stat().st_size for name in found["files"]}
    assert found["files"] == sizes and found["model"] == "model/model.onnx"


def test_an_unlike_machine_is_one_line(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "machine_facts", lambda _: {"cores": "4+60"})
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        assert call(folder, "run", str(folder / "e")) == 0
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("coexec: warning: the export") and "here 4+60" in line


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["export", "{model}", "{}"], 2, "has files and is no sound export"),
        (["export", "{model}", "{model}"], 2, "it is a file"),
        (["export", "{}/e", "{}/g"], 2, "is an export already"),
        (["export", "{}/none.onnx", "{}/g"], 3, "does not exist"),
        (["run", "{}/e", "--devices", CORE], 2, "devices is given; leave it out"),
        (["inspect", "{}/e"], 3, "taken by InferenceSession and coexec run, bench and serve"),
        (["run", "{model}", "--plan", "{model}"], 3, "there is no plan in"),
        (["serve", "{model}", "--plan", "{}/none.json"], 3, "none.json': No such file"),
    ],
)
def test_errors_are_one_line(
    folder: Path, capfd: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    named = [word.format(folder, model=folder / "model.onnx") for word in words]
    assert call(folder, *named) == code
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith("coexec: ") and message in line
    assert not (folder / "g").exists()
