"""The trial of an engine: what fails, how it is said, and what is remembered."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coexec import processes
from coexec.engines import detect, trial
from tests.helpers.patience import ENOUGH_S

CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
HANG = "import time; time.sleep(600)"
SEND = "from coexec.processes import Parent; p = Parent(); p.receive(); p.send({!r})"
PASS = SEND.format("")
HANG_WITH_LOCK = """
import ctypes
from coexec.engines import trial
trial._LIMIT_S = 1

class Parent:
    send = print
    def receive(self):
        ctypes.PyDLL(None).sleep(600)  # keeps the interpreter's lock

trial.serve(Parent())
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where verdicts are remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(trial, "_verdicts", {})
    return tmp_path / "coexec" / "trials"


def child_runs(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of a trial runs ``code``; this process knows no verdict, as if it were new."""
    monkeypatch.setattr(processes, "command", lambda target: [sys.executable, "-c", code])
    monkeypatch.setattr(trial, "_verdicts", {})


def failure(**facts: str) -> str:
    return trial.failure("builtins:str", facts={"device": "A GPU", **facts})


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (CRASH, r"crashed its process \(Segmentation fault\)"),
        ("import os; os.abort()", r"crashed its process \(Aborted\)"),
        (HANG, r"did not end within 0\.5 s"),
        ("raise SystemExit('LLVM ERROR')", r"ended .* exit code 1 \(LLVM ERROR\)"),
        ("raise SystemExit(0)", r"ended its process with exit code 0"),
        ("import os; os.write(2, b'LLVM'); os.abort()", r"crashed .* \(Aborted\) \(LLVM\)"),
        (SEND.format("failed (7)"), r"failed \(7\)"),
    ],
    ids=["segmentation fault", "abort", "hang", "exit 1", "exit 0", "abort, reason", "failure"],
)
def test_whatever_a_driver_does_is_a_reason(
    code: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "_LIMIT_S", 0.5 if code == HANG else 60)
    child_runs(code, monkeypatch)
    assert re.fullmatch(reason, failure())


def test_an_interpreter_that_does_not_start_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "command", lambda target: ["/nowhere/python"])
    assert "no process can be started" in failure()


def test_the_attempt_runs_in_the_process_of_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "_attempted", lambda *_: pytest.fail("it was run here"))
    assert trial.failure("posixpath:join", "failed", "there", facts={}) == "failed/there"


def test_an_error_of_the_attempt_is_its_failure() -> None:
    assert trial.failure("coexec.engines.names:parse", "no device", facts={}).startswith("failed (")


def test_a_frozen_program_tries_within_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its ``sys.executable`` is the program, which would be started again."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(processes, "Child", lambda *_: pytest.fail("it started itself"))
    assert trial.failure("posixpath:join", "failed", "here", facts={}) == "failed/here"


def test_a_verdict_holds_for_its_facts_until_it_is_forgotten(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child_runs(CRASH, monkeypatch)
    assert failure().startswith("crashed")
    child_runs(PASS, monkeypatch)
    assert failure().startswith("crashed")
    assert failure(driver="another") == ""
    assert len(list(folder.iterdir())) == 2
    with monkeypatch.context() as patch:
        patch.setattr(detect, "features", lambda: ("AVX",))
        assert failure() == ""
    trial.forget()
    assert failure() == ""
    child_runs(CRASH, monkeypatch)
    assert failure() == ""


@pytest.mark.parametrize("content", ["", "[]", '{"failure": ""}', '{"failure": "", "facts": {}}'])
def test_a_damaged_verdict_does_not_count(
    content: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child_runs(PASS, monkeypatch)
    assert failure() == ""
    (file,) = folder.iterdir()
    file.write_text(content)
    child_runs(CRASH, monkeypatch)
    assert failure() != ""


def test_a_verdict_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    child_runs(PASS, monkeypatch)
    assert failure() == ""
    child_runs(CRASH, monkeypatch)
    assert failure() != ""


def test_a_trial_ends_by_itself() -> None:
    """Also if the process that started it is gone, and the driver keeps the interpreter's lock."""
    done = subprocess.run(
        [sys.executable, "-c", HANG_WITH_LOCK],
        capture_output=True,
        timeout=ENOUGH_S,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert done.returncode == 1 and b"Timeout (0:00:01)" in done.stderr
