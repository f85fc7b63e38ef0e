"""`coexec doctor`: it never fails, and shows nothing private."""

import errno
import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from coexec.cache import Cache
from coexec.cli import doctor_page, main
from coexec.cli.doctor_page import Examination, document, examined, print_page, private, verdict
from coexec.cli.installed import cache_state
from coexec.engines.base import Processor
from coexec.engines.registry import Driven
from coexec.engines.survey import Survey
from coexec.extras import EXTRAS, install
from coexec.profiling.facts import Fact, MachineFiles
from coexec.profiling.fitness import CHECKS, Finding


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the second in which other programs are observed, and without other processes."""
    monkeypatch.setattr("time.sleep", lambda _: None)
    monkeypatch.setattr(doctor_page, "survey", Survey)


@pytest.mark.usefixtures("alone")
def test_the_page_has_every_check_and_every_extra(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor"]) == 0
    out = capfd.readouterr().out
    assert [name for name in (*CHECKS, *EXTRAS) if f"  {name}  " not in out] == []


@pytest.mark.usefixtures("alone")
def test_a_machine_without_proc_and_sys_gets_its_page(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = examined(tmp_path / "cache", MachineFiles(tmp_path, (0,)))
    print_page(found)
    out = capfd.readouterr().out
    assert "caches              could not be determined: the system reports no caches" in out
    assert {row["verdict"] for row in document(found)["fitness"]} <= {"ok", "unknown", "look"}
    json.dumps(document(found))
    assert not (tmp_path / "cache").exists()  # it writes nothing


@pytest.mark.usefixtures("alone")
def test_a_package_that_is_absent_has_its_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(EXTRAS, "serve", ("starlette", "no-such-package"))
    print_page(examined(tmp_path))
    out = capfd.readouterr().out
    assert f"without no-such-package: {install('serve')} (the server, coexec serve)" in out


@pytest.mark.usefixtures("alone")
def test_a_wrong_choice_of_the_loop_is_a_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COEXEC_LOOP", "fastest")
    print_page(examined(tmp_path))
    assert "COEXEC_LOOP=fastest names no run loop" in capfd.readouterr().out


def test_a_cache_on_a_disk_that_refuses_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = cache_state(Cache(tmp_path))
    assert state.exists and not state.why_not_writable and state.limit_bytes > 0
    refused = OSError(errno.EROFS, "Read-only file system")
    monkeypatch.setattr("tempfile.TemporaryFile", Mock(side_effect=refused))
    assert cache_state(Cache(tmp_path / "new")).why_not_writable == "Read-only file system"


def test_homes_are_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "home", lambda: Path("/srv/people/ada"))
    found = private(
        Survey(broken={"x": "in /srv/people/ada/lib: /home/eve/x.py, /srv/people/adam", "y": "/"})
    )
    assert found.broken == {"x": "in ~/lib: ~/x.py, /srv/people/adam", "y": "/"}


@pytest.mark.usefixtures("alone")
def test_a_cache_that_is_a_file_is_a_line_of_the_page(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["doctor", "--cache", str(tmp_path / "file")]) == 0
    assert "could not be determined" in capfd.readouterr().out


@pytest.mark.usefixtures("alone")
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
READY = Examination(
    (), {"numpy": "2"}, (), {}, Survey((CPU,)), Fact("loop", "native"),
    cache_state(Cache(Path("absent"))), "", (Finding("turbo", "ok", "off"),),
)  # fmt: skip
VERDICTS = {
    "ready": (READY, "Ready."),
    "disturbed": (
        replace(READY, fitness=(Finding("turbo", "look", "on", "switch it off"),)),
        "Ready, but measured times would be disturbed: turbo (switch it off).",
    ),
    "a broken engine": (
        replace(READY, survey=Survey((CPU,), {"opencl": "it crashed; update it"})),
        "Ready, but the engine opencl cannot be used: it crashed; update it.",
    ),
    "no cache": (
        replace(READY, cache=None, why_no_cache="it is a file"),
        "Ready, but the cache cannot be used: it is a file (name another one with --cache).",
    ),
    "no package": (
        replace(READY, packages={"numpy": None}),
        "Not ready, because packages are not installed: numpy (python -m pip install numpy).",
    ),
    "no ONNX Runtime": (
        replace(READY, survey=Survey()),
        "Not ready, because the engine onnxruntime runs on no CPU "
        "(python -m pip install --force-reinstall onnxruntime).",
    ),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_the_verdict_is_one_sentence(case: str) -> None:
    found, sentence = VERDICTS[case]
    assert verdict(found) == sentence
