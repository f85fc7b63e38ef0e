"""What users and tests see where OpenCL does not work."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.helpers.needs_opencl import opencl_found
from tests.helpers.small_models import branches

pytest.importorskip("pyopencl")

from coexec.cli import main
from coexec.engines import trial
from coexec.engines.detect import usable_cores
from coexec.engines.opencl import platforms, vendors
from coexec.engines.opencl.platforms import devices
from coexec.engines.opencl.tried import unusable
from coexec.engines.registry import open_devices
from coexec.errors import DeviceError
from coexec.model.difference import worst_difference
from coexec.model.reference_session import plain_session
from coexec.selection.chooser import Chooser
from coexec.selection.configurations import configurations
from coexec.session import InferenceSession
from coexec.settings import Effort, Settings

ROOT = Path(__file__).parents[3]
CORE = usable_cores()[0]
NO_PYOPENCL = "import sys; sys.modules['pyopencl'] = None; "
RUN_TESTS = """
import pytest
files = ["tests/cli/test_verbs.py", "tests/engines/opencl/test_opencl_engine.py"]
raise SystemExit(pytest.main(["-p", "no:cacheprovider", "-k", "gpu or (fp16 and nvidia)", *files]))
"""
REFUSED = """
import pytest
from coexec.engines.registry import describe
from coexec.settings import Settings
from coexec.errors import DeviceError
from tests.helpers.needs_opencl import opencl_name
for ask in (lambda: describe({name!r}), lambda: describe("gpu:0"), opencl_name):
    try:
        print(ask())
    except (DeviceError, pytest.skip.Exception) as error:
        print(type(error).__name__, error)
"""


NO_RUNTIME = (
    ["was not loaded: OCL_ICD_VENDORS", "is set and does not name it"]
    if vendors.installed()
    else ["there is no OpenCL runtime for ", "pip install pyopencl pocl-binary-distribution, or"]
)
"""What is said where the loader finds no runtime, whether a wheel of one is installed or not."""


def fail_all(home: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """All OpenCL runtimes for CPU cores have failed their trial, and GPUs. How many there are.

    The verdict is in the cache folder ``home``, which is also that of the processes started here.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    with monkeypatch.context() as patch:
        failure = "failed (error: unknown target CPU 'generic')"
        patch.setattr(trial, "_tried", lambda *_: failure)
        for device in devices():
            assert failure in str(unusable(device))
    return sum(device.on_cpu for device in devices())


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many OpenCL runtimes for CPU cores there are, all of them unusable."""
    count = fail_all(tmp_path / "home", monkeypatch)
    if not count:
        pytest.skip("this machine has no OpenCL runtime for CPU cores")
    return count


@pytest.fixture
def model(tmp_path: Path) -> str:
    onnx.save(branches(), str(tmp_path / "model.onnx"))
    return str(tmp_path / "model.onnx")


def test_opening_it_is_one_error_with_reasons_and_remedy(broken: int) -> None:
    with pytest.raises(DeviceError) as caught:
        open_devices([f"cpu:{CORE}/opencl"])
    message = str(caught.value)
    assert message.startswith(f"device 'cpu:{CORE}' cannot be used through OpenCL: ")
    assert message.count("is unusable: a small test kernel failed") == broken
    assert "unknown target CPU 'generic'" in message and "coexec devices --fresh" in message


@pytest.mark.usefixtures("broken")
def test_the_command_line_ends_with_one_line(
    model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["--devices", f"cpu:{CORE}/opencl", "--cache", str(tmp_path / "cache")]
    code = main(["run", model, *words])
    (line,) = capfd.readouterr().err.strip().splitlines()
    assert code == 3 and line.startswith(f"coexec: device 'cpu:{CORE}' cannot be used through")
    assert "unknown target CPU 'generic'" in line


def listed(capfd: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What `coexec devices` says of OpenCL on CPU cores."""
    assert main(["devices", "--json", *words]) == 0
    (row,) = [r for r in json.loads(capfd.readouterr().out)["processors"] if r["name"] == "cpu"]
    assert next(iter(row["by"])) == "onnxruntime" and not row["by"]["onnxruntime"]["unusable"]
    return dict(row["by"]["opencl"])


def test_it_is_listed_as_unusable(broken: int, capfd: pytest.CaptureFixture[str]) -> None:
    reason = listed(capfd)["unusable"]
    assert reason.count("unknown target CPU 'generic'") == broken
    assert main(["devices"]) == 0
    printed = capfd.readouterr().out
    assert f"cpu/opencl: {reason}" in printed
    assert not re.search("another is named.*opencl", printed)


@pytest.mark.usefixtures("broken")
def test_it_is_tried_again_on_demand(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(trial, "_tried", lambda *_: "")
    assert listed(capfd)["unusable"] is not None
    assert listed(capfd, "--fresh")["unusable"] is None
    assert listed(capfd)["unusable"] is None
    assert main(["devices"]) == 0
    assert "another is named: --devices cpu:" in capfd.readouterr().out


def test_what_fails_beside_a_runtime_that_works_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    found = opencl_found()
    absent = "Intel's OpenCL runtime is installed (wheel 1.2) and was not loaded: by chance"
    monkeypatch.setattr(platforms, "absent", lambda: [absent])
    monkeypatch.setenv("COLUMNS", "300")
    assert absent in listed(capfd)["notes"]
    assert main(["devices"]) == 0
    printed = capfd.readouterr().out
    assert f"cpu/opencl: {absent}" in printed and found.platform in printed


@pytest.mark.usefixtures("broken")
def test_auto_carries_on_with_the_cpu(tmp_path: Path) -> None:
    names = {name for configuration in configurations() for name in configuration}
    assert names and not any("opencl" in name or name.startswith("gpu") for name in names)
    proto, cache = branches(), tmp_path / "cache"
    Chooser(proto, Settings(cache=cache, effort=Effort(warm_up=1, least=2, most=2))).make()
    with InferenceSession(proto, planner="auto", cache=cache) as session:
        assert not any("opencl" in name or name.startswith("gpu") for name in session.devices)
        running = session.coexec_router.running
        assert running is None or "opencl" not in {p.engine for p in running.prepared.plan.places}
        feeds = {i.name: np.ones(i.shape, np.float32) for i in session.get_inputs()}
        found = session.run(None, feeds)
    for a, b in zip(found, plain_session(proto).run(None, feeds), strict=True):
        assert worst_difference(a, b) < 1e-5


def test_auto_carries_on_without_a_runtime(tmp_path: Path) -> None:
    """The folder of the OpenCL drivers does not exist."""
    code = "from coexec.selection.configurations import configurations; print(configurations())"
    done = process(code, {"OCL_ICD_VENDORS": str(tmp_path / "nowhere")})
    assert done.returncode == 0 and done.stderr == ""
    assert "cpu:" in done.stdout and "opencl" not in done.stdout


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("cause", "reasons"),
    [
        ("pyopencl", ["OpenCL needs pyopencl (", "pip install pyopencl for GPUs"]),
        ("runtime", NO_RUNTIME),
    ],
)
def test_what_is_missing_is_said_by_name_and_in_the_list(
    cause: str, reasons: list[str], tmp_path: Path
) -> None:
    env = {"OCL_ICD_VENDORS": str(tmp_path / "nowhere")} if cause == "runtime" else {}
    hidden = NO_PYOPENCL if cause == "pyopencl" else ""
    done = process(hidden + REFUSED.format(name=f"cpu:{CORE}/opencl"), env)
    named, gpu, skipped = done.stdout.splitlines()
    assert named.startswith("DeviceError ") and skipped.startswith("Skipped no usable OpenCL")
    assert gpu.startswith("DeviceError device 'gpu:0' does not exist; this machine's devices of ")
    code = "from coexec.cli import main; raise SystemExit(main(['devices']))"
    devices = process(hidden + code, env)
    (line,) = [row for row in devices.stdout.splitlines() if row.startswith("cpu/opencl: ")]
    for said in (named, gpu, skipped, line):
        assert all(reason in said for reason in reasons), said
    assert (done.stderr, devices.stderr, devices.returncode) == ("", "", 0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("cause", "reason"),
    [
        ("pyopencl", "pyopencl"),
        (
            "runtime",
            f"no usable OpenCL runtime for CPU cores: .*{NO_RUNTIME[0]}",
        ),
        (
            "trial",
            "no usable OpenCL runtime for CPU cores: .* is unusable: a small test kernel failed",
        ),
    ],
)
def test_tests_are_skipped_with_the_reason(
    cause: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"OCL_ICD_VENDORS": str(tmp_path / "nowhere")} if cause == "runtime" else {}
    if cause == "trial" and not fail_all(tmp_path / "home", monkeypatch):
        pytest.skip("this machine has no OpenCL runtime for CPU cores")
    done = process((NO_PYOPENCL if cause == "pyopencl" else "") + RUN_TESTS, env)
    assert done.returncode == 0, done.stdout
    assert re.search(rf"SKIPPED \[\d+\] .*{reason}", done.stdout), done.stdout


def process(code: str, env: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    """A Python process in the root of the project that runs ``code``."""
    paths = os.pathsep.join(path for path in sys.path if path)
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        env=os.environ | env | {"PYTHONPATH": paths},
        check=False,
    )
