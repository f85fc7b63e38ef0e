"""`coexec doctor`: it never fails, and shows nothing private."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from coexec.cli import doctor_page, main
from coexec.cli.doctor_page import examined, print_page, private, verdict
from coexec.engines.base import Processor
from coexec.engines.registry import Driven
from coexec.engines.survey import Survey
from coexec.extras import EXTRAS, install
from coexec.rules import BUSY, STOLEN
from tests.helpers.fake_machines import written


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the second in which other programs are observed, and without other processes."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(doctor_page, "survey", Survey)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {
            name: "neither a number\nnor what proc(5) says"
            for name in ("proc/stat", "proc/cpuinfo", "proc/meminfo", "etc/os-release")
        },
    ],
    ids=["none", "of another form"],
)
def test_a_machine_without_the_usual_files_gets_its_page(
    files: dict[str, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = examined(written(tmp_path, files))
    print_page(page)
    json.dumps(asdict(page))
    out = capfd.readouterr().out
    assert "unknown    the system does not report it\n" in out
    assert "  memory              unknown: " in out


def test_the_limits_of_a_container(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = {
        "proc/meminfo": "MemTotal: 2048 kB\nMemAvailable: 1024 kB",
        "proc/self/cgroup": "0::/",
        "sys/fs/cgroup/cpu.max": "250000 100000",
        "sys/fs/cgroup/memory.max": "max",
    }
    page = examined(written(tmp_path, files))
    print_page(page)
    assert page.limits["memory_bytes"] == 2 << 20
    out = capfd.readouterr().out
    for line in (
        "quota processors    2.50",
        "memory              2.00 MiB",
        "limit        no limit",
    ):
        assert f"{line}\n" in out


def test_the_load_is_between_two_readings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path, {"proc/stat": "cpu 100 0 0 900 0 0 0 0 0 0"})

    def later(_: float) -> None:
        written(tmp_path, {"proc/stat": "cpu 1000 0 0 900 0 0 0 100 0 0"})

    monkeypatch.setattr("time.sleep", later)
    assert examined(tmp_path).load["taken_by_host_share"] == pytest.approx(0.1)


def test_a_package_that_is_absent_has_its_command(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(EXTRAS, "serve", ("starlette", "no-such-package"))
    print_page(examined())
    out = capfd.readouterr().out
    assert f"without no-such-package: {install('serve')} (the server, coexec serve)" in out


def test_a_wrong_choice_of_the_loop_is_a_line(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COEXEC_LOOP", "fastest")
    print_page(examined())
    assert "COEXEC_LOOP=fastest names no run loop" in capfd.readouterr().out


def test_homes_are_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/srv/people/ada"))
    found = private(
        Survey(broken={"x": "in /srv/people/ada/lib: /home/eve/x.py, /srv/people/adam", "y": "/"})
    )
    assert found.broken == {"x": "in ~/lib: ~/x.py, /srv/people/adam", "y": "/"}


@pytest.mark.parametrize("columns", [None, "80"], ids=["a file", "a terminal of 80 columns"])
def test_no_line_ends_with_blanks_or_exceeds_the_terminal(
    columns: str | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert main(["doctor"]) == 0
    verdict_line, *lines = capfd.readouterr().out.splitlines()
    assert [line for line in (verdict_line, *lines) if line != line.rstrip()] == []
    assert columns is None or [line for line in lines if len(line) > int(columns)] == []


CPU = Driven("cpu", "a processor", {"onnxruntime": Processor("cpu", "a processor")})


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({}, "Ready."),
        (
            {"load": {"other_programs_share": 2 * BUSY}},
            f"Ready, but other programs use {2 * BUSY:.0%} of the processors' time; end them to "
            f"measure.",
        ),
        (
            {"load": {"taken_by_host_share": 2 * STOLEN}},
            f"Ready, but the host takes {2 * STOLEN:.0%} of the processors' time; measure at "
            f"another time.",
        ),
        (
            {"broken": {"opencl": "it crashed; update it"}},
            "Ready, but the engine opencl cannot be used: it crashed; update it.",
        ),
        (
            {"packages": {"numpy": None}},
            "Not ready, because packages are not installed: numpy (python -m pip install numpy).",
        ),
        (
            {"broken": {"onnxruntime": "it crashed"}},
            "Not ready, because the engine onnxruntime cannot be used: it crashed.",
        ),
        (
            {"runtimes": ()},
            "Not ready, because coexec needs ONNX Runtime, which is not installed: pip install "
            "onnxruntime for CPU cores, or pip install onnxruntime-gpu for NVIDIA's GPUs, and only "
            "one of the two.",
        ),
        (
            {"runtimes": ("onnxruntime", "onnxruntime-gpu")},
            "Ready, but onnxruntime and onnxruntime-gpu bring the same module and have overwritten "
            "each other's files; remove all of them (pip uninstall onnxruntime onnxruntime-gpu) "
            "and install one.",
        ),
        (
            {"processors": ()},
            "Not ready, because the engine onnxruntime runs on no CPU "
            "(python -m pip install --force-reinstall onnxruntime).",
        ),
    ],
)
def test_the_verdict_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    ready = {
        "packages": {"numpy": "2", "ray": None},
        "processors": (CPU,),
        "broken": {},
        "load": {},
        "runtimes": ("onnxruntime",),
    }
    assert verdict(**{**ready, **change}) == sentence


def test_a_runtime_without_a_list_of_its_files_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coexec.cli.doctor_page.onnx_runtimes", lambda: {})
    assert "which is not installed" not in examined().verdict
