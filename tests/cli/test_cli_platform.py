"""The command line with a phone that is not here."""

from pathlib import Path

import pytest

from coexec.cli import main


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
    assert call(tmp_path, verb, "zoo:squeezenet", *options) == 2
    assert message in capfd.readouterr().err.replace("\n", " ")
