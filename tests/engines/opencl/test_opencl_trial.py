"""The trial of an OpenCL device: what fails, how it is said, and what is remembered."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.helpers.patience import ENOUGH_S

pytest.importorskip("pyopencl")

from coexec import processes
from coexec.engines import detect, verdicts
from coexec.engines.opencl import driver_trial as opencl_trial
from coexec.engines.opencl.binaries import Binaries
from coexec.engines.opencl.driver_trial import unusable
from coexec.engines.opencl.platforms import _RUNTIMES, DeviceHandle
from tests.helpers.needs_opencl import opencl_found, opencl_name, opencl_options

CRASH = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"
HANG = "import time; time.sleep(600)"
SEND = "from coexec.processes import Parent; Parent().send({!r})"
PASS = SEND.format("")
HANG_WITH_LOCK = """
import ctypes
from coexec.engines import verdicts
from coexec.engines.opencl import driver_trial as opencl
verdicts._LIMIT_S = 1
opencl.devices = lambda: ctypes.PyDLL(None).sleep(600)  # keeps the interpreter's lock
verdicts.end(lambda: opencl._named("a device", "a driver"))
"""
SCRIPT = """
print("started")
from coexec.engines.registry import describe
print(describe("{name}", {options!r}).request)
"""


def listed(
    name: str = "A GPU", overridden_cpu_name: str | None = None, platform: str = "GPUs"
) -> DeviceHandle:
    """A device as drivers describe it. Nothing can be run there."""
    vendor = SimpleNamespace(name=platform, version="OpenCL 3.0")
    handle = SimpleNamespace(platform=vendor, name=name, driver_version="1.2", version="CL 3")
    return DeviceHandle(handle, _RUNTIMES.get(platform), overridden_cpu_name)


@pytest.fixture
def pocl() -> DeviceHandle:
    """A device that works."""
    return opencl_found()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where verdicts are remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "coexec" / "trials"


def child_runs(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of a trial runs ``code``; this process knows no verdict, as if it were new."""
    monkeypatch.setattr(processes, "command", lambda *words: [sys.executable, "-c", code])
    monkeypatch.setattr(verdicts, "_verdicts", {})


def no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial fails the test; this process knows no verdict."""
    monkeypatch.setattr(verdicts, "_tried", lambda *_: pytest.fail("it was tried again"))
    monkeypatch.setattr(verdicts, "_verdicts", {})


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (CRASH, r"crashed its process \(Segmentation fault\)"),
        ("import os; os.abort()", r"crashed its process \(Aborted\)"),
        (HANG, r"did not end within 0\.5 s"),
        ("raise SystemExit('LLVM ERROR')", r"ended .* exit code 1 \(LLVM ERROR\)"),
        ("raise SystemExit(0)", r"ended its process with exit code 0"),
        (
            "import os; os.write(2, b'LLVM ERROR'); os.abort()",
            r"crashed .* \(Aborted\) \(LLVM ERROR\)",
        ),
        (SEND.format("failed (7)"), r"failed \(7\)"),
    ],
    ids=["segmentation fault", "abort", "hang", "exit 1", "exit 0", "abort, reason", "failure"],
)
def test_whatever_a_driver_does_is_a_reason(
    code: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts, "_LIMIT_S", 0.5 if code == HANG else 60)
    child_runs(code, monkeypatch)
    message = unusable(listed())
    assert re.match(
        rf"A GPU is unusable: a small test kernel {reason} \[GPUs 1\.2, CL 3\]; update or "
        rf"reinstall the driver, after which coexec devices --fresh tries",
        str(message),
    )


def test_an_interpreter_that_does_not_start_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "command", lambda *words: ["/nowhere/python"])
    assert "no process can be started" in str(unusable(listed()))


def test_a_device_that_another_process_does_not_find_is_unusable() -> None:
    assert "another process does not find the device" in str(unusable(listed("No such GPU")))


def test_the_trial_passes_where_the_device_works(pocl: DeviceHandle, folder: Path) -> None:
    assert unusable(pocl) is None
    assert len(list(folder.iterdir())) == 1


def test_a_frozen_program_tries_within_itself(
    pocl: DeviceHandle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ``sys.executable`` is the program, which would be started again."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    monkeypatch.setattr(processes, "Child", lambda *_: pytest.fail("it started itself"))
    assert unusable(pocl) is None


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("v.x, 2.0f", "v.x, 3.0f", r"gave wrong numbers \(1020, .* for 1028, 1030\)"),
        ("mad(", "no_such_function(", r"failed \(.*error:.*no_such_function"),
    ],
    ids=["numbers", "build"],
)
def test_numbers_and_builds_are_checked(
    pocl: DeviceHandle, old: str, new: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert opencl_trial._compute(pocl) == ""
    monkeypatch.setattr(opencl_trial, "_SOURCE", opencl_trial._SOURCE.replace(old, new))
    assert re.match(reason, opencl_trial._compute(pocl))


def test_a_verdict_is_remembered(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child_runs(CRASH, monkeypatch)
    failure = unusable(listed())
    child_runs(PASS, monkeypatch)
    assert unusable(listed("Another GPU")) is None
    assert len(list(folder.iterdir())) == 2
    no_child(monkeypatch)
    assert unusable(listed()) == failure is not None
    assert unusable(listed("Another GPU")) is None


def test_a_device_is_tried_again_when_a_fact_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    child_runs(CRASH, monkeypatch)
    assert unusable(listed()) is not None
    child_runs(PASS, monkeypatch)
    assert unusable(listed()) is not None
    assert unusable(listed(overridden_cpu_name="haswell")) is None
    monkeypatch.setattr(detect, "features", lambda: ("AVX",))
    assert unusable(listed()) is None


def test_a_device_is_tried_again_on_demand(monkeypatch: pytest.MonkeyPatch) -> None:
    child_runs(CRASH, monkeypatch)
    assert unusable(listed()) is not None
    child_runs(PASS, monkeypatch)
    assert unusable(listed()) is not None
    verdicts.forget()
    assert unusable(listed()) is None
    no_child(monkeypatch)
    assert unusable(listed()) is None


@pytest.mark.parametrize("content", ["", "[]", '{"failure": ""}', '{"failure": "", "facts": {}}'])
def test_a_damaged_verdict_does_not_count(
    content: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    child_runs(PASS, monkeypatch)
    assert unusable(listed()) is None
    (file,) = folder.iterdir()
    file.write_text(content)
    child_runs(CRASH, monkeypatch)
    assert unusable(listed()) is not None


def test_a_verdict_that_cannot_be_written_is_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    child_runs(PASS, monkeypatch)
    assert unusable(listed()) is None
    child_runs(CRASH, monkeypatch)
    assert unusable(listed()) is not None


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


def test_a_plain_script_is_not_run_twice(pocl: DeviceHandle, tmp_path: Path) -> None:
    """Scripts that do not ask for ``__name__`` would be, by multiprocessing."""
    name = opencl_name()
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(name=name, options=opencl_options()))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=ENOUGH_S,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        check=False,
    )
    assert (done.stdout, done.stderr) == (f"started\n{name}\n", "")
    assert list((tmp_path / "coexec" / "trials").iterdir())


def test_binaries_of_another_cpu_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    platform = "Portable Computing Language"

    def key(overridden_cpu_name: str | None) -> str:
        binaries = Binaries(listed("CPU", overridden_cpu_name, platform), None, tmp_path)
        return binaries._key("source", "options")

    keys = [key(None), key("haswell"), key("skylake-avx512")]
    monkeypatch.setattr(detect, "features", lambda: ("AVX",))
    keys.append(key("haswell"))
    assert len(set(keys)) == 4 and key("haswell") == keys[-1]
