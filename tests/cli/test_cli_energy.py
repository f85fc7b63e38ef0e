"""Joules on the command line: simulated phones that tell watts, and this machine's counters."""

import json
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import onnx
import pytest

from coexec.cli import main
from coexec.engines.detect import usable_cores
from coexec.report import energy, standings
from coexec.report.energy import EnergyCounter, measured_energy
from tests.helpers.small_models import branches

CORE = f"cpu:{usable_cores()[0]}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("energy")
    onnx.save(branches(), str(folder / "model.onnx"))
    return folder


def printed(capfd: pytest.CaptureFixture[str], folder: Path, verb: str, *words: str) -> str:
    assert main([verb, str(folder / "model.onnx"), *words, "--cache", str(folder / "cache")]) == 0
    return capfd.readouterr().out


def told(capfd: pytest.CaptureFixture[str], folder: Path, verb: str, *words: str) -> Any:
    return json.loads(printed(capfd, folder, verb, *words, "--json"))


@pytest.mark.parametrize("verb", ["simulate", "plan", "explain"])
def test_a_phone_that_tells_watts(
    verb: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("--platform", "snapdragon_855", "--planner", "heft")
    found = told(capfd, folder, verb, *words)
    assert set(found["device_energy_j"]) == {"cpu:4-7", "gpu:0"}
    assert found["energy_j"] == pytest.approx(sum(found["device_energy_j"].values()))
    assert found["energy_j"] > 0
    text = printed(capfd, folder, verb, *words)
    assert "energy" in text and " J" in text.replace("mJ", " J").replace("uJ", " J")


@pytest.mark.parametrize("verb", ["simulate", "plan", "explain"])
def test_a_phone_that_does_not(verb: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("--platform", "kirin_990", "--planner", "heft")
    found = told(capfd, folder, verb, *words)
    assert found["energy_j"] is None and found["device_energy_j"] is None
    assert "energy" not in printed(capfd, folder, verb, *words)


def test_joules_are_those_of_one_request(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """One after the other on the CPU, three requests take three times the energy of one."""
    words = ("--platform", "snapdragon_855", "--planner", "single", "--devices", "cpu:4-7")
    one, three = (told(capfd, folder, "simulate", *words, "--requests", n) for n in "13")
    assert three["simulated_s"] == pytest.approx(3 * one["simulated_s"])
    assert three["energy_j"] == pytest.approx(one["energy_j"])


def test_an_engine_of_a_phone(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("--platform", "snapdragon_855", "--planner", "single", "--devices")
    image, buffer = (
        told(capfd, folder, "simulate", *words, f"gpu:0/{name}") for name in ("image", "buffer")
    )
    assert image["simulated_s"] < buffer["simulated_s"]
    plan = str(folder / "plan.json")
    printed(capfd, folder, "plan", *words, "gpu:0/buffer", "--output", plan)
    again = told(capfd, folder, "simulate", "--platform", "snapdragon_855", "--plan", plan)
    assert again["simulated_s"] == buffer["simulated_s"]


@pytest.fixture
def counters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package whose counter has grown by a joule whenever it is read."""
    package = tmp_path / "intel-rapl:0"
    package.mkdir(parents=True)
    (package / "name").write_text("package-0")
    (package / "max_energy_range_uj").write_text("1000000000")
    numbers = count()
    monkeypatch.setattr(EnergyCounter, "read_uj", lambda self: 1_000_000 * next(numbers))
    for module in (energy, standings):
        monkeypatch.setattr(module, "measured_energy", partial(measured_energy, root=tmp_path))


@pytest.mark.long
@pytest.mark.usefixtures("counters")
def test_where_counters_are_read(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ("--devices", CORE, "--planner", "single")
    found = told(capfd, folder, "run", *words)
    assert 0 < found["energy_j"] < 1 and found["energy_unknown"] is None
    assert "energy: " in printed(capfd, folder, "run", *words)
    found = told(capfd, folder, "bench", *words, "--repeats", "1")
    assert all(0 < row["energy_j"] < 1 for row in found["rows"])
    assert "energy" in printed(capfd, folder, "bench", *words, "--repeats", "1")


@pytest.mark.long
def test_where_there_are_none(
    folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (energy, standings):
        monkeypatch.setattr(module, "measured_energy", partial(measured_energy, root=tmp_path))
    words = ("--devices", CORE, "--planner", "single")
    found = told(capfd, folder, "run", *words)
    assert found["energy_j"] is None and "no energy counters" in found["energy_unknown"]
    assert "energy" not in printed(capfd, folder, "run", *words)
    rows = told(capfd, folder, "bench", *words, "--repeats", "1")["rows"]
    assert all(row["energy_j"] is None and row["energy_unknown"] for row in rows)
    assert "energy" not in printed(capfd, folder, "bench", *words, "--repeats", "1")
